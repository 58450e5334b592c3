"""``statestore serve``: endpoints, limits, figures and the log, from its options."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
from click.testing import CliRunner
from support.websocket_wire import RawWebSocket

from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import QuotaExceededError, StateStoreClient
from statestore_client.cli.serve import broker_limits_of, limit_options, serve, store_limits_of
from statestore_client.mqtt.packets import Connack
from statestore_client.server import BrokerLimits, StoreLimits
from statestore_client.server.broker import WHEN_FULL

COMMAND = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0"]


def test_endpoints_limits_and_the_log() -> None:
    """Every endpoint is printed and works, options set their limits, and the log has one JSON object per line."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory(prefix="endpoints") as folder:
        options = [
            "--ws-port",
            "0",
            "--unix-socket",
            str(Path(folder, "s")),
            "--metrics-port",
            "0",
            "--sys-interval",
            "1",
        ]
        options += ["--max-connections-per-address", "1", "--max-keys", "1", "--max-observations-per-client", "1"]
        process = subprocess.Popen(
            [*COMMAND, *options, "--verbose", "--log-json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard)),
        )
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline().decode().split() for _ in range(4)]
            urls = {line[-1].partition(":")[0]: line[-1] for line in lines}
            assert list(urls) == ["mqtt", "ws", "unix", "http"]
            with StateStoreClient(urls["ws"]) as store:
                store.set("a", b"1")
                with pytest.raises(QuotaExceededError):
                    store.set("b", b"1")
                with RawWebSocket(int(urls["ws"].split(":")[2].partition("/")[0])) as web:
                    refused = web.connect("second")
                    assert isinstance(refused, Connack)
                    assert refused.reason_code == 0x97
            with urllib.request.urlopen(urls["http"], timeout=10) as response:  # noqa: S310 - our own server
                assert b"statestore_store_keys 1\n" in response.read()
            limits = Path(f"/proc/{process.pid}/limits")
            if limits.exists():
                assert f"{hard} {hard}" in " ".join(limits.read_text().split())
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=10)
    assert process.returncode == 0
    events = [json.loads(line) for line in log.splitlines()]
    assert {"listening", "connected", "refused", "disconnected", "stopped"} <= {event["event"] for event in events}


def test_a_log_without_clients_has_the_changes_of_the_cluster() -> None:
    """Without --verbose: which server is active, and no connection of a client."""
    with EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster:
        arguments = [*COMMAND, "--log", ",".join(cluster.seeds), "--id", "a", "--log-json"]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert process.stdout is not None
            with StateStoreClient(process.stdout.readline().decode().split()[-1]) as store:
                store.set("a", b"1")
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert [json.loads(line)["event"] for line in log.splitlines()] == ["promoted", "handed over"]


