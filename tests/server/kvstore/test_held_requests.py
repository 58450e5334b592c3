"""Clients that follow an area, or its peers: they say where they are, and are answered when there is something new."""

from __future__ import annotations

from typing import TypeVar

import pytest
from site_pair import AREA, OneSite, failed

from statestore_client.server.kvstore.area import AreaSubscribers, HistoryLimits
from statestore_client.server.kvstore.own_keys import KeyLost
from statestore_client.server.kvstore.peers import PeerRequested
from statestore_client.server.kvstore.requests import MAX_HELD, MAX_HELD_OF_LINK, HeldRequest
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import (
    MAX_HOLD_MS,
    MAX_ITEMS,
    MAX_MESSAGE,
    ChangePeer,
    Failure,
    FailureReason,
    Follow,
    Followed,
    GetLostKeys,
    GetOwnKeys,
    GetPeers,
    GetSummary,
    Hello,
    LostKeys,
    Message,
    OwnKeys,
    PeersReply,
    Piece,
    Summary,
    Wanted,
)
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, MAX_VALUE_BYTES, Value, hash_of

CLIENT = "client"
ALL = Wanted()
M = TypeVar("M", bound=Message)


def follow(one: OneSite, after: int | None, wanted: Wanted = ALL, *, hold_ms: int = 1000) -> list[Message]:
    """What is said at once."""
    return one.hear(CLIENT, Follow(9, AREA, wanted, 1, after, hold_ms))


def only(replies: list[Message], kind: type[M]) -> M:
    """The one reply."""
    (reply,) = replies
    assert isinstance(reply, kind)
    return reply


def followed(replies: list[Message]) -> Followed:
    """The one reply to a client that follows."""
    return only(replies, Followed)


@pytest.fixture
def one() -> OneSite:
    """A site that a client has begun to follow."""
    one = OneSite()
    assert follow(one, None) == [Followed(9, 1, 0, False)]
    return one


def entry(value: bytes = b"x", version: int = 1, ttl_ms: int = INFINITE_TTL_MS) -> Value:
    """As the store of bonn has it."""
    return Value(version, "bonn", value, ttl_ms)


# -- publications ------------------------------------------------------------------------------------------------------


def test_a_client_that_waits_is_told_as_soon_as_there_is_something(one: OneSite) -> None:
    """Nothing is said before; the reply says how far the site has looked, and the next request begins there."""
    assert follow(one, 0) == []
    one.set("key")
    assert followed(one.wait(0, CLIENT)) == Followed(9, 1, 1, False, (Piece(1, None, {"key": entry()}, ()),))
    one.set("other")
    one.set("third")
    assert [list(piece.entries) for piece in followed(follow(one, 1)).pieces] == [["other"], ["third"]]
    assert [list(piece.entries) for piece in followed(follow(one, 1)).pieces] == [["other"], ["third"]]


@pytest.mark.parametrize(("late_s", "left_ms"), [(0.0, 3), (0.0009, 2), (0.0031, 1)])
def test_a_key_that_lasts_for_a_moment_is_told_and_then_its_end(one: OneSite, late_s: float, left_ms: int) -> None:
    """It has the milliseconds that it has left, and one at least, as none would be no TTL."""
    one.areas[AREA].set({"short": entry(ttl_ms=1), "longer": entry(ttl_ms=4)}, one.now)
    one.now += late_s
    told = {}
    for piece in followed(follow(one, 0)).pieces:
        told |= piece.entries
    assert {key: value.ttl_ms for key, value in told.items()} == {"short": 1, "longer": left_ms}
    one.wait(0.01)
    ended = [key for piece in followed(follow(one, 0)).pieces for key in piece.expired_keys]
    assert sorted(ended) == ["longer", "short"]


def test_nothing_new_is_an_answer_in_the_end(one: OneSite) -> None:
    """The reply comes when the time is over; no client waits longer than 20 s."""
    assert follow(one, 0) == []
    assert one.site.next_deadline(one.now) <= one.now + 1.0
    assert followed(one.wait(1.0, CLIENT)) == Followed(9, 1, 0, False)
    assert follow(one, 0, hold_ms=10 * MAX_HOLD_MS) == []
    assert one.wait(19.9, CLIENT) == []
    assert followed(one.wait(0.2, CLIENT)) == Followed(9, 1, 0, False)


