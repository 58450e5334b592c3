"""Authentication: passwords, tokens, their renewal, and what happens while they are verified."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.server_clients import TIMEOUT_S, Wire
from support.waiting import eventually, until

from statestore_client import InvalidArgumentError, NotAuthorizedError, StateStoreClient
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
    ReasonCode,
)
from statestore_client.server import AccessRules, BrokerLimits, EmbeddedServer
from statestore_client.server.broker import Admitted, Broker, Credentials, PendingAuth, Verdict
from statestore_client.server.runtime.fairness import PAUSE_S, Throttle
from statestore_client.server.runtime.observability.logs import RefusalLog
from statestore_client.server.runtime.security.passwords import remove_user, set_password
from statestore_client.server.runtime.security.security import VerifierThreads
from statestore_client.wire.instant import Instant

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


@pytest.mark.attack("MQTT", "a user name without a proof")
def test_a_name_without_a_proof_is_not_believed() -> None:
    """Without a file of passwords a user name gives no rights, whatever the rules say."""
    rules = AccessRules.parse("user pump\n  publish t")
    with EmbeddedServer(acl=rules) as server, Wire(server) as wire:
        wire.connect("c", username="pump", password=b"x")
        wire.send(Publish("t", b"", 1, packet_id=1))
        assert wire.receive() == Puback(1, NOT_AUTHORIZED)
    with EmbeddedServer(token_verifier=verifier) as server:
        assert shown(server, username="pump", password=b"x") == BAD_PASSWORD


@pytest.mark.attack("MQTT", "a password with NULs behind it")
def test_a_nul_in_a_password_counts(tmp_path: Path) -> None:
    """It is refused in a new password, and never right: at the end HMAC would not see it."""
    path = tmp_path / "users"
    set_password(path, "pump", b"secret")
    with EmbeddedServer(passwords=path) as server:
        for password in (b"secret\0", b"secret\0\0", b"\0secret"):
            assert shown(server, username="pump", password=password) == BAD_PASSWORD
        assert shown(server, username="pump", password=b"secret") == 0
    with pytest.raises(InvalidArgumentError, match="NUL"):
        set_password(path, "pump", b"secret\0")


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
            assert (type(connack), connack.reason_code) == (Connack, BAD_PASSWORD)
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
        assert (type(disconnect), disconnect.reason_code) == (Disconnect, ADMINISTRATIVE)


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returned", [False, True, 0, "", b"pump", ["pump"]])
@pytest.mark.attack("MQTT", "a token for which the verifier returns something that is no name")
def test_a_verifier_that_returns_no_name_admits_nobody(returned: object, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it means by it; the log says that the program is wrong."""
    with EmbeddedServer(token_verifier=lambda _: returned, acl=AccessRules.parse("user *\n  write *")) as server:  # type: ignore[arg-type, return-value]
        assert shown(server, **token(b"any")) == NOT_AUTHORIZED
    assert "token_verifier returned" in caplog.text


