"""Whether what a server was told of the log's peers is what the log says.

The list of ``--cluster`` counts when a log begins; later the log says who its members are. A server with an old list
works, until the peers that are in both are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from statestore_client.server.runtime.replication.settings import ReplicaSettings

__all__ = ["member_warning"]


def member_warning(settings: ReplicaSettings, members: Mapping[str, str]) -> str:
    """What to put right at this server, whose log has these ``members``, ids with URLs. Empty if there is nothing."""
    if settings.peer is not None:
        name, faults = "--cluster", "; ".join(_differences(dict(settings.peer.members), members))
    elif settings.log_keys is not None:
        known = dict(settings.log_keys.peers)
        strangers = (f"it has no key of {each}, a member at {url}" for each, url in members.items() if url not in known)
        name, faults = "--log", "; ".join(strangers)
    else:
        return ""  # any one that is up names the others
    return f"{name} is not what the log says: {faults}. Start this server with the members of the log" if faults else ""


def _differences(told: Mapping[str, str], members: Mapping[str, str]) -> Iterator[str]:
    for each, url in told.items():
        if each not in members:
            yield f"it names {each}, which is not a member"
        elif members[each] != url:
            yield f"it has {each} at {url}, which is at {members[each]}"
    for each, url in members.items():
        if each not in told:
            yield f"it lacks {each}, a member at {url}"
