"""The call that moves the leadership: what each answer means, over which connection it comes."""

from __future__ import annotations

import pytest
from raft_network import IDENT, ClientDriver

from raft_client.core.calls import (
    Failed,
    Finished,
    FollowUps,
    MakeSnapshot,
    NotLeader,
    Retry,
    TakenSnapshot,
    TransferLeadership,
    TrimLog,
    Verdict,
)
from raft_client.errors import (
    ClusterBusyError,
    CompactionError,
    HandOverError,
    InvalidArgumentError,
    ProtocolError,
    RequestTimeoutError,
)
from raft_client.wire.client_requests import (
    HandOver,
    HandOverReply,
    LogInfoReply,
    Outcome,
    RequestLogInfo,
    TakeSnapshot,
    TakeSnapshotReply,
    Trim,
    TrimReply,
)
from raft_client.wire.hello import Capability, Hello

OURS = (Capability.TRANSFER,)


def greeting(leader_id: str, capabilities: tuple[Capability, ...] | None = OURS, *, leads: bool = True) -> list[bytes]:
    """The answer to a hello; None: a Node peer's."""
    frames = LogInfoReply(leads, leader_id, 7, 1, 1, 1, 1, 0, 0).to_frames()
    return frames if capabilities is None else [*frames, Hello(leader_id, 1, capabilities).to_frame()]


def call(to: str | None) -> TransferLeadership:
    return TransferLeadership(IDENT, to, 5)


def reason(verdict: Verdict) -> str:
    assert isinstance(verdict, Failed)
    assert isinstance(verdict.error, HandOverError)
    return str(verdict.error)


def test_a_leader_is_asked_what_it_knows_before_it_is_asked_to_hand_over() -> None:
    """The first frames are a hello; HandOver follows only to a peer that says that it knows it."""
    asked = call("2")
    assert asked.request_id == Hello(None, 5).to_request_id()
    assert asked.frames() == RequestLogInfo(IDENT).to_frames()
    assert asked.receive(greeting("1")) == FollowUps((HandOver(IDENT, "2").to_frames(),))


@pytest.mark.parametrize("capabilities", [None, (), (Capability.READ_INDEX,)])
def test_a_node_peer_is_not_asked(capabilities: tuple[Capability, ...] | None) -> None:
    """To a leader that does not know HandOver nothing is sent: it would not answer."""
    assert "Node peer" in reason(call(None).receive(greeting("1", capabilities)))


def test_it_is_done_when_the_new_leader_says_so() -> None:
    """A hand-over succeeds when the peer that was named leads, or another one than before if none was named."""
    asked = call("2")
    assert asked.receive(greeting("2")) == Finished("2")  # it led before
    asked = call("2")
    asked.receive(greeting("1"))
    assert asked.receive(HandOverReply(Outcome.NOT_LEADER, "2").to_frames()) == NotLeader("2")
    assert asked.receive(greeting("2")) == Finished("2")
    asked = call(None)
    asked.receive(greeting("1"))
    assert asked.receive(greeting("3", None)) == Finished("3")  # whatever it knows


def test_what_is_repeated_moves_nothing_twice() -> None:
    """If the old leader leads when it is asked again, it is asked again; a third one that leads instead of the one
    that was named is asked to hand over, too."""
    asked = call("2")
    asked.receive(greeting("1"))
    hand_over = FollowUps((HandOver(IDENT, "2").to_frames(),))
    assert asked.receive(greeting("1")) == hand_over
    assert asked.receive(greeting("3")) == hand_over


def test_a_refusal_is_final_and_a_busy_leader_is_asked_again() -> None:
    """A refusal ends the call with the leader's reason; a leader that hands over to another member is asked later."""
    assert reason(call("9").receive(HandOverReply(Outcome.REFUSED, reason="no member").to_frames())) == "no member"
    verdict = call("2").receive(HandOverReply(Outcome.BUSY).to_frames())
    assert isinstance(verdict, Retry)
    assert isinstance(verdict.error, ClusterBusyError)
    with pytest.raises(ProtocolError):
        call("2").receive([b"\x09", b"\xc0", b""])


