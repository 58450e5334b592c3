"""The state store after a crash: keys, versions, fencing tokens, what is left of expiries, and answers given before."""

from __future__ import annotations

import pytest
from store_life import WALL_MS, Life
from support.durable_broker import BOOT, MemoryStorage

from statestore_client.errors import FencingTokenTooOldError, RequestClockSkewError
from statestore_client.server.journal import Changes, DamagedRecordError, Stream, Subject, WriteBatch, seal
from statestore_client.server.store import RequestContext
from statestore_client.wire.commands import Condition, Del, Get, Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import MISSING, OK, Found, Refused


@pytest.fixture
def life() -> Life:
    return Life(MemoryStorage())


def test_keys_and_versions_survive(life: Life) -> None:
    """Keys and versions survive, with replaced values and deletions."""
    life.apply(Set(b"a", b"old"))
    version = life.apply(Set(b"a", b"\0new")).version
    life.apply(Set(b"b", b"b"))
    life.apply(Del(b"b"))
    life = life.next()
    found = life.apply(Get(b"a"))
    assert (found.reply, found.version) == (Found(b"\0new"), version)
    assert life.apply(Get(b"b")).reply is MISSING
    assert life.storage.count() == {"keys": 1, "clock": 1}


def test_fences_survive(life: Life) -> None:
    """After the restart an older token is refused as before."""
    new, old = HlcTimestamp(WALL_MS, 7, "b"), HlcTimestamp(WALL_MS, 6, "a")
    life.apply(Set(b"k", b"1"), new)
    life = life.next()
    refused = life.apply(Set(b"k", b"2"), old).reply
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, FencingTokenTooOldError)
    assert life.apply(Set(b"k", b"3"), new).reply is OK


def test_expiry_goes_on(life: Life) -> None:
    """A key has what was left of its expiry, and one whose time came while the server was away is gone before it is
    read."""
    life.apply(Set(b"short", b"", expiry_ms=10_000))
    life.apply(Set(b"long", b"", expiry_ms=60_000))
    life = life.next(after_s=40)
    assert life.apply(Get(b"short")).reply is MISSING
    life.store.tick(life.now)
    deadline = life.store.next_deadline()
    assert deadline == pytest.approx(life.now.monotonic + 20)
    life.advance(20)
    life.store.tick(life.now)
    life.commit()
    assert life.storage.count() == {"clock": 1}


@pytest.mark.parametrize("step_s", [-86_400.0, -30.0, 0.0, 3_600.0])
def test_setting_the_wall_clock_moves_no_lease_over_a_restart(life: Life, step_s: float) -> None:
    """A lock of 6 s, held for 2, on a server that is away for 1, is free after 3 more, however the wall clock is
    set."""
    life.apply(Set(b"lock", b"me", Condition.NEX, expiry_ms=6_000))
    life.advance(2)
    life = life.next(after_s=1, step_s=step_s)
    life.advance(2.999)
    assert life.apply(Get(b"lock")).reply == Found(b"me")
    life.advance(0.001)
    assert life.apply(Get(b"lock")).reply is MISSING


@pytest.mark.parametrize("boot", [BOOT + 1, None], ids=["restarted", "unknown"])
@pytest.mark.parametrize("step_s", [-30.0, 3_600.0])
def test_after_a_restart_of_the_machine_what_was_left_is_left(life: Life, step_s: float, boot: int | None) -> None:
    """After a restart of the machine what was left counts, whatever the wall clock says about the time away."""
    life.apply(Set(b"lock", b"me", Condition.NEX, expiry_ms=6_000))
    life.advance(2)
    life.journal.note_time(life.now)
    life.commit()
    life.advance(1)  # not written down: in doubt as well
    life = life.reboot(after_s=100, step_s=step_s, boot=boot)
    life.advance(3.999)
    assert life.apply(Get(b"lock")).reply == Found(b"me")
    life.advance(0.001)
    assert life.apply(Get(b"lock")).reply is MISSING


def test_a_machine_that_does_not_tell_its_clock_apart_is_taken_for_another_one() -> None:
    """Where the system has no name for its start, a restart counts as another machine's, so no time away counts."""
    life = Life(MemoryStorage(), boot=None)
    life.apply(Set(b"lock", b"me", expiry_ms=6_000))
    life = life.next(after_s=100)
    assert life.store.next_deadline() == pytest.approx(life.monotonic + 6)


def test_a_machine_whose_clocks_were_put_back_to_a_snapshot(life: Life) -> None:
    """When the monotonic clock says less than what was stored, as after a snapshot, no time away counts."""
    life.advance(1_000)
    life.apply(Set(b"lock", b"me", expiry_ms=6_000))
    life = life.next(after_s=-900)
    assert life.store.next_deadline() == pytest.approx(life.monotonic + 6)


