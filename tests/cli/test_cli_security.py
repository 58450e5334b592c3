"""``statestore passwd`` and the secured ``statestore serve``, run as users run them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.keys import Certificates
from support.namespaces import with_mounted_file

from statestore_client import (
    ConnectionLostError,
    ConnectRefusedError,
    NotAuthorizedError,
    QuotaExceededError,
    StateStoreClient,
)

#: A process for each command, and a server for most tests.
pytestmark = pytest.mark.ci

COMMAND = [sys.executable, "-m", "statestore_client.cli"]


def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """``statestore ARGUMENTS``."""
    return subprocess.run([*COMMAND, *map(str, arguments)], input=stdin, capture_output=True, timeout=60)


@contextmanager
def serving(*arguments: str | Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``statestore serve`` on a free port: its URL and its process."""
    command = [*COMMAND, "serve", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().removeprefix("listening on "), process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


def test_passwords_are_set_and_removed(tmp_path: Path) -> None:
    """``passwd`` reads a password from standard input and stores its hash in a file that only its owner can read."""
    users = tmp_path / "users"
    assert run("passwd", users, "pump", "--stdin", stdin=b"secret\n").returncode == 0
    assert run("passwd", users, "valve", "--stdin", stdin="gehéim".encode()).returncode == 0
    text = users.read_text()
    assert [line.partition(":")[0] for line in text.splitlines()] == ["pump", "valve"]
    assert "secret" not in text
    assert users.stat().st_mode & 0o777 == 0o600
    assert run("passwd", users, "pump", "--delete").returncode == 0
    for file in users, tmp_path / "nowhere":
        done = run("passwd", file, "pump", "--delete")
        assert (done.returncode, done.stderr.decode()) == (1, f"statestore: no user 'pump' in {file}\n")


@pytest.mark.parametrize(
    ("user", "stdin", "complaint"),
    [
        ("a:$b", b"x", b"is not a name for a user"),
        ("pump", b"", b"an empty password protects nothing"),
        ("pump", b"\xff", b"the password is not UTF-8 text"),
    ],
)
def test_what_passwd_refuses(tmp_path: Path, user: str, stdin: bytes, complaint: bytes) -> None:
    """What ``passwd`` refuses gives exit code 2 and one line, and nothing is written."""
    done = run("passwd", tmp_path / "users", user, "--stdin", stdin=stdin)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (tmp_path / "users").exists()


@pytest.mark.machine
def test_passwd_says_why_a_mounted_file_cannot_be_replaced(tmp_path: Path) -> None:
    """Of a file that is mounted alone ``passwd`` says so, leaves it as it is, and leaves nothing beside it."""
    users, mounted = tmp_path / "users", tmp_path / "volume" / "users"
    mounted.parent.mkdir()
    users.write_text("# nobody yet\n")
    command = with_mounted_file(users, mounted, *COMMAND, "passwd", str(mounted), "pump", "--stdin")
    done = subprocess.run(command, input=b"secret", capture_output=True, timeout=60)
    assert done.returncode == 2
    assert b"volume/users: a file that is mounted alone cannot be replaced; mount its directory" in done.stderr
    assert users.read_text() == "# nobody yet\n"
    assert os.listdir(mounted.parent) == ["users"]


@pytest.mark.machine
@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--password-file", "passwords not changed"),
        ("--acl-file", "access rules not changed"),
        ("--tls-cert-file", "certificates not changed"),
    ],
)
def test_a_server_says_that_a_mounted_file_was_replaced(
    tmp_path: Path, certificates: Certificates, option: str, complaint: str
) -> None:
    """A server to which a file is mounted alone does not see the one that replaces it, and its log says what to do."""
    file, mounted = tmp_path / "file", tmp_path / "mounted"
    texts = {"--tls-cert-file": Path(certificates.server_file).read_text(), "--acl-file": "everybody\n read *\n"}
    file.write_text(texts.get(option, ""))
    more = ["--tls-key-file", certificates.server_key_file] if option == "--tls-cert-file" else []
    arguments = ["serve", "--port", "0", "--log-json", option, str(mounted), *more]
    with subprocess.Popen(
        with_mounted_file(file, mounted, *COMMAND, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith(b"listening on")
            (tmp_path / "new").write_text(file.read_text())
            (tmp_path / "new").rename(file)
            line = json.loads(process.stderr.readline())
        finally:
            process.terminate()
    assert (line["level"], line["event"]) == ("error", complaint)
    assert line["reason"].startswith(f"{mounted} was replaced or removed where it is mounted from")


def test_passwd_asks_twice(tmp_path: Path) -> None:
    """At a terminal ``passwd`` asks twice without showing the password, and refuses two different ones."""
    users = tmp_path / "users"
    terminal, other_end = pty.openpty()
    ends = {"stdin": other_end, "stdout": other_end, "stderr": other_end}
    process = subprocess.Popen([*COMMAND, "passwd", str(users), "pump"], **ends, start_new_session=True)
    os.close(other_end)
    shown = b""
    for prompts, line in enumerate([b"secret\n", b"sacret\n", b"secret\n", b"secret\n"], 1):
        while shown.count(b": ") < prompts + (b"Error" in shown):
            shown += os.read(terminal, 1000)
        os.write(terminal, line)
    assert process.wait(10) == 0
    os.close(terminal)
    assert b"secret" not in shown
    assert users.read_text().startswith("pump:$scrypt$")


def test_serve_with_everything(tmp_path: Path) -> None:
    """TLS, passwords and rules work together, and SIGHUP reads new rules at once."""
    certificates = Certificates(tmp_path)
    users, rules = tmp_path / "users", tmp_path / "rules"
    run("passwd", users, "pump", "--stdin", stdin=b"secret")
    rules.write_text("user pump\n  write a\n  read *\n")
    options: dict[str, str] = {"username": "pump", "tls_ca_file": certificates.ca_file}
    files = ["--tls-cert-file", certificates.server_file, "--tls-key-file", certificates.server_key_file]
    with serving(*files, "--password-file", users, "--acl-file", rules) as (url, process):
        assert url.startswith("mqtts://127.0.0.1:")
        with StateStoreClient(url, password="secret", **options) as store:
            store.set("a", "1")
            with pytest.raises(NotAuthorizedError):
                store.set("b", "1")
            rules.write_text("user pump\n  write b\n  read *\n")
            process.send_signal(signal.SIGHUP)
            while True:  # the answer may still be that of the old rules
                try:
                    store.set("b", "1")
                    break
                except NotAuthorizedError:
                    continue
            with pytest.raises(NotAuthorizedError):
                store.set("a", "2")
        with pytest.raises(ConnectRefusedError):
            StateStoreClient(url, password="wrong", **options).open()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "not authorized client='statestore-client-" in process.stderr.read()


@pytest.mark.parametrize("options", [("--verbose",), ("--log-json",)])
def test_serve_says_who_was_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Wrong passwords, refusals by rules, and quotas are each one line on standard error, without a password or a
    value. Connections and disconnections are logged with --verbose only."""
    users, rules = tmp_path / "users", tmp_path / "rules"
    run("passwd", users, "pump", "--stdin", stdin=b"s3cret")
    rules.write_text("user pump\n  write a*\n  read *\n")
    files = ("--password-file", users, "--acl-file", rules, "--max-keys", "1")
    with serving(*files, *options) as (url, process):
        with pytest.raises(ConnectRefusedError):
            StateStoreClient(url, client_id="guesser", username="pump", password="wr0ng").open()
        with StateStoreClient(url, client_id="pump-7", username="pump", password="s3cret") as store:
            store.set("a1", "v4lue")
            with pytest.raises(NotAuthorizedError):
                store.set("b\n1", "v4lue")
            with pytest.raises(QuotaExceededError):
                store.set("a2", "v4lue")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
    text = "\n".join(lines)
    if "--log-json" in options:
        told = [json.loads(line) for line in lines]
        assert {line["level"] for line in told} == {"warning"}
        assert [line["event"] for line in told] == ["refused", "not authorized", "no room"]
        assert [line.get("what") for line in told] == [None, "b\n1", "a2"]
    else:
        told = [" ".join(line.split(" ")[2:]) for line in lines]
        refusals = [
            line for line in told if not line.startswith(("listening ", "connected ", "disconnected ", "stopped "))
        ]
        assert [line.partition(" client=")[0] for line in refusals] == ["refused", "not authorized", "no room"]
        assert "client='guesser' user=None code='0x86'" in refusals[0]
        assert "client='pump-7' user='pump' action='write' what='b\\n1' peer='127.0.0.1:" in refusals[1]
        assert len(told) > 3
    assert not re.search("wr0ng|s3cret|v4lue", text)


def test_anonymous_clients(tmp_path: Path) -> None:
    """With a password file anonymous clients are refused, unless they are allowed."""
    users = tmp_path / "users"
    run("passwd", users, "pump", "--stdin", stdin=b"secret")
    with serving("--password-file", users) as (url, _), pytest.raises(ConnectRefusedError):
        StateStoreClient(url).open()
    with serving("--password-file", users, "--allow-anonymous") as (url, _), StateStoreClient(url) as store:
        store.set("k", "v")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tls-cert-file", "{file}"], "cannot be loaded: there is no certificate in"),
        (["--tls-ca-file", "{file}"], "TLS needs --tls-cert-file"),
        (["--tls-key-file", "{file}"], "TLS needs --tls-cert-file"),
        (["--tls-cert-file", "{file}", "--tls-key-file", "{file}"], "cannot be loaded"),
        (["--password-file", "{file}"], "file, line 2: a line is a user, a colon and a hash"),
        (["--acl-file", "{file}"], "file, line 2: 'nonsense' is not a word of this file"),
        (["--acl-file", "/nowhere"], "'/nowhere' does not exist"),
        (["--allow-anonymous"], "all clients are accepted"),
        (["--allow-anonymous", "--acl-file", "{file}"], "give --password-file, or leave it out"),
    ],
)
def test_what_serve_refuses(
    here: Callable[..., tuple[int, str, str]], tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    """``serve`` refuses a wrong file with exit code 2, its line and the reason, and never starts with less protection
    than asked for."""
    file = tmp_path / "file"
    file.write_text("\nnonsense\n")
    code, out, told = here("serve", "--port", "0", *[argument.format(file=file) for argument in arguments])
    assert (code, out) == (2, "")
    assert complaint in " ".join(told.split())


# -- who may reach a server that asks for nothing ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("cli-security"))


def test_revoked_certificates(certificates: Certificates, tmp_path: Path) -> None:
    """``--tls-crl-file`` refuses certificates on its lists, which are accepted without it."""
    certificates.revoke(lists := tmp_path / "lists", certificates.client_file)
    files = ["--tls-cert-file", certificates.server_file, "--tls-key-file", certificates.server_key_file]
    options = {"tls_cert_file": certificates.client_file, "tls_key_file": certificates.client_key_file}
    for more, comes_in in (([], True), (["--tls-crl-file", lists], False)):
        with serving(*files, "--tls-ca-file", certificates.ca_file, *more) as (url, _):
            store = StateStoreClient(url, tls_ca_file=certificates.ca_file, **options)
            if comes_in:
                with store:
                    assert store.set("k", b"v").applied
            else:
                with pytest.raises(ConnectionLostError, match="certificate revoked"):
                    store.open()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "broker.example.org"])
@pytest.mark.attack("commands", "a server that lets everybody in, by mistake")
def test_a_server_that_lets_everybody_in_stays_at_home(
    here: Callable[..., tuple[int, str, str]], certificates: Certificates, host: str
) -> None:
    """A server without credentials refuses to listen beyond this machine, with advice, unless --insecure is given."""
    with_tls = ["--tls-cert-file", certificates.server_file, "--tls-key-file", certificates.server_key_file]
    for options in ([], ["--allow-anonymous"], with_tls):
        code, _, told = here("serve", "--port", "0", "--host", host, *options)
        assert code == 2
        for option in ("--password-file", "--tls-ca-file", "--insecure", host):
            assert option in " ".join(told.split())


@pytest.mark.attack("commands", "a server that lets everybody in, by mistake")
def test_anonymous_clients_from_elsewhere_are_meant(here: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """A password file protects nothing where anonymous clients are let in, too."""
    users = tmp_path / "users"
    assert run("passwd", users, "pump", "--stdin", stdin=b"secret\n").returncode == 0
    code, _, told = here("serve", "--host", "0.0.0.0", "--password-file", str(users), "--allow-anonymous")
    assert (code, "--insecure" in told, "--allow-anonymous" in told) == (2, True, True)


def test_an_endpoint_without_tls_knows_no_certificates(
    here: Callable[..., tuple[int, str, str]], certificates: Certificates
) -> None:
    """``--tls-ca-file`` is refused as the only protection if one endpoint has no TLS."""
    files = ["--tls-cert-file", certificates.server_file, "--tls-key-file", certificates.server_key_file]
    files += ["--tls-ca-file", certificates.ca_file, "--host", "0.0.0.0"]
    for endpoints in (["--tls-port", "0"], ["--ws-port", "0"]):
        code, _, told = here("serve", "--port", "0", *files, *endpoints)
        assert (code, "--insecure" in told) == (2, True)
    with serving(*files, "--wss-port", "0") as (url, _):
        assert url.startswith("mqtts://0.0.0.0:")


@pytest.mark.parametrize(
    "options",
    [
        ["--host", "0.0.0.0", "--insecure"],
        ["--host", "localhost"],
        ["--host", "127.0.0.2"],
        ["--host", "0.0.0.0", "--password-file", "USERS"],
        ["--host", "0.0.0.0", "--password-file", "USERS", "--allow-anonymous", "--insecure"],
    ],
)
def test_servers_that_may_listen(tmp_path: Path, options: list[str]) -> None:
    """A server may listen on this machine, with passwords, or when --insecure says that this is meant."""
    users = tmp_path / "users"
    assert run("passwd", users, "pump", "--stdin", stdin=b"secret\n").returncode == 0
    with serving(*[str(users) if option == "USERS" else option for option in options]) as (url, _):
        assert url.startswith("mqtt://")
