"""A broker whose machine is gone without a word: who concludes what from silence, and when."""

from __future__ import annotations

from random import Random

import attrs
import pytest
from machine_driver import MachineDriver

from statestore_client.core.actions import Drop, Ping
from statestore_client.core.silence import RoundTrip, Silence, Verdict
from statestore_client.errors import RequestTimeoutError
from statestore_client.wire.commands import Get, Set
from statestore_client.wire.messages import Connected, OneAddress

ONE, SEVERAL = 2.0, 0.8  # seconds of silence until a connection is given up, with so many addresses


@attrs.define
class Broker:
    """What came from the broker's machine, by the clock of :class:`MachineDriver`."""

    heard_at: float | None = 1000.0
    url: str = "mqtt://b:1883"


class Silent(MachineDriver):
    """A ready machine whose round trip is a millisecond, and the seconds at which it pings and gives up."""

    def __init__(self, broker: Broker | None = None, addresses: int = 1, **options: object) -> None:
        self.broker = broker or Broker()
        alternatives = OneAddress(several=addresses > 1)
        super().__init__(self.broker, alternatives=lambda: alternatives, **options)
        self.open()
        self.connect()
        for number in range(20):
            self.submit(Get(b"k"), number)
            self.time += 0.001
            self.hear()
            self.answer(b"$-1\r\n")
        self.at(self.time + 1.0)
        self.did: list[tuple[str, float]] = []

    def hear(self) -> None:
        self.broker.heard_at = self.time

    def run(self, seconds: float, late: float = 0.0) -> list[tuple[str, float]]:
        """Tick when asked, so much too late; what was done, with the seconds since then."""
        began = self.time
        while (deadline := self.machine.next_deadline()) is not None and deadline + late <= began + seconds:
            self.note(self.at(max(self.time, deadline + late)), began)
        self.note(self.at(began + seconds), began)
        return self.did

    def note(self, actions: list[object], began: float) -> None:
        for action in actions:
            if isinstance(action, (Ping, Drop)):
                self.did.append((type(action).__name__, round(self.time - began, 3)))


@pytest.mark.parametrize(("addresses", "gone_after"), [(1, ONE), (3, SEVERAL)])
def test_a_broker_that_owes_an_answer_is_pinged_and_then_left(addresses: int, gone_after: float) -> None:
    """A ping after 250 ms, the end after 2 s; with several addresses, where another one may answer, after 0.8 s."""
    driver = Silent(addresses=addresses)
    driver.submit(Set(b"k", b"v"), "set")
    assert driver.run(5.0) == [("Ping", 0.25), ("Drop", pytest.approx(gone_after + 0.03))]
    driver.lose()
    driver.reconnect()
    assert driver.outcomes["set"] == []
    assert driver.on_the_wire[0].again
    driver.answer(b"+OK\r\n", ("__ts", "1700000000000:0:s"))
    assert driver.outcome("set") is not None


def test_nothing_follows_from_the_silence_of_a_broker_that_owes_nothing() -> None:
    """An idle connection is silent as well, and costs no packet and no timer."""
    driver = Silent()
    assert driver.machine.next_deadline() is None
    assert driver.run(100.0) == []


@pytest.mark.parametrize("pause", [0.3, 0.6, 0.99])
@pytest.mark.parametrize("addresses", [1, 3])
def test_a_pausing_broker_keeps_its_clients(pause: float, addresses: int) -> None:
    """Whatever comes before the verdict is a sign of life: a PINGRESP, or a part of a large answer."""
    pause = pause if addresses == 1 else min(pause, SEVERAL - 0.01)
    driver = Silent(addresses=addresses)
    driver.submit(Set(b"k", b"v"), "set", timeout=None)
    for _ in range(20):
        driver.run(pause)
        driver.hear()
    assert "Drop" not in {name for name, _ in driver.did}
    assert ("Ping", 0.25) in driver.did


def test_a_late_timer_of_ones_own_is_not_the_silence_of_others() -> None:
    """A client that was stopped could neither ask nor read: its question gets its time, and it reads once more."""
    driver = Silent(addresses=3)
    driver.submit(Set(b"k", b"v"), "set", timeout=None)
    driver.run(0.3)  # pinged
    driver.note(driver.after(30.0), driver.time)  # stopped, and on the first look nothing was read yet
    driver.note(driver.after(0.2), driver.time)
    driver.hear()
    assert driver.run(0.25) == [("Ping", 0.25), ("Ping", 0.25)]