def test_deadlines_do_not_wander_from_restart_to_restart(life: Life) -> None:
    """A thousand restarts, a third of a millisecond apart, do not move a deadline by their rounding."""
    life.advance(0.0004)
    life.apply(Set(b"k", b"", expiry_ms=1_000_000))
    deadline = life.monotonic + 1_000
    for _ in range(1_000):
        life = life.next(after_s=1 / 3_000)
        life.commit()
    assert life.store.next_deadline() == pytest.approx(deadline, abs=0.002)
    assert (life.store.next_deadline() or 0.0) >= deadline


def test_versions_never_go_back(life: Life) -> None:
    """Versions never go back, not with the wall clock, and not behind that of a deletion."""
    life.apply(Set(b"k", b""))
    deleted = life.apply(Del(b"k")).version
    life = life.next(step_s=-30)
    written = life.apply(Set(b"k", b"")).version
    assert deleted is not None
    assert written is not None
    assert written > deleted


@pytest.mark.parametrize("quiet_s", [0, 7_200])
def test_another_server_with_a_slow_wall_clock_goes_on_with_the_local_clock(life: Life, quiet_s: int) -> None:
    """A server that takes over with a clock an hour behind accepts the first one's tokens and what clients with right
    clocks send, at once and after hours without a write, and refuses what the first would have refused."""
    token = life.apply(Set(b"lock", b"me")).version
    right_ms = life.wall_ms
    life = life.reboot(step_s=-3_600)
    life.advance(quiet_s)
    right_ms += quiet_s * 1000

    def ask(stamp_ms: int) -> object:
        stamp = HlcTimestamp(stamp_ms, 0, "right")
        return life.store.apply(Set(b"k", b"v"), RequestContext("client", stamp, token, life.now)).reply

    assert ask(right_ms) is OK
    assert ask(right_ms + 60_000) is OK
    refused = ask(right_ms + 60_002)
    assert isinstance(refused, Refused)
    assert type(refused.error) is RequestClockSkewError


def test_a_request_that_comes_again_after_the_restart(life: Life) -> None:
    """A request that is repeated after the restart gets its first answer and is not executed again; another one is."""
    command, stamp = Set(b"lock", b"me", Condition.NX), f"{WALL_MS}:0:client"
    first = life.ask(command, b"c1", stamp)
    life = life.next(after_s=100)
    again = life.ask(command, b"c1", stamp)
    assert (first.payload, again.payload) == (b"+OK\r\n", b"+OK\r\n")
    assert again.properties.user_properties == first.properties.user_properties
    assert life.ask(Set(b"lock", b"you", Condition.NX), b"c1", stamp).payload == b":-1\r\n"
    life = life.next(after_s=400)
    assert life.ask(command, b"c1", stamp).payload == b":-1\r\n"


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0])
def test_answers_are_remembered_by_the_same_clock(life: Life, step_s: float) -> None:
    """Setting the wall clock does not change the five minutes for which an answer is remembered."""
    command, stamp = Set(b"lock", b"me", Condition.NX), f"{WALL_MS}:0:client"
    life.ask(command, b"c1", stamp)
    life = life.next(after_s=100, step_s=step_s)
    life.wall_ms -= round(step_s * 1000)  # set right again, and the request is not from the future
    life.advance(199.9)
    assert life.ask(command, b"c1", stamp).payload == b"+OK\r\n"
    life.advance(0.2)
    assert life.ask(command, b"c1", stamp).payload == b":-1\r\n"


@pytest.mark.parametrize(
    ("stream", "subject", "fields"),
    [
        (Stream.KEYS, b"k", (b"v",)),
        (Stream.KEYS, b"k", (b"v", (1, 2), None, None)),
        (Stream.CLOCK, b"", (1,)),
        (Stream.CLOCK, b"time", (1,)),
        (Stream.CLOCK, b"time", ("then", 1.0, 1, 1)),
        (Stream.RESPONSES, b"\xc1", (1, b"", None, 1)),
        (Stream.RESPONSES, b"\x92\xa1c\xc4\x01d", (1, b"")),
        (Stream.RESPONSES, b"\x92\xa1c\xc4\x01d", (1, b"", "no version", 1)),
        (Stream.RESPONSES, b"\x92\xa1c\xc4\x01d", (1, b"", (1, 2), 1)),
    ],
)
def test_damaged_records(life: Life, stream: Stream, subject: Subject, fields: tuple[object, ...]) -> None:
    """All damaged records raise one kind of error."""
    life.storage.append(
        WriteBatch((Changes(stream, ((subject, seal(stream, subject, fields)),), ()),)), lambda _error: None
    )
    with pytest.raises(DamagedRecordError):
        life.next()