async def _permits(_client: str, _command: object) -> bool:
    return True


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("returned", [1, "yes", None, "coroutine"])
@pytest.mark.attack("MQTT", "a request for which `authorize` returns something that is no bool")
def test_a_function_that_returns_no_bool_permits_nothing(returned: object, caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine is true, for example; the log says what the program returned."""
    authorize: Any = _permits if returned == "coroutine" else lambda *_: returned
    with (
        EmbeddedServer(authorize=authorize) as server,
        StateStoreClient(server.url) as store,
        pytest.raises(NotAuthorizedError),
    ):
        store.set("k", "v")
    assert "authorize returned no bool" in caplog.text


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
            assert (type(answer), answer.reason_code) == (Disconnect, expected)


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
            assert (type(connack), connack.reason_code) == (Connack, 0)
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


# -- guessing from one address is slow, costs little, and disturbs nobody at another -----------------------------------

GUESSER, BYSTANDER = "127.0.0.1", "127.0.0.2"
WRONG, LATER = ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.CONNECTION_RATE_EXCEEDED


def guessed(server: EmbeddedServer, source: str, user: str, password: bytes) -> int:
    """The reason code that a password gets."""
    with Wire(server, source=source) as wire:
        connack = wire.connect("c-" + user, username=user, password=password)
        assert isinstance(connack, Connack)
        return connack.reason_code


@pytest.mark.attack("MQTT", "guess passwords")
def test_wrong_passwords_are_throttled_by_address() -> None:
    """After three wrong passwords an address waits, while clients that were right before, and other addresses, come
    in."""
    passwords = {"pump": "secret", "valve": "other"}
    with EmbeddedServer(passwords=passwords, broker_limits=BrokerLimits(failed_attempts=3)) as server:
        assert guessed(server, GUESSER, "pump", b"secret") == 0
        assert [guessed(server, GUESSER, "valve", b"%d" % n) for n in range(5)] == [WRONG] * 3 + [LATER] * 2
        assert guessed(server, GUESSER, "valve", b"other") == LATER
        assert guessed(server, GUESSER, "pump", b"secret") == 0
        assert guessed(server, BYSTANDER, "valve", b"wrong") == WRONG
        assert guessed(server, BYSTANDER, "valve", b"other") == 0
        server.clock.advance(PAUSE_S)
        assert [guessed(server, GUESSER, "pump", b"%d" % n) for n in range(2)] == [WRONG, LATER]
        server.clock.advance(3 * PAUSE_S)
        assert [guessed(server, GUESSER, "pump", b"%d" % n) for n in range(4)] == [WRONG] * 3 + [LATER]


def test_any_number_of_attempts() -> None:
    """A setting allows any number of attempts."""
    with EmbeddedServer(passwords={"pump": "secret"}, broker_limits=BrokerLimits(failed_attempts=0)) as server:
        assert {guessed(server, GUESSER, "pump", b"wrong") for _ in range(50)} == {WRONG}


def test_addresses_take_turns() -> None:
    """A client of another address is verified next, although forty of one address wait before it."""
    release, order = threading.Semaphore(0), []

    def slow(token: bytes) -> str | None:
        order.append(token)
        assert release.acquire(timeout=TIMEOUT_S)
        return "u"

    with EmbeddedServer(token_verifier=slow) as server, ExitStack() as stack:
        driver = server._running()._driver
        assert driver is not None
        assert driver._verifiers is not None

        def begin(token: bytes, source: str) -> Wire:
            wire = stack.enter_context(Wire(server, source=source))
            properties = ConnectProperties(authentication_method="K8S-SAT", authentication_data=token)
            wire.begin(token.decode(), properties=properties)
            return wire

        for number in range(44):
            begin(b"crowd-%d" % number, GUESSER)
        eventually(lambda: len(driver._verifiers or ()) == 40)
        bystander = begin(b"bystander", BYSTANDER)
        eventually(lambda: len(driver._verifiers or ()) == 41)
        release.release(4)
        eventually(lambda: b"bystander" in order, "it has a place")
        assert order.index(b"bystander") <= 5
        release.release(100)
        assert isinstance(bystander.receive(), Connack)


def test_the_addresses_that_are_remembered_are_bounded() -> None:
    """The remembered addresses are bounded: the oldest failures are forgotten, and each after its time, as a naive
    count says."""
    throttle = Throttle(5)
    for number in range(30_000):
        throttle.used(f"{number}", number / 30_000)
    assert len(throttle) == 10_000
    throttle.used("late", 100.0)
    assert len(throttle) == 1
    rng, throttle, now = random.Random(1), Throttle(3), 0.0
    used: dict[str, float] = {}
    for _ in range(5_000):
        now += rng.random()
        address = f"{rng.randrange(20)}"
        level = max(0.0, used.get(address, 0.0) - now / PAUSE_S)
        assert throttle.is_used_up(address, now) == (level > 2)
        if rng.random() < 0.5:
            throttle.used(address, now)
            used[address] = level + 1 + now / PAUSE_S


async def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    """CONNECTs whose clients have left do not pile up behind a verifier that hangs."""
    loop, release = asyncio.get_running_loop(), threading.Event()
    broker = Broker(random=random.Random(1))
    now = Instant(1.0, 1)
    done: list[PendingAuth] = []

    def hanging(credentials: Credentials) -> Verdict:
        assert release.wait(TIMEOUT_S)
        return Admitted("u")

    threads = VerifierThreads(
        loop,
        hanging,
        lambda verification, _: done.append(verification),
        clock=lambda: now,
        throttle=Throttle(20),
        refusals=RefusalLog(lambda: 1.0),
    )

    def begin() -> PendingAuth:
        connection = broker.connection_opened(now, peer="127.0.0.1:1")
        connection.verification = PendingAuth(connection, Credentials("c"), None)
        threads.start(connection.verification)
        return connection.verification

    staying = [begin() for _ in range(14)]
    for _ in range(5_000):
        broker.connection_lost(begin().connection, now)
        assert len(threads) < 600
    release.set()
    await until(lambda: len(done) == 14 and not len(threads))
    assert set(done) == set(staying)