def test_limits_are_announced() -> None:
    """CONNACK tells every client what the server takes less of than MQTT 5.0 has."""
    options = {"--max-packet-size": 100, "--max-keep-alive": 30, "--receive-maximum": 5, "--max-qos": 1}
    options |= {"--max-session-expiry": 9, "--without": "retain"}
    arguments = [part for option in options.items() for part in map(str, option)]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--without", "subscription-ids"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().decode().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(bytes.fromhex("10 13 0004 4D515454 05 02 003C 05 11 0000FFFF 0001 63"))
            connack = sock.recv(100)
    finally:
        process.terminate()
        process.communicate(timeout=10)
    assert connack[2:4] == b"\0\0"
    for announced in ("13 001E", "27 00000064", "21 0005", "24 01", "11 00000009", "25 00", "29 00"):
        assert bytes.fromhex(announced) in connack


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--wss-port", "0"], "--wss-port need --tls-cert-file"),
        (
            ["--tls-cert-file", __file__, "--tls-key-file", __file__, "--tls-crl-file", __file__],
            "--tls-crl-file needs --tls-ca-file",
        ),
        (["--unix-socket", os.devnull], "is not a socket"),
        (["--unix-socket", "x" * 200], "xxx: AF_UNIX path too long"),
        (["--unix-socket", "/nowhere/at/all"], "/nowhere/at/all: No such file"),
        (["--insecure", "--host", "x" * 300], "is not a host name"),
        (["--host", ""], "'--host': it is empty"),
        (["--metrics-port", "0", "--metrics-host", ""], "'--metrics-host': it is empty"),
        (["--metrics-host", "127.0.0.1"], "--metrics-host needs --metrics-port"),
        (["--ws-origin", "https://a.example"], "--ws-origin needs --ws-port or --wss-port"),
        (["--unix-socket", ""], "'--unix-socket': it is empty"),
        (["--data", ""], "'--data': it is empty"),
        (["--ws-port", "0", "--ws-origin", ""], "is neither like https://host"),
        (["--ws-port", "0", "--ws-origin", "https://a/page"], "is neither like https://host"),
        (["--sys-interval", "nan"], "'nan' is not a number of seconds"),
        (["--sys-interval", "inf"], "'inf' is not a number of seconds"),
        (["--port", "-1"], "-1 is not in the range"),
        (["--ws-port", "65536"], "65536 is not in the range"),
        (["--max-packet-size", "1"], "1 is not in the range"),
        (["--max-inflight", "65536"], "65536 is not in the range"),
        (["--max-connections", "0"], "0 is not in the range"),
        (["--max-keys", "many"], "'many' is not a valid integer"),
    ],
)
def test_options_that_cannot_be(here: Callable[..., tuple[int, str, str]], options: list[str], complaint: str) -> None:
    """Impossible options, and an empty host (all interfaces) or path (this one), give exit code 2 and the reason."""
    code, _, told = here("serve", "--port", "0", *options)
    assert (code, "Traceback" in told) == (2, False)
    assert complaint in " ".join(told.split())


#: Every option that sets a limit, and its field.
LIMITS = {
    "--max-packet-size": "packet_bytes",
    "--max-connections": "connections",
    "--max-connections-per-user": "connections_per_user",
    "--max-connections-per-address": "connections_per_address",
    "--max-bytes-per-second": "received_bytes_per_s",
    "--max-messages-per-second": "received_messages_per_s",
    "--receive-maximum": "receive_maximum",
    "--max-inflight": "in_flight",
    "--max-inflight-bytes": "in_flight_bytes",
    "--max-queued-messages": "queued_messages",
    "--max-queued-bytes": "queued_bytes",
    "--max-held-bytes": "held_bytes",
    "--max-sessions": "sessions",
    "--max-sessions-per-user": "sessions_per_user",
    "--max-session-expiry": "session_expiry_s",
    "--max-subscriptions": "subscriptions_per_session",
    "--max-retained-messages": "retained_messages",
    "--max-retained-bytes": "retained_bytes",
    "--max-keep-alive": "keep_alive_s",
    "--max-qos": "maximum_qos",
    "--sys-interval": "sys_interval_s",
    "--max-keys": "max_keys",
    "--max-bytes": "max_bytes",
    "--max-keys-per-user": "max_keys_per_user",
    "--max-bytes-per-user": "max_bytes_per_user",
    "--max-observations": "max_observations",
    "--max-observations-per-user": "max_observations_per_user",
    "--max-observations-per-client": "max_observations_per_client",
    "--max-observation-bytes": "max_observation_bytes",
    "--max-observation-bytes-per-client": "max_observation_bytes_per_client",
    "--max-observation-bytes-per-user": "max_observation_bytes_per_user",
}


def limits_of(*arguments: str) -> list[Any]:
    """Those of the broker and of the store that options make; none if the options are refused."""
    found: list[Any] = []

    @click.command()
    @limit_options
    def command(**options: Any) -> int:
        found.extend((broker_limits_of(options), store_limits_of(options)))
        return 0

    CliRunner().invoke(command, arguments)
    return found


@pytest.mark.parametrize("option", LIMITS)
def test_each_option_sets_its_limit(option: str) -> None:
    """Each option sets its own limit and no other one."""
    number = 1 if option == "--max-qos" else 2345
    found = limits_of(option, str(number))
    changed = [
        (name, value)
        for limits, usual in zip(found, (BrokerLimits(), StoreLimits()), strict=True)
        for name, value in attrs.asdict(limits, recurse=False).items()
        if value != getattr(usual, name)
    ]
    assert (LIMITS[option], number) in changed
    # How many messages a client is told to send is at most as many as it may.
    assert {name for name, _ in changed} <= {LIMITS[option], "usual_receive_maximum"}