@pytest.mark.parametrize("to", ["", 2, b"2"])
def test_a_name_that_no_peer_has_is_refused(to: object) -> None:
    """What is no id of a peer is refused before anything is sent."""
    with pytest.raises(InvalidArgumentError):
        call(to)  # type: ignore[arg-type]


def test_an_error_says_that_it_may_have_been_handed_over(client: ClientDriver) -> None:
    """A hand-over without an answer may have happened, and its error has no request id of an append."""
    client.append(1000)
    client.settle()
    client.submit(call("2"), "call", timeout=5.0)
    [request] = client.machine._table.requests.values()
    client.machine.received(client.machine.leader_url or "", [request.request_id, *greeting("1")], client.time)
    assert [request.request_id, *HandOver(IDENT, "2").to_frames()] in [
        action.frames for action in client.machine.actions if hasattr(action, "frames")
    ]
    client.machine.tick(client.time + 5.0)
    client.perform()
    [error] = client.outcomes["call"]
    assert isinstance(error, RequestTimeoutError)
    assert error.may_have_been_applied
    assert error.request_id is None


# -- calls that keep logs short ----------------------------------------------------------------------------------------


def test_a_trim_goes_to_a_leader_that_knows_it() -> None:
    """The hello comes first; only a leader that says that it knows Trim is sent one."""
    call = TrimLog(IDENT, 5, 9)
    assert call.request_id == Hello(None, 9).to_request_id()
    assert call.frames() == RequestLogInfo(IDENT).to_frames()
    assert call.receive(greeting("1", (Capability.TRIM,), leads=False)) == NotLeader("1")
    assert isinstance(call.receive(greeting("1", (Capability.SNAPSHOT,))), Failed)
    assert call.receive(greeting("1", (Capability.TRIM,))) == FollowUps((Trim(IDENT, "", 5).to_frames(),))
    assert call.receive(TrimReply(Outcome.NOT_LEADER, "3").to_frames()) == NotLeader("3")
    assert call.receive(TrimReply(Outcome.COMMITTED, "1", 8).to_frames()) == Finished(8)


def test_a_snapshot_is_made_by_the_peer_that_is_asked() -> None:
    """A named peer need not lead; without a name the leader is meant."""
    call = MakeSnapshot(IDENT, 9, of_leader=False)
    assert call.receive(greeting("1", (Capability.SNAPSHOT,), leads=False)) == FollowUps(
        (TakeSnapshot(IDENT).to_frames(),)
    )
    assert call.receive(TakeSnapshotReply(Outcome.COMMITTED, 7, 99).to_frames()) == Finished(TakenSnapshot(7, 99))
    assert MakeSnapshot(IDENT, 9, of_leader=True).receive(greeting("1", (), leads=False)) == NotLeader("1")


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        (TrimLog(IDENT, 5, 9), TrimReply(Outcome.REFUSED, reason="why")),
        (MakeSnapshot(IDENT, 9, of_leader=True), TakeSnapshotReply(Outcome.REFUSED, reason="why")),
    ],
)
def test_a_refusal_is_an_error_with_its_reason(
    call: TrimLog | MakeSnapshot, refusal: TrimReply | TakeSnapshotReply
) -> None:
    """A refusal is a CompactionError with the reason of the peer, and what cannot be read a ProtocolError."""
    verdict = call.receive(refusal.to_frames())
    assert isinstance(verdict, Failed)
    assert isinstance(verdict.error, CompactionError)
    assert str(verdict.error) == "why"
    with pytest.raises(ProtocolError):
        call.receive([b"\x09", b"\x00", b"\x00", b""])


@pytest.mark.parametrize("index", [-1, "1", True, 2**53])
def test_an_index_that_no_entry_has_is_refused(index: object) -> None:
    """What is no index is refused before anything is sent."""
    with pytest.raises(InvalidArgumentError):
        TrimLog(IDENT, index, 9)  # type: ignore[arg-type]  # what is refused
