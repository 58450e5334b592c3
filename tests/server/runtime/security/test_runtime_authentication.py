"""Authentication: passwords, tokens, their renewal, and what happens while they are verified."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server_clients import TIMEOUT_S, Wire
from support.waiting import eventually

from statestore_client.mqtt.packets import (
    Auth,
    AuthProperties,
    Connack,
    ConnectProperties,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
)
from statestore_client.server import AccessRules, BrokerLimits, EmbeddedServer
from statestore_client.server.runtime.security.password_file import remove_user, set_password

#: Reason codes as the standard numbers them (MQTT 5.0, 2.4).
IMPLEMENTATION_SPECIFIC, BAD_PASSWORD, NOT_AUTHORIZED, UNAVAILABLE, BAD_METHOD, ADMINISTRATIVE = (
    0x83, 0x86, 0x87, 0x88, 0x8C, 0x98,
)  # fmt: skip
SAT = "K8S-SAT"


def shown(server: EmbeddedServer, client_id: str = "c", *, version: int = 5, **options: object) -> int:
    """The reason code that these credentials get."""
    with Wire(server, version=version) as wire:
        connack = wire.connect(client_id, **options)
        assert isinstance(connack, Connack)
        return connack.reason_code


def token(data: bytes | None, method: str = SAT) -> dict[str, object]:
    """CONNECT with enhanced authentication."""
    return {"properties": ConnectProperties(authentication_method=method, authentication_data=data)}


def verifier(token: bytes) -> str | None:
    """``good-USER`` proves USER."""
    if token == b"unlucky":
        raise OSError("the API server does not answer")
    return token[5:].decode() if token.startswith(b"good-") else None


# -- passwords ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_passwords(version: int) -> None:
    """The right password is accepted; a wrong one, an unknown user and no password at all get the same refusal."""
    with EmbeddedServer(passwords={"pump": "secret"}) as server:
        assert shown(server, version=version, username="pump", password=b"secret") == 0
        assert shown(server, version=version, username="pump", password=b"wrong") == BAD_PASSWORD
        assert shown(server, version=version, username="pump") == BAD_PASSWORD
        assert shown(server, version=version, username="nobody", password=b"secret") == BAD_PASSWORD
        assert shown(server, version=version) == NOT_AUTHORIZED


def test_anonymous_clients_where_they_are_allowed() -> None:
    """Anonymous clients come in where they are allowed, and a wrong password is refused all the same."""
    with EmbeddedServer(passwords={"pump": "secret"}, allow_anonymous=True) as server:
        assert shown(server) == 0
        assert shown(server, username="pump", password=b"wrong") == BAD_PASSWORD


def test_a_name_without_a_proof_is_not_believed() -> None:
    """Without a file of passwords a user name gives no rights, whatever the rules say."""
    rules = AccessRules.parse("user pump\n  publish t")
    with EmbeddedServer(acl=rules) as server, Wire(server) as wire:
        wire.connect("c", username="pump", password=b"x")
        wire.send(Publish("t", b"", 1, packet_id=1))
        assert wire.receive() == Puback(1, NOT_AUTHORIZED)
    with EmbeddedServer(token_verifier=verifier) as server:
        assert shown(server, username="pump", password=b"x") == BAD_PASSWORD


def test_many_clients_with_passwords(tmp_path: Path) -> None:
    """Other clients are served while passwords are hashed, and a password that was right once is verified quickly."""
    path = tmp_path / "users"
    set_password(path, "pump", b"secret")
    with EmbeddedServer(passwords=path) as server, Wire(server) as first:
        first.connect("first", username="pump", password=b"secret")
        guesses = [Wire(server) for _ in range(10)]
        for number, wire in enumerate(guesses):
            wire.begin(f"guess{number}", username="pump", password=b"%d" % number)
        for number in range(50):
            assert shown(server, f"c{number}", username="pump", password=b"secret") == 0
        first.send(Pingreq())
        assert first.receive() == Pingresp()
        for wire in guesses:
            connack = wire.receive()
            assert isinstance(connack, Connack)
            assert connack.reason_code == BAD_PASSWORD
            wire.sock.close()


def test_files_change_while_the_server_runs(tmp_path: Path) -> None:
    """A new password counts at once and keeps old connections, and a removed user is disconnected."""
    path = tmp_path / "users"
    set_password(path, "pump", b"old")
    with EmbeddedServer(passwords=path) as server, Wire(server) as wire:
        wire.connect("c", username="pump", password=b"old")
        set_password(path, "pump", b"new")
        assert shown(server, "d", username="pump", password=b"new") == 0
        assert shown(server, "d", username="pump", password=b"old") == BAD_PASSWORD
        wire.send(Pingreq())
        assert wire.receive() == Pingresp()
        assert remove_user(path, "pump")
        disconnect = wire.receive()
        assert isinstance(disconnect, Disconnect)
        assert disconnect.reason_code == ADMINISTRATIVE


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def verifying() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(token_verifier=verifier) as server:
        yield server


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (token(b"good-pump"), 0),
        (token(b"bad"), NOT_AUTHORIZED),
        (token(b""), NOT_AUTHORIZED),
        (token(None), NOT_AUTHORIZED),
        (token(b"good-pump", "SCRAM-SHA-256"), BAD_METHOD),
        (token(b"good-pump", "k8s-sat"), BAD_METHOD),
        (token(b"unlucky"), UNAVAILABLE),
        ({}, NOT_AUTHORIZED),
    ],
)
def test_tokens(verifying: EmbeddedServer, options: dict[str, object], code: int) -> None:
    """A good token of the right method is accepted, and the code asks to try again if nobody can verify it."""
    assert shown(verifying, **options) == code


def test_methods_without_a_verifier(server: EmbeddedServer) -> None:
    """Without a verifier every method is unknown."""
    assert shown(server, **token(b"good-pump")) == BAD_METHOD


@pytest.mark.parametrize(
    ("method", "data", "expected"),
    [
        (SAT, b"good-pump", Auth(0x00, AuthProperties(SAT))),
        (SAT, b"good-other", NOT_AUTHORIZED),
        (SAT, b"bad", NOT_AUTHORIZED),
        (SAT, b"unlucky", IMPLEMENTATION_SPECIFIC),
        ("other", b"good-pump", BAD_METHOD),
    ],
)
def test_renewals(verifying: EmbeddedServer, method: str, data: bytes, expected: Packet | int) -> None:
    """AUTH 0x19 with another token of the same user is accepted, and anything else ends the connection."""
    with Wire(verifying) as wire:
        connack = wire.connect("c", **token(b"good-pump"))
        assert isinstance(connack, Connack)
        assert connack.properties.authentication_method == SAT
        wire.send(Auth(0x19, AuthProperties(method, data)))
        answer = wire.receive()
        if isinstance(expected, Auth):
            assert answer == expected
        else:
            assert isinstance(answer, Disconnect)
            assert answer.reason_code == expected


def test_a_slow_verifier_disturbs_nobody() -> None:
    """A slow verifier runs in threads, at most four at once: others are served, and packets behind CONNECT wait."""
    release = threading.Event()
    running: list[bytes] = []

    def slow(token: bytes) -> str | None:
        running.append(token)
        assert release.wait(TIMEOUT_S)
        return "u"

    with EmbeddedServer(token_verifier=slow, passwords={"pump": "x"}) as server, Wire(server) as other:
        other.connect("other", username="pump", password=b"x")
        wires = [Wire(server) for _ in range(6)]
        for number, wire in enumerate(wires):
            connect = token(b"t%d" % number)
            wire.begin(f"c{number}", **connect)
        eventually(lambda: len(running) == 4, "four verifiers run")
        other.send(Pingreq())
        assert other.receive() == Pingresp()
        wires[5].sock.close()
        release.set()
        for wire in wires[:5]:
            connack = wire.receive()
            assert isinstance(connack, Connack)
            assert connack.reason_code == 0
            wire.sock.close()


def test_a_client_goes_on_while_its_new_token_is_verified() -> None:
    """A client is served while its new token is verified (MQTT 5.0, 4.12.1)."""
    release = threading.Event()

    def slow(token: bytes) -> str | None:
        assert token == b"first" or release.wait(TIMEOUT_S)
        return "u"

    with EmbeddedServer(token_verifier=slow) as server, Wire(server) as wire:
        wire.connect("c", **token(b"first"))
        wire.send(Auth(0x19, AuthProperties(SAT, b"second")), Pingreq())
        assert wire.receive() == Pingresp()
        release.set()
        assert wire.receive() == Auth(0x00, AuthProperties(SAT))


def test_a_verifier_that_never_returns() -> None:
    """If a verifier never returns, CONNECT is answered in time, and the server can stop."""
    release = threading.Event()

    def hanging(token: bytes) -> str | None:
        release.wait(TIMEOUT_S)
        return None

    limits = BrokerLimits(connect_timeout_s=0.2)
    with EmbeddedServer(token_verifier=hanging, broker_limits=limits) as server:
        assert shown(server, **token(b"x")) == UNAVAILABLE
    release.set()
