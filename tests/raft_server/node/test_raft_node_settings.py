"""Settings of a peer: what cannot work is refused, with what would."""

from __future__ import annotations

from typing import Any

import pytest

from raft_client import InvalidArgumentError
from raft_client.server import NodeSettings


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"election_timeout_min_s": 0.4}, r"election_timeout_min_s \(0.4\) is at most election_timeout_max_s \(0.3\)"),
        ({"heartbeat_s": 0.11}, r"heartbeat_s \(0.11\) is at most half of election_timeout_min_s \(0.2\)"),
        ({"rpc_timeout_s": 0.11}, "rpc_timeout_s"),
        ({"append_timeout_s": 0.11}, "append_timeout_s"),
        ({"heartbeat_s": 0}, "heartbeat_s is a number of seconds above 0, not 0"),
        ({"heartbeat_s": float("nan")}, "not nan"),
        ({"disk_stall_s": "1"}, "not '1'"),
        ({"disk_stall_s": True}, "not True"),
        ({"max_streams": 0}, "max_streams is a whole number above 0, not 0"),
        ({"max_streams": 1.5}, "not 1.5"),
        ({"request_id_ttl_s": 900.0}, r"request_id_ttl_s \(900.0\) is more than 900"),
        ({"stream_ttl_s": None}, "not None"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], reason: str) -> None:
    """It is not noticed when a follower suspects a leader that lives."""
    with pytest.raises(InvalidArgumentError, match=reason):
        NodeSettings(peer_id="1", **changes)


def test_changes_are_read_as_people_write_them() -> None:
    """Whole numbers, seconds, and none."""
    changes = NodeSettings.changes_in(["max_streams=100", "disk_stall_s=2", "heartbeat_s=.05", "request_id_ttl_s=none"])
    assert changes == {"max_streams": 100, "disk_stall_s": 2, "heartbeat_s": 0.05, "request_id_ttl_s": None}
    assert NodeSettings(peer_id="1", **changes).request_id_ttl_s is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("max_streams", "NAME=VALUE is wanted"),
        ("peer_id=2", "NAME one of election_timeout_min_s"),
        ("pre_vote=1", "not 'pre_vote=1'"),
        ("max_streams=many", "max_streams is a number, not 'many'"),
        ("max_streams=", "max_streams is a number, not ''"),
    ],
)
def test_what_is_no_change_is_refused(text: str, reason: str) -> None:
    """With the names that there are."""
    with pytest.raises(InvalidArgumentError, match=reason):
        NodeSettings.changes_in([text])