def test_what_happens_when_a_queue_is_full_can_be_chosen() -> None:
    """An option chooses what happens when a queue is full; the default drops the new message, and other words are
    refused."""
    assert [limits_of("--when-full", choice)[0].when_full for choice in WHEN_FULL] == list(WHEN_FULL)
    assert limits_of()[0].when_full == "drop-new"
    assert limits_of("--when-full", "drop") == []


def test_no_limit_is_forgotten() -> None:
    """Each number of the command is a limit of the server, but for ports and what a site tells others."""
    numbers = (click.IntRange, click.FloatRange)
    found = {each.opts[0] for each in serve.params if isinstance(each.type, numbers)}
    assert {name for name in found if not name.endswith("port") and not name.startswith("--site-")} == set(LIMITS)


_NODES = "a=127.0.0.1:21000,b=127.0.0.1:21010,c=127.0.0.1:21020"
_FAR = "a=10.255.0.1,b=10.255.0.2,c=10.255.0.3"
_CLUSTER = ["--cluster", _NODES, "--id", "a"]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--persist", "asked"], "--persist says which keys are kept in --data DIR; give both"),
        (
            ["--data", "new", "--persist", "all", "--persist", "x*"],
            "--persist: persist is all, asked, none, or patterns",
        ),
        (["--data", "new", "--persist", "[x"], "--persist: '[x' is not a pattern of keys"),
        (["--log-setting", "a=1"], "--log-setting needs --log URLS or --cluster NODES"),
        (
            [*_CLUSTER, "--data", "new", "--log-setting", "heartbeat_s=0.2"],
            "heartbeat_s (0.2) is at most half of election_timeout_min_s (0.2)",
        ),
        ([*_CLUSTER, "--data", "new", "--log-setting", "heartbeat=1"], "--log-setting: NAME=VALUE is wanted"),
        (["--log", "tcp://127.0.0.1:1", "--id", "a", "--log-setting", "a=1"], "--log-setting is of --cluster"),
        (["--id", "a"], "--id needs --log URLS or --cluster NODES"),
        (["--internal", "127.0.0.1:1"], "--internal needs --log URLS or --cluster NODES"),
        (["--cluster-bind", "127.0.0.1"], "--cluster-bind needs --log URLS or --cluster NODES"),
        ([*_CLUSTER, "--log", "tcp://127.0.0.1:1"], "--cluster has a log of its own: leave out --log"),
        (["--cluster", _NODES, "--data", "new"], "--cluster needs --id NAME"),
        (_CLUSTER, "--cluster needs --data DIR"),
        ([*_CLUSTER, "--data", "new", "--internal", "127.0.0.1:0"], "--internal is of --log"),
        ([*_CLUSTER, "--data", "new", "--persist", "none"], "servers of a log keep all keys"),
        (["--cluster", _NODES, "--id", "d", "--data", "new"], "--cluster: 'd' is none of the servers"),
        (["--cluster", "a=10.0.0.1,b=10.0.0.2", "--id", "a", "--data", "new"], "3 to 9 servers, not 2"),
        (["--cluster", _FAR, "--id", "a", "--data", "new"], "give all of them the same --cluster-key-file"),
        (["--log", "tcp://127.0.0.1:1", "--id", "a", "--data", "new"], "leave out --data"),
        (["--log", "tcp://127.0.0.1:1", "--id", "a", "--cluster-bind", "::1"], "with --log it is --internal"),
        (["--log", "tcp://127.0.0.1:1", "--id", "a", "--internal", "x"], "--internal is HOST:PORT, not 'x'"),
        (
            ["--log", "tcp://127.0.0.1:1", "--id", "a", "--internal", "10.0.0.1:1"],
            "could pass for one of these servers",
        ),
    ],
)
def test_what_keeps_the_data_is_said_in_options_that_go_together(
    options: list[str], advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be, or not together, is a usage error that says what to do, and no directory is made."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(serve, ["--port", "0", *options])
    assert done.exit_code == 2
    assert not Path("new").exists()
    assert advice in " ".join(done.output.split())
