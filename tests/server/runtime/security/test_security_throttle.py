"""Guessing from one address is slow, costs little, and disturbs nobody at another."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import ExitStack

from support.server_clients import TIMEOUT_S, Wire
from support.waiting import eventually, until

from statestore_client.mqtt.packets import Connack, ConnectProperties, ReasonCode
from statestore_client.server import BrokerLimits, EmbeddedServer
from statestore_client.server.broker import Admitted, Broker, Credentials, Verdict, Verification
from statestore_client.server.runtime.observability.refusal_log import RefusalLog
from statestore_client.server.runtime.security.verifier_threads import VerifierThreads
from statestore_client.server.runtime.throttle import PAUSE_S, Throttle
from statestore_client.wire.instant import Instant

GUESSER, BYSTANDER = "127.0.0.1", "127.0.0.2"
WRONG, LATER = ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.CONNECTION_RATE_EXCEEDED


def shown(server: EmbeddedServer, source: str, user: str, password: bytes) -> int:
    """The reason code that a password gets."""
    with Wire(server, source=source) as wire:
        connack = wire.connect("c-" + user, username=user, password=password)
        assert isinstance(connack, Connack)
        return connack.reason_code


def test_wrong_passwords_are_throttled_by_address() -> None:
    """After three wrong passwords an address waits, while clients that were right before, and other addresses, come
    in."""
    passwords = {"pump": "secret", "valve": "other"}
    with EmbeddedServer(passwords=passwords, broker_limits=BrokerLimits(failed_attempts=3)) as server:
        assert shown(server, GUESSER, "pump", b"secret") == 0
        assert [shown(server, GUESSER, "valve", b"%d" % n) for n in range(5)] == [WRONG] * 3 + [LATER] * 2
        assert shown(server, GUESSER, "valve", b"other") == LATER
        assert shown(server, GUESSER, "pump", b"secret") == 0
        assert shown(server, BYSTANDER, "valve", b"wrong") == WRONG
        assert shown(server, BYSTANDER, "valve", b"other") == 0
        server.clock.advance(PAUSE_S)
        assert [shown(server, GUESSER, "pump", b"%d" % n) for n in range(2)] == [WRONG, LATER]
        server.clock.advance(3 * PAUSE_S)
        assert [shown(server, GUESSER, "pump", b"%d" % n) for n in range(4)] == [WRONG] * 3 + [LATER]


def test_any_number_of_attempts() -> None:
    """A setting allows any number of attempts."""
    with EmbeddedServer(passwords={"pump": "secret"}, broker_limits=BrokerLimits(failed_attempts=0)) as server:
        assert {shown(server, GUESSER, "pump", b"wrong") for _ in range(50)} == {WRONG}


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
    done: list[Verification] = []

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

    def begin() -> Verification:
        connection = broker.connection_opened(now, peer="127.0.0.1:1")
        connection.verification = Verification(connection, Credentials("c"), None)
        threads.start(connection.verification)
        return connection.verification

    staying = [begin() for _ in range(14)]
    for _ in range(5_000):
        broker.connection_lost(begin().connection, now)
        assert len(threads) < 600
    release.set()
    await until(lambda: len(done) == 14 and not len(threads))
    assert set(done) == set(staying)