def test_a_filter_says_what_is_told(one: OneSite) -> None:
    """Keys and sites; TTLs alone and values are left out if asked. What did not pass counts as looked at."""
    wanted = Wanted(("adj:",), omit_values=True)
    assert follow(one, 0, wanted) == []
    one.set("key")
    assert one.wait(0, CLIENT) == []
    one.set("adj:1")
    hashed = Value(1, "bonn", None, INFINITE_TTL_MS, 0, hash_of(1, "bonn", b"x"))
    assert followed(one.wait(0, CLIENT)) == Followed(9, 1, 2, False, (Piece(2, None, {"adj:1": hashed}, ()),))
    refresh = {"adj:1": Value(1, "bonn", None, 5000, 1)}
    one.areas[AREA].set(refresh, one.now)
    assert follow(one, 2, wanted) == []
    (piece,) = followed(follow(one, 2, Wanted(ignore_ttl=False))).pieces
    assert piece.entries["adj:1"].ttl_version == 1


def test_a_key_that_ends_is_told_and_a_ttl_has_what_is_left(one: OneSite) -> None:
    """A client that asks late gets the time that is left, not the time that there was."""
    one.areas[AREA].set({"key": entry(ttl_ms=5000)}, one.now)
    one.wait(2.0)
    (piece,) = followed(follow(one, 0)).pieces
    assert piece.entries["key"].ttl_ms == 2999
    assert follow(one, 1, hold_ms=5000) == []
    assert followed(one.wait(3.0, CLIENT)).pieces == (Piece(2, None, {}, ("key",)),)


@pytest.mark.parametrize(("history", "after"), [(1, 7), (2, 0)], ids=["number", "history"])
def test_what_the_site_does_not_have_is_a_gap(one: OneSite, history: int, after: int) -> None:
    """A number that was never given, and the history of an earlier start of the site: begin again with a snapshot."""
    one.set("key")
    assert one.hear(CLIENT, Follow(9, AREA, Wanted(), history, after, 1000)) == [Followed(9, 1, 1, True)]


def test_a_client_that_is_too_slow_is_told_so(one: OneSite) -> None:
    """One that waits while more comes at once than the history holds is told so, too."""
    one.areas[AREA].subscribers = AreaSubscribers(AREA, HistoryLimits(max_publications=2))
    assert follow(one, None) == [Followed(9, 1, 0, False)]
    assert follow(one, 0) == []
    one.areas[AREA].set({f"key{number}": entry() for number in range(400)}, one.now)
    assert followed(one.wait(0, CLIENT)) == Followed(9, 1, 4, True)
    assert len(followed(follow(one, 2)).pieces) == 2
    assert followed(follow(one, 0)).is_gap


def test_a_reply_has_a_bounded_number_of_entries(one: OneSite) -> None:
    """Many small publications come in several replies, each of which goes on where the one before has ended."""
    for n in range(MAX_ITEMS + 10):
        one.set(f"key {n}")
    replies = [_in_the_end(one, 0)]
    while replies[-1].last < MAX_ITEMS + 10:
        replies.append(_in_the_end(one, replies[-1].last))
    assert [len(reply.pieces) for reply in replies] == [MAX_ITEMS, 10]
    assert [piece.number for reply in replies for piece in reply.pieces] == list(range(1, MAX_ITEMS + 11))


def _in_the_end(one: OneSite, after: int) -> Followed:
    """The reply; a turn looks at a bounded number of entries."""
    replies = follow(one, after)
    while not replies:
        replies = one.wait(0, CLIENT)
    return followed(replies)


def test_a_reply_fits_into_a_message(one: OneSite) -> None:
    """Whatever is in the history; what does not fit comes with the next request."""
    sizes = [1, MAX_VALUE_BYTES, 100_000, MAX_VALUE_BYTES, 100_000, 20_000, 1]
    for number, size in enumerate(sizes):
        one.set(f"{number:04096}", bytes(size))
    seen: list[int] = []
    at = 0
    while at < len(sizes):
        reply = _in_the_end(one, at)
        assert len(encode(reply)) <= MAX_MESSAGE
        assert reply.last > at
        at = reply.last
        seen += [len(value.value or b"") for piece in reply.pieces for value in piece.entries.values()]
    assert seen == sizes


