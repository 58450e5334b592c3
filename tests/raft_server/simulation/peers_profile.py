"""What a seed decides before anything happens: who is there, how they are set up, how long it goes on."""

from __future__ import annotations

from random import Random
from typing import Final

import attrs

from raft_client.server.node.settings import NodeSettings
from raft_client.wire.configuration import Peer, Peers

__all__ = ["FAST_SYNC_S", "IDENT", "Profile", "invent_profile", "peers_of"]

IDENT: Final = b"sim"
#: What a sync takes on a good disk.
FAST_SYNC_S: Final = 0.0008

#: With what else each kind is worth while; appends and crashes are always allowed.
_ALWAYS: Final = ("append", "repeat", "crash", "cut")
_SOMETIMES: Final = (
    "read", "weather", "reconnect", "crash_all", "stall", "fail_disk", "pause", "jump", "change", "compact", "transfer",
    "damage", "read_leaders", "cut_leader", "usurpation",
)  # fmt: skip


def peers_of(names: list[str]) -> Peers:
    """Their ids and URLs."""
    return tuple(Peer(name, f"tcp://10.0.0.{name}:8047") for name in names)


@attrs.frozen(kw_only=True)
class Profile:
    """``peers`` are all that run; ``voters`` of them are members at first, ``node_peers`` behave as the Node peers."""

    peers: list[str]
    voters: list[str]
    node_peers: list[str]
    kinds: frozenset[str]
    deviations: int
    length_s: float
    delay_s: float
    is_in_order: bool
    terms: int  # of the earlier life
    keeps_state: bool
    wall_rate: float
    settings: dict[str, object]
    drift: float
    lasting: str  # what never heals, at one peer: stall, deaf or mute
    slowness: float = 0.0  # from 0 to 1, as is lateness
    lateness: float = 0.0

    @property
    def sync_s(self) -> float:
        """What a sync takes, on most disks and most of the time: 0.8 ms, or 1 to 400 ms."""
        if self.slowness < 0.6 or self.node_peers:  # these have no pre-vote: one that cannot win lets nobody win
            return FAST_SYNC_S
        return float(0.4 * 400.0 ** -((1.0 - self.slowness) / 0.4))

    @property
    def late_s(self) -> float:
        """Timers come so late at most."""
        return 0.001 if self.lateness < 0.7 else 0.3 * (1.0 - self.lateness)

    @property
    def slowest(self) -> float:
        """By which the time-outs of some peers are longer than those of others."""
        return 5.0 if 0.5 <= self.lateness < 0.7 else 1.0

    @property
    def python_peers(self) -> list[str]:
        return [name for name in self.peers if name not in self.node_peers]

    def settings_of(self, name: str) -> NodeSettings:
        times = (1.0, self.slowest)[int(name) % 2]
        return NodeSettings(
            peer_id=name,
            ident=IDENT,
            election_timeout_min_s=0.2 * times,
            election_timeout_max_s=0.3 * times,
            **self.settings,  # type: ignore[arg-type]  # a dict of settings
        )


def invent_profile(random: Random) -> Profile:
    """Most are small and short: bugs need few peers and few steps, in the right order."""
    count = random.choice((1, 2, 3, 3, 3, 3, 3, 4, 5, 5))
    peers = [str(n) for n in range(1, count + 1)]
    kinds = frozenset([*_ALWAYS, *(kind for kind in _SOMETIMES if random.random() < 0.4)])
    voters = peers[: random.randint(1, count)] if "change" in kinds and random.random() < 0.5 else peers
    is_mixed = random.random() < 0.25 and "change" not in kinds and count > 1
    nodes = random.sample(voters, random.randint(1, count - 1)) if is_mixed else []
    lasting = random.choice(("", "", "stall", "deaf", "mute"))
    may_last = count >= 3 and not kinds & {"change", "damage"} and len(nodes) + 2 <= count
    is_fast = "compact" in kinds and random.random() < 0.5  # ids grow old while we look on
    return Profile(
        peers=peers,
        voters=voters,
        node_peers=sorted(nodes),
        kinds=kinds,
        deviations=random.randint(3, 24),
        length_s=random.choice((0.4, 0.8, 1.2, 2.0)),
        delay_s=random.choice((0.0005, 0.002, 0.002, 0.02)),
        is_in_order=random.random() < 0.5,
        terms=random.choice((0, 1, 2, 3, 4, 6)),
        keeps_state=random.random() < 0.5,
        wall_rate=random.choice((2000.0, 6000.0)) if is_fast else 1.0,
        slowness=random.random(),
        lateness=random.random(),
        settings={
            "max_message_bytes": (message_bytes := random.choice((64, 200, 65536))),
            "max_job_bytes": message_bytes // 4,
            "heartbeat_s": random.choice((0.07, 0.1)),
            "disk_stall_s": random.choice((0.3, 1.0)),
            "request_id_ttl_s": 1800.0 if is_fast else 28_800.0,
        },
        drift=random.choice((0.0, 0.01)),
        lasting=lasting if may_last else "",
    )
