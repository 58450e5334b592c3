"""The calls that keep logs short: what each answer means."""

from __future__ import annotations

import pytest
from raft_network import IDENT

from raft_client.core.log_upkeep import MakeSnapshot, TrimLog
from raft_client.core.results import TakenSnapshot
from raft_client.core.verdicts import Failed, Finished, FollowUps, NotLeader
from raft_client.errors import CompactionError, InvalidArgumentError, ProtocolError
from raft_client.wire.cluster_queries import LogInfoReply, RequestLogInfo
from raft_client.wire.compaction_requests import TakeSnapshot, TakeSnapshotReply, Trim, TrimReply
from raft_client.wire.hello import Capability, Hello
from raft_client.wire.update_requests import Outcome


def greeting(*capabilities: Capability, leads: bool = True) -> list[bytes]:
    """The answer to a hello."""
    frames = LogInfoReply(leads, "1", 7, 1, 1, 1, 1, 0, 0).to_frames()
    return [*frames, Hello("2", 1, capabilities).to_frame()]


def test_a_trim_goes_to_a_leader_that_knows_it() -> None:
    """The hello comes first; only a leader that says that it knows Trim is sent one."""
    call = TrimLog(IDENT, 5, 9)
    assert call.request_id == Hello(None, 9).to_request_id()
    assert call.frames() == RequestLogInfo(IDENT).to_frames()
    assert call.receive(greeting(Capability.TRIM, leads=False)) == NotLeader("1")
    assert isinstance(call.receive(greeting(Capability.SNAPSHOT)), Failed)
    assert call.receive(greeting(Capability.TRIM)) == FollowUps((Trim(IDENT, 5).to_frames(),))
    assert call.receive(TrimReply(Outcome.NOT_LEADER, "3").to_frames()) == NotLeader("3")
    assert call.receive(TrimReply(Outcome.COMMITTED, "1", 8).to_frames()) == Finished(8)


def test_a_snapshot_is_made_by_the_peer_that_is_asked() -> None:
    """A named peer need not lead; without a name the leader is meant."""
    call = MakeSnapshot(IDENT, 9, of_leader=False)
    assert call.receive(greeting(Capability.SNAPSHOT, leads=False)) == FollowUps((TakeSnapshot(IDENT).to_frames(),))
    assert call.receive(TakeSnapshotReply(Outcome.COMMITTED, 7, 99).to_frames()) == Finished(TakenSnapshot(7, 99))
    assert MakeSnapshot(IDENT, 9, of_leader=True).receive(greeting(leads=False)) == NotLeader("1")


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