def test_a_turn_looks_at_a_bounded_number_of_entries(one: OneSite) -> None:
    """A hundred clients that follow a large change are served one after the other, in many turns."""
    one.areas[AREA].set({f"key{number}": entry() for number in range(1000)}, one.now)
    for number in range(100):
        one.site.receive(f"client{number}", encode(Follow(number, AREA, Wanted(("adj",)), 1, 0, 60_000)), one.now)
    looks = []
    subscribers = one.areas[AREA].subscribers
    after = subscribers.after
    subscribers.after = lambda number: looks.append(number) or after(number)  # type: ignore[method-assign, func-returns-value]
    turns = 0
    while one.site.held.next_deadline(one.now) == one.now or not turns:
        looks.clear()
        one.site.tick(one.now)
        turns += 1
        assert len(looks) <= 5
    assert turns >= 100 * 8 / 5
    assert len(one.site.held) == 100


def test_a_client_can_have_so_many_requests_that_wait(one: OneSite) -> None:
    """One that asks for more is refused, and the others still wait and are answered."""
    for _ in range(MAX_HELD_OF_LINK):
        assert follow(one, 0, hold_ms=20_000) == []
    (refused,) = follow(one, 0)
    assert failed(refused) == FailureReason.TOO_MANY_HELD
    for number in range(MAX_HELD - MAX_HELD_OF_LINK):
        one.site.receive(f"client{number // 8}", encode(Follow(9, AREA, Wanted(), 1, 0, 20_000)), one.now)
    (refused,) = one.hear("another", Follow(9, AREA, Wanted(), 1, 0, 20_000))
    assert isinstance(refused, Failure)
    assert len(one.site.held) == MAX_HELD
    one.set("key")
    one.site.tick(one.now)
    while one.site.held.next_deadline(one.now) is not None:
        one.site.tick(one.now)
    assert len(one.site.held) == 0
    one.said(CLIENT)
    assert follow(one, 1) == []


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Follow(9, "nowhere", Wanted()), FailureReason.UNKNOWN_AREA),
        (GetPeers(9, "nowhere"), FailureReason.UNKNOWN_AREA),
        (GetLostKeys(9, "nowhere"), FailureReason.UNKNOWN_AREA),
        (Follow(9, AREA, Wanted(("(",))), FailureReason.BAD_REQUEST),
        (Follow(9, AREA, Wanted(("a",) * 257)), FailureReason.BAD_REQUEST),
    ],
)
def test_what_cannot_be_followed_is_refused(one: OneSite, request_: HeldRequest, reason: FailureReason) -> None:
    """The reason is the caller's."""
    (refused,) = one.hear(CLIENT, request_)
    assert failed(refused) == reason
    assert len(one.site.held) == 0


# -- peers, and how the site is ----------------------------------------------------------------------------------------


def test_peers_are_told_and_each_change_of_them() -> None:
    """A client that knows the last change waits for the next one."""
    one = OneSite()
    assert one.hear(CLIENT, GetPeers(9, AREA)) == [PeersReply(9, 1, 0, {}, ())]
    assert one.hear(CLIENT, GetPeers(9, AREA, 1, 0, 20_000)) == []
    one.site.members.dial("tcp://host:1", one.now)
    one.site.receive("tcp://host:1", encode(Hello(1, "rome", 7, (AREA,), (), is_reply=True)), one.now)
    reply = only(one.wait(0, CLIENT), PeersReply)
    assert reply.last > 0
    assert list(reply.peers) == ["rome"]
    assert (reply.peers["rome"].is_connected, reply.peers["rome"].urls) == (True, ("tcp://host:1",))
    assert one.hear(CLIENT, GetPeers(9, AREA, 1, reply.last, 20_000)) == []
    one.site.members.lost("tcp://host:1", one.now)
    reply = only(one.wait(0, CLIENT), PeersReply)
    assert not reply.peers["rome"].is_connected
    only(one.hear(CLIENT, GetPeers(9, AREA, 2, reply.last, 20_000)), PeersReply)