def test_a_client_whose_timers_are_a_little_late_still_gives_up() -> None:
    """A busy program ticks 90 ms too late each time."""
    driver = Silent(addresses=3)
    driver.submit(Set(b"k", b"v"), "set")
    assert driver.run(3.0, late=0.09)[-1][0] == "Drop"


def test_the_last_bytes_before_the_verdict_count() -> None:
    """The tick that is due reads nothing itself: there is one more after the shell has read."""
    driver = Silent(addresses=3)
    driver.submit(Set(b"k", b"v"), "set")
    driver.run(SEVERAL + 0.001)
    driver.hear()
    assert driver.run(0.2) == [("Ping", 0.25)]


def test_a_large_value_has_its_time_on_a_slow_line() -> None:
    """The ping waits behind the value: 4 MB take half a minute at 1 Mbit/s."""
    driver = Silent(addresses=3)
    driver.submit(Set(b"k", bytes(4_000_000)), "set", timeout=60.0)
    assert driver.run(31.9) == [("Ping", 0.25)]
    assert driver.run(2.0)[-1][0] == "Drop"


def test_subscribe_is_owed_an_answer() -> None:
    """A broker that falls silent after CONNACK is left as soon; there is no round trip yet."""
    broker = Broker()
    driver = MachineDriver(broker, alternatives=lambda: OneAddress(several=True))
    driver.open()
    driver.receive(Connected(False))
    assert Ping() in driver.after(1.0)
    assert Drop() not in driver.after(1.0)
    assert Drop() in driver.after(0.03)


def test_where_nobody_sees_bytes_nothing_follows_from_silence() -> None:
    """paho's loop is the application's: the time-out of a request stays the sign."""
    driver = Silent()
    driver.broker.heard_at = None
    driver.submit(Set(b"k", b"v"), "set")
    assert driver.run(9.9) == []
    assert driver.run(0.2) == [("Drop", pytest.approx(0.1, abs=0.01))]


def test_the_error_says_what_was_seen() -> None:
    """Not that the connection is up, which TCP believes for minutes."""
    driver = Silent(addresses=1)
    driver.submit(Set(b"k", b"v"), "set", timeout=1.2)
    driver.run(1.3)
    error = driver.outcome("set")
    assert isinstance(error, RequestTimeoutError)
    assert "no byte from mqtt://b:1883 for 1.2 s" in str(error)
    driver.submit(Set(b"k", b"v"), "other", timeout=5.0)
    driver.run(4.0)
    driver.lose()
    assert "no byte from mqtt://b:1883 for 2.0 s" in str(driver.states[-1][1])


def test_the_round_trip_is_that_of_rfc_6298() -> None:
    """Section 2, by hand: 100 ms, then 300 ms."""
    trip = RoundTrip()
    assert trip.patience == 1.0
    trip.measured(0.1)
    assert trip.patience == pytest.approx(0.1 + 4 * 0.05)
    trip.measured(0.3)
    assert trip.patience == pytest.approx(0.125 + 4 * (0.05 * 3 / 4 + 0.2 / 4))
    for _ in range(100):
        trip.measured(0.002)
    assert trip.patience == 0.25


def test_what_was_sent_twice_is_not_measured() -> None:
    """Nobody knows which of both was acknowledged (RFC 6298, section 3)."""
    driver = Silent()
    driver.submit(Set(b"k", b"v"), "set", timeout=100.0)
    driver.time += 50.0
    driver.cut()
    driver.puback()
    assert driver.machine.request_table.silence.round_trip.patience == 0.25


@pytest.mark.parametrize("seed", range(200))
def test_no_schedule_of_pauses_and_late_timers_costs_a_connection(seed: int) -> None:
    """A broker that answers any question within 0.7 s, and a client that stands still now and then."""
    random = Random(seed)
    silence, has_others = Silence(ONE), random.choice((False, True))
    now, heard_at, answer_at, in_socket = 1000.0, 1000.0, None, False
    silence.expect(now)
    end = now + 60.0
    while now < end:
        now = silence.deadline + random.choice((0.0, 0.001, 0.05, random.uniform(0, 5)))
        if answer_at is not None and answer_at <= now:
            in_socket, answer_at = True, None
        verdict = silence.check(now, heard_at, 1000.0, 0, has_others=has_others)
        assert verdict is not Verdict.GONE
        if verdict is Verdict.PING:
            answer_at = now + random.uniform(0, 0.7)
        if in_socket:  # the shell reads after the tick
            heard_at, in_socket = now, False
