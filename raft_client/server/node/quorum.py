"""Majorities: of one list of peers, or of both while the cluster changes.

Source: Raft, §3.4 and §4.3 (joint consensus): "agreement (for elections and entry commitment) requires majorities from
both the old and new configurations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client.wire.configuration import ConfigChange, Peers

T = TypeVar("T", int, float)


def _lists(change: ConfigChange) -> tuple[Peers, ...]:
    return (change.new,) if change.old is None else (change.old, change.new)


def member_peers(change: ConfigChange) -> Peers:
    """All who vote, each once, in the order of the lists: the old ones first."""
    if change.old is None:
        return change.new
    known = {peer.id for peer in change.old}
    return change.old + tuple(peer for peer in change.new if peer.id not in known)


def is_member(change: ConfigChange, peer_id: str) -> bool:
    """Whether the peer is in one of the lists."""
    for peers in _lists(change):  # several times for each message: a generator would take three times as long
        for peer in peers:
            if peer.id == peer_id:
                return True
    return False


def agreed(change: ConfigChange, value_of: Callable[[str], T]) -> T:
    """The largest value that a majority of each list has reached. ``value_of`` is asked with the id of a peer."""
    return min([sorted([value_of(peer.id) for peer in peers])[(len(peers) - 1) // 2] for peers in _lists(change)])


def has_majority(change: ConfigChange, said_so: Callable[[str], bool]) -> bool:
    """Whether a majority of each list did."""
    return all(sum(said_so(peer.id) for peer in peers) > len(peers) // 2 for peers in _lists(change))
