"""Entries that no server would write, well formed all the same: a life stops with a typed error, or goes on."""

from __future__ import annotations

import attrs
import msgpack
import pytest
from cluster_lives import ReplicatedServer, puts
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.cluster.entries import (
    MAX_LEASE_MS,
    BatchPiece,
    Challenge,
    Claim,
    HandOver,
    Life,
    LogEntry,
    Part,
    Renewal,
    Snapshot,
    UnreadableLogError,
    decode,
    encode,
    pack_batch,
)
from statestore_client.server.cluster.interface import BatchReplicated

numbers = st.sampled_from([0, 1, 2, 3, 250, 2**32, 2**51, 2**52, 2**63, 2**64 - 1])
bodies = st.one_of(
    st.builds(Claim, st.just("tcp://x"), st.sampled_from([0, 1, 2]), numbers, numbers, st.booleans()),
    st.builds(BatchPiece, st.sampled_from([b"", b"\x90", b"x"]), st.booleans()),
    st.builds(Renewal, numbers),
    st.builds(HandOver, st.sampled_from(["", "a", "b"])),
    st.builds(Challenge),
    st.builds(Snapshot, numbers, st.sampled_from([b"", b"\x90"])),
    st.builds(Part, numbers, st.sampled_from([b"", b"\x90"]), st.booleans(), st.booleans()),
)
lives = st.builds(Life, st.sampled_from(["a", "b", "c"]), st.sampled_from([1, 2]))
entries = st.builds(LogEntry, st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2]), lives, numbers, numbers, bodies)


OWNER = Life("a", 1)
CLAIM = LogEntry(1, 0, OWNER, 1000, 0, Claim("tcp://a", 1, 250, 0))


KINDS = (Claim, BatchPiece, Renewal, HandOver, Challenge, Snapshot, Part)  # 1, 2, …


def _packed(entry: LogEntry) -> bytes:
    """As somebody would write it that does not check what he writes."""
    body, life = entry.body, entry.life
    fields = [entry.epoch, entry.seq, life.id, life.incarnation, entry.log_ms, entry.base]
    packed: bytes = msgpack.packb([1, KINDS.index(type(body)) + 1, *fields, *attrs.astuple(body)])
    return packed


@settings(max_examples=200)
@given(st.lists(entries, max_size=6))
def test_lives_meet_them_with_typed_errors(hostile: list[LogEntry]) -> None:
    """Whatever comes after the first claim; a life that goes on does what is due."""
    world = ReplicatedServer("a", "b")
    for server_id in ("a", "b"):
        member = world[server_id]
        member.receive(1, encode(CLAIM), world.instant)
        try:
            for index, entry in enumerate(hostile, start=2):
                member.receive(index, _packed(entry), world.instant)
                member.tick(world.instant)
                member.next_deadline(world.instant)
            world.now += 100.0
            member.tick(world.instant)
        except UnreadableLogError:
            continue


def test_an_entry_of_the_own_life_that_it_has_not_written() -> None:
    """Somebody else writes under this name, or the log is not what it was."""
    world = ReplicatedServer("a")
    world["a"].receive(1, encode(CLAIM), world.instant)
    with pytest.raises(UnreadableLogError, match="has not written"):
        world["a"].receive(2, encode(LogEntry(1, 1, Life("a", 1), 1001, 0, Renewal(0))), world.instant)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (LogEntry(1, 1, Life("a", 1), 2**52, 0, Renewal(0)), "time"),
        (LogEntry(1, 0, Life("a", 1), 1, 0, Claim("", 1, MAX_LEASE_MS + 1, 0)), "lease"),
    ],
)
def test_times_that_would_be_the_end_of_everything(entry: LogEntry, why: str) -> None:
    """Log time never goes back, and others wait for a lease."""
    with pytest.raises(UnreadableLogError, match=why):
        decode(_packed(entry))
    with pytest.raises(InvalidArgumentError, match=why):
        encode(entry)


#: Those of the present epoch, and of the entries around, most of the time.
near = st.sampled_from([1, 1, 1, 2, 3, 0, 2**64 - 1])
strangers = st.sampled_from([Life("a", 2), Life("b", 1), Life("c", 7)])
without_effect = st.one_of(
    # Of somebody who does not own the epoch; claims, of epochs that are not the next one; parts of no snapshot.
    st.builds(
        LogEntry, near, near, strangers, st.integers(0, 2**51), st.just(0),
        st.one_of(
            st.builds(BatchPiece, st.binary(max_size=20), st.booleans()), st.builds(Renewal, numbers),
            st.builds(HandOver, st.sampled_from(["", "b"])), st.builds(Challenge),
            st.builds(Part, numbers, st.binary(max_size=20), st.booleans(), st.booleans()),
        ),
    ),
    # Of the owner's life, in an epoch that is not the present one.
    st.builds(
        LogEntry, st.sampled_from([0, 2, 3]), near, st.just(OWNER), st.integers(0, 2**51), st.just(0),
        st.builds(BatchPiece, st.binary(max_size=20), st.booleans()) | st.builds(HandOver),
    ),
    st.builds(
        LogEntry, st.sampled_from([0, 1, 3]), near, strangers, st.integers(0, 2**51), st.just(0),
        st.builds(Claim, st.just("tcp://x"), st.just(1), st.just(250), numbers, st.booleans()),
    ),
)  # fmt: skip


@settings(max_examples=150)
@given(st.lists(st.lists(without_effect, max_size=4), min_size=4, max_size=4))
def test_entries_without_a_right_change_nothing(between: list[list[LogEntry]]) -> None:
    """A follower that meets them between an owner's entries comes to the same fence and the same batches as one that
    does not: among them are batches in pieces.
    """
    batch = pack_batch(puts(k=b"value"))
    bodies_of_owner = [BatchPiece(batch), BatchPiece(batch[:5], is_last=False), BatchPiece(batch[5:])]
    owned = [LogEntry(1, seq, OWNER, 1000 + seq, 0, body) for seq, body in enumerate(bodies_of_owner, start=1)]
    good = [encode(entry) for entry in (CLAIM, *owned)]
    world = ReplicatedServer("b")
    world.begin("c", 1)
    for index, data in enumerate(good, start=1):
        world["b"].receive(10 * index, data, world.instant)
        world["c"].receive(10 * index, data, world.instant)
        for number, entry in enumerate(between[index - 1], start=1):
            world["c"].receive(10 * index + number, _packed(entry), world.instant)
    fences = [attrs.evolve(world[name].fence, index=0) for name in "bc"]
    assert fences[0] == fences[1]
    batches = [[event.batch for event in world.events(name, BatchReplicated)] for name in "bc"]
    assert batches[0] == batches[1] == [puts(k=b"value")] * 2