def test_lost_keys_are_told_and_each_one_that_follows() -> None:
    """A client that knows the last loss waits for the next one; one that knows another history is answered at once."""
    one = OneSite()
    own = one.areas[AREA].own
    for key in ("k", "l"):
        own.set(key, b"x", one.now)

    def lose(key: str) -> None:
        one.areas[AREA].merge({key: Value(9, "rome", b"y")}, "rome", one.now)

    assert one.hear(CLIENT, GetLostKeys(9, AREA)) == [LostKeys(9, 1, 0, {})]
    assert one.hear(CLIENT, GetLostKeys(9, AREA, 1, 0, 20_000)) == []
    lose("k")
    assert one.wait(0, CLIENT) == [LostKeys(9, 1, 1, {"k": ("rome", 9)})]
    assert one.hear(CLIENT, GetLostKeys(9, AREA, 1, 1, 1_000)) == []
    assert one.wait(1, CLIENT) == [LostKeys(9, 1, 1, {})]
    lose("l")
    assert one.hear(CLIENT, GetLostKeys(9, AREA, 1, 1, 1_000)) == [LostKeys(9, 1, 2, {"l": ("rome", 9)})]
    assert one.hear(CLIENT, GetLostKeys(9, AREA, 2, 1, 1_000)) == [
        LostKeys(9, 1, 2, {"k": ("rome", 9), "l": ("rome", 9)})
    ]


def test_many_lost_keys_come_in_parts() -> None:
    """As many as one message has room for; the next request goes on behind them."""
    one = OneSite()
    lost = one.areas[AREA].own.lost
    for number in range(300):
        lost.add(KeyLost(f"{number:04}" * 200, "rome", 2))
    found: list[str] = []
    after = 0
    while after < 300:
        reply = only(one.hear(CLIENT, GetLostKeys(9, AREA, 1, after, 0)), LostKeys)
        assert reply.keys
        assert reply.last > after
        found += reply.keys
        after = reply.last
    assert found == [f"{number:04}" * 200 for number in range(300)]


def test_an_address_where_nobody_answers_is_told() -> None:
    """It is dialled, and has no name yet."""
    one = OneSite()
    one.site.members.dial("tcp://host:1", one.now)
    one.said("tcp://host:1")
    assert one.hear(CLIENT, GetPeers(9, AREA)) == [PeersReply(9, 1, 0, {}, ("tcp://host:1",))]


def test_a_summary_has_the_numbers_of_each_area() -> None:
    """What is there, and what has happened."""
    one = OneSite()
    one.areas[AREA].own.persist("own", b"x", one.now)
    one.set("key")
    one.wait(0.2)
    reply = only(one.hear(CLIENT, GetSummary(9)), Summary)
    assert (reply.name, reply.incarnation) == ("bonn", 1)
    numbers = reply.areas[AREA]
    assert {name: numbers[name] for name in ("keys", "own_keys", "expiring_keys", "peers", "entries_replaced")} == {
        "keys": 2,
        "own_keys": 1,
        "expiring_keys": 1,
        "peers": 0,
        "entries_replaced": 2,
    }


def test_own_keys_come_in_pages() -> None:
    """What the site keeps alive, and nothing else."""
    one = OneSite()
    area = one.areas[AREA]
    for number in range(40):
        area.own.set(f"own{number}", bytes(10_000), one.now)
        one.set(f"key{number}")
    area.own.persist("persisted", b"x", one.now)
    one.wait(0.2)
    found: dict[str, bool] = {}
    start: int | None = 0
    pages = 0
    while start is not None:
        reply = only(one.hear(CLIENT, GetOwnKeys(9, AREA, start)), OwnKeys)
        assert len(encode(reply)) <= MAX_MESSAGE
        found |= {key: state.is_persisted for key, state in reply.keys.items()}
        start = reply.next
        pages += 1
    assert found == {f"own{number}": False for number in range(40)} | {"persisted": True}
    assert pages >= 4


def test_the_shell_is_asked_to_dial() -> None:
    """The site itself opens no connection."""
    one = OneSite()
    assert one.hear(CLIENT, ChangePeer(9, "tcp://host:1", True)) == []
    (event,) = one.told(PeerRequested)
    assert (event.link, event.id, event.url, event.is_wanted) == (CLIENT, 9, "tcp://host:1", True)
