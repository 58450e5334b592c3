"""How commands are told their broker: certificates, users and passwords as options, after the command or before it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from support.keys import Certificates

from statestore_client import StateStoreClient
from statestore_client.cli.app import cli
from statestore_client.server import BrokerLimits, EmbeddedServer, ServerTls
from statestore_client.server.runtime.security.passwords import set_password

#: A process for each command.
pytestmark = pytest.mark.ci

COMMAND = [sys.executable, "-m", "statestore_client.cli"]
CLIENTS = ("bench", "del", "get", "lock", "scan", "set", "vdel", "watch")
ONE_BENCH = ("bench", "--operations", "100", "--rounds", "1", "--in-flight", "2", "--driver", "native")


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """``statestore ARGUMENTS`` where the environment names no broker."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("AIO_", "STATESTORE_"))} | environment
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, env=variables, timeout=60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("cli-tls"))


@pytest.fixture(scope="module")
def secured(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """A server that wants a certificate and a password; its URL, and the options that let in."""
    folder = tmp_path_factory.mktemp("cli-users")
    set_password(folder / "users", "pump", b"secret")
    (folder / "password").write_text("secret\n")
    tls = ServerTls(
        cert_file=certificates.server_file, key_file=certificates.server_key_file, ca_file=certificates.ca_file
    )
    options = ["--tls-ca-file", certificates.ca_file, "--username", "pump", "--password-file", str(folder / "password")]
    options += ["--tls-cert-file", certificates.client_file, "--tls-key-file", certificates.client_key_file]
    with EmbeddedServer(tls=tls, passwords=folder / "users") as server:
        yield server.url, options


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("set", "k", "v"), 0),
        (("get", "missing"), 1),
        (("del", "missing"), 1),
        (("vdel", "missing", "v"), 1),
        (("scan",), 0),
        (("watch", "k", "--initial", "--count", "1"), 0),
        (("lock", "jobs", "--", "sh", "-c", "exit 7"), 7),
        (ONE_BENCH, 0),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else None,
)
def test_every_client_comes_in_with_its_options(
    secured: tuple[str, list[str]], command: tuple[str, ...], code: int
) -> None:
    """Every client command takes certificates, user and password as options, after the command or before it."""
    url, options = secured
    if command[0] == "watch":
        assert run("set", "k", "v", "--url", url, *options).returncode == 0
    for arguments in ((command[0], "--url", url, *options, *command[1:]), ("--url", url, *options, *command)):
        done = run(*arguments)
        assert done.returncode == code, done.stderr


def test_all_clients_have_the_same_options() -> None:
    """All client commands have the same connection options, and none takes a password, which other users would see."""
    context = click.Context(cli)
    own = {p.name for p in cli.params} - {"version"}
    assert own == {
        "url", "client_id", "timeout", "username", "password_file", "tls_ca_file", "tls_cert_file", "tls_key_file"
    }  # fmt: skip
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    names = {name: {p.name for p in command.params} for name, command in commands.items() if command is not None}
    assert {name for name, options in names.items() if "url" in options} >= {*CLIENTS}
    assert {name for name, options in names.items() if "url" in options and not own <= options} == set()


def test_what_stands_behind_the_command_wins(secured: tuple[str, list[str]]) -> None:
    """An option after the command wins over one before it, and both win over the environment."""
    url, options = secured
    nobody = "mqtt://127.0.0.1:1"
    assert run("--url", nobody, "get", "missing", "--url", url, *options).returncode == 1
    assert run("--url", url, *options, "get", "missing", STATESTORE_URL=nobody).returncode == 1
    assert run(*options, "get", "missing", STATESTORE_URL=url).returncode == 1


def test_options_add_to_the_environment(secured: tuple[str, list[str]], tmp_path: Path) -> None:
    """A user given as an option replaces the token that the AIO variables name."""
    url, options = secured
    variables = {"AIO_BROKER_HOSTNAME": "127.0.0.1", "AIO_BROKER_TCP_PORT": url.rpartition(":")[2]}
    done = run("get", "missing", *options, **variables, AIO_SAT_FILE=str(tmp_path / "token"))
    assert done.returncode == 1, done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--json", "get", "k"), "--json belongs after the command: statestore COMMAND --json"),
        (("--ulr", "x", "get", "k"), "Did you mean '--url'?"),
        (("--url", "mqtt://h", "serve"), "--url is for commands that are clients, not for serve"),
        (("--password-file", "p", "serve"), "--password-file belongs after the command: statestore serve"),
        (("--url", "mqtt://h", "check", "d"), "--url is for commands that are clients, not for check"),
        (("--url", "mqtt://h", "sessions", "list", "--data", "d"), "--url is for a server that runs, and --data"),
        (("get", "k", "--password", "secret"), "Did you mean '--password-file'?"),
        (("bench", "--username", "pump"), "--username is for the broker at --url; give both"),
        (("get", "k", "--url", "mqtt://h", "--tls-ca-file", "x"), "--tls-ca-file is given but tls is off; use mqtts://"),
        (("sessions", "list", "--url", "mqtt://h", "--tls-ca-file", "x"), "--tls-ca-file is given but tls is off"),
        (("get", "k", "--url", "mqtts://h", "--tls-ca-file", "/x"), "--tls-ca-file '/x' cannot be loaded"),
        (("get", "k", "--url", "mqtts://h", "--tls-cert-file", "/x"), "--tls-cert-file '/x' and the key in it"),
        (("get", "k", "--url", "mqtt://h", "--password-file", "x"), "--password-file needs a username"),
        (("delete", "k"), "No such command 'delete'; there are barrier, bench, check, counter, del, "),
        (("sessions", "rm", "k"), "No such command 'rm'; there are list, prune, remove, show"),
        (("get", "k", "--timeout", "soon"), "Invalid value for '--timeout': 'soon' is not a number of seconds"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(
    here: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], complaint: str
) -> None:
    """Options that do not fit together give exit code 2 and a hint with the names of options."""
    code, _, told = here(*arguments)
    assert code == 2
    assert complaint in " ".join(told.split())


def test_a_distrusted_broker_is_told_with_the_option(secured: tuple[str, list[str]]) -> None:
    """The advice about a broker that is not trusted names the option to type."""
    done = run("get", "k", "--url", secured[0])
    assert done.returncode == 9
    assert b"certificate is not trusted" in done.stderr
    assert done.stderr.endswith(b"; see --tls-ca-file\n")


@pytest.mark.parametrize("driver", ["native", "paho"])
@pytest.mark.parametrize("arguments", [("get", "k"), ("ping", "--wait", "20"), ("lock", "l", "--", "true")])
def test_a_wrong_password_is_told_from_a_lost_connection(
    tmp_path: Path, driver: str, arguments: tuple[str, ...]
) -> None:
    """Credentials that are refused end a command with 9, at once; a server with no place left, or none, with 4."""
    (tmp_path / "password").write_text("guess")
    with EmbeddedServer(passwords={"pump": "river-3-otter"}) as server:
        url = f"{server.url}?username=pump&password_file={tmp_path / 'password'}&driver={driver}"
        done = run("--url", url, *arguments)
        assert (done.returncode, done.stderr.count(b"\n")) == (9, 1)
        assert b"refused the connection: bad user name or password (0x86)" in done.stderr
    with EmbeddedServer(broker_limits=BrokerLimits(connections=1)) as server, StateStoreClient(server.url):
        wait = ("ping", "--wait", "0.1") if arguments[0] == "ping" else arguments
        assert run("--url", f"{server.url}?driver={driver}", "--timeout", "1", *wait).returncode == 4
