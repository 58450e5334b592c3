"""What goes otherwise than it should, or is asked for: one line each, so that a schedule can be read, cut and kept.

::

    at 0.412  cut        1>2 2>1  for 0.300      messages of these directions are lost
    at 0.500  weather    1>3  lost 0.30 doubled 0.20 late 0.10  for 0.5
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import attrs
from peers_profile import Profile

__all__ = ["Deviation", "invent_deviations", "parse"]


@attrs.frozen(order=True)
class Deviation:
    """At a moment (seconds), the cluster's method ``what`` is called with ``words``."""

    at: float
    what: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"at {self.at:.3f}  {self.what:10} {' '.join(self.words)}".rstrip()


def parse(line: str) -> Deviation:
    """What ``str`` wrote."""
    word, at, what, *words = line.split()
    if word != "at":
        raise ValueError(f"a deviation begins with 'at': {line!r}")
    return Deviation(float(at), what, tuple(words))


Invent = Callable[[Random, Profile], "tuple[str, ...]"]


def _peer(random: Random, profile: Profile) -> str:
    return random.choice(profile.peers)


def _python_peer(random: Random, profile: Profile) -> str:
    return random.choice(profile.python_peers)


def _lasts(random: Random) -> str:
    """Seconds: around an election time-out, or far less."""
    return f"{random.choice((0.02, 0.1, 0.3, 0.6)) * random.uniform(0.5, 1.5):.3f}"


def _append(random: Random, profile: Profile) -> tuple[str, ...]:
    return (_peer(random, profile), str(random.choice((1, 1, 2, 5))))


def _cut(random: Random, profile: Profile) -> tuple[str, ...]:
    """One link, one way or both; one peer from all others; or two halves."""
    kind = random.randrange(4)
    one = _peer(random, profile)
    others = [each for each in profile.peers if each != one]
    if kind == 0:
        links = [(one, random.choice(others))]
    elif kind == 1:
        other = random.choice(others)
        links = [(one, other), (other, one)]
    elif kind == 2:
        links = [(one, each) for each in others]
        links += [(to, source) for source, to in links] if random.random() < 0.7 else []
    else:
        half = set(random.sample(profile.peers, len(profile.peers) // 2))
        links = [(a, b) for a in profile.peers for b in profile.peers if a != b and (a in half) != (b in half)]
    return (_lasts(random), *(f"{source}>{target}" for source, target in links))


def _weather(random: Random, profile: Profile) -> tuple[str, ...]:
    lost, doubled, late = (random.choice((0.0, 0.1, 0.4)) for _ in range(3))
    return (_lasts(random), _peer(random, profile), f"{lost}", f"{doubled}", f"{late}")


def _share(random: Random) -> str:
    return random.choice(("0.0", "0.34", "0.67", "1.0"))


def _change(random: Random, profile: Profile) -> tuple[str, ...]:
    """New members, among them at least one peer that can lead."""
    count = random.randint(1, len(profile.peers))
    members = random.sample(profile.peers, count)
    if not any(each in profile.python_peers for each in members):
        members.append(_python_peer(random, profile))
    return (_peer(random, profile), *sorted(members))


def _jump(random: Random, profile: Profile) -> tuple[str, ...]:
    """Beyond what request ids allow for only where all logs keep their ids: otherwise nothing is promised."""
    seconds = (-300, -60, 60, 300) if "compact" in profile.kinds else (-40_000, -60, 60, 40_000)
    return (_peer(random, profile), str(random.choice(seconds)))


_KINDS: Final[dict[str, tuple[int, Invent]]] = {
    "append": (6, _append),
    "repeat": (2, lambda random, profile: (_peer(random, profile),)),
    "read": (3, lambda random, profile: (_python_peer(random, profile),)),
    "read_leaders": (3, lambda _random, _profile: ()),
    "cut": (4, _cut),
    "cut_leader": (2, lambda random, _profile: (_lasts(random), random.choice(("in", "out", "in,out")))),
    "weather": (3, _weather),
    "reconnect": (2, lambda random, profile: (_python_peer(random, profile), _peer(random, profile))),
    "crash": (4, lambda random, profile: (_peer(random, profile), _lasts(random), _share(random))),
    "crash_all": (1, lambda random, _profile: (_lasts(random), _share(random))),
    "stall": (1, lambda random, profile: (_python_peer(random, profile), _lasts(random))),
    "fail_disk": (1, lambda random, profile: (_python_peer(random, profile), _lasts(random), _share(random))),
    "pause": (1, lambda random, profile: (_python_peer(random, profile), _lasts(random))),
    "jump": (1, _jump),
    "change": (2, _change),
    "compact": (4, lambda random, profile: (_python_peer(random, profile),)),
    "transfer": (2, lambda random, profile: (_python_peer(random, profile),)),
    "damage": (1, lambda random, profile: (_python_peer(random, profile), f"{random.random():.2f}")),
}


def invent_deviations(random: Random, profile: Profile) -> list[Deviation]:
    """Some kinds only: what happens often enough meets itself. A single peer has no links."""
    allowed = [kind for kind in _KINDS if kind in profile.kinds and (kind != "cut" or len(profile.peers) > 1)]
    weights = [_KINDS[kind][0] for kind in allowed]
    chosen = random.choices(allowed, weights, k=profile.deviations)
    times = sorted(random.uniform(0.0, profile.length_s) for _ in chosen)
    invented = [
        Deviation(round(at, 3), kind, _KINDS[kind][1](random, profile)) for at, kind in zip(times, chosen, strict=True)
    ]
    scenes = (_usurpation(random) if "usurpation" in profile.kinds else []) + (
        _forgetting(random, profile) if {"change", "compact"} <= profile.kinds and profile.wall_rate > 1.0 else []
    )
    if "compact" in profile.kinds and len(profile.peers) > 1 and random.random() < 0.3:
        scenes += _asking_again(random, profile)
    return sorted([*invented, *scenes])


def _usurpation(random: Random) -> list[Deviation]:
    """A leader is cut off or stands still; another one takes over and works; then the former one is asked to read."""
    at = random.uniform(0.3, 0.6)
    lasts = random.uniform(0.3, 0.8)
    begins = [Deviation(round(at, 3), "cut_leader", (f"{lasts:.3f}", random.choice(("in", "out", "in,out"))))]
    if random.random() < 0.5:  # answers that came in meanwhile are old, and it does not know that
        begins = [
            Deviation(round(at, 3), "pause_leader", (f"{lasts * random.uniform(0.5, 1.0):.3f}",)),
            Deviation(round(at + random.uniform(0.0, 0.1), 3), "cut_leader", (f"{lasts + 0.1:.3f}", "in,out")),
        ]
    works = [Deviation(round(at + lasts * random.uniform(0.4, 1.0), 3), "append_all") for _ in range(4)]
    reads = [Deviation(round(at + lasts * random.uniform(0.3, 1.1), 3), "read_leaders") for _ in range(6)]
    return [*begins, *works, *reads]


def _forgetting(random: Random, profile: Profile) -> list[Deviation]:
    """The members change, and all that tells of it is compacted; then everybody starts again."""
    at = random.uniform(0.3, 0.5)
    later = at + random.choice((0.9, 1.9))
    changes = [Deviation(round(at + 0.05 * n, 3), "change", _change(random, profile)) for n in range(2)]
    compacts = [Deviation(round(later, 3), "compact", (name,)) for name in profile.python_peers]
    appends = [Deviation(round(later - 0.15, 3), "append_all")]  # their ids say which time it is
    return [
        *changes,
        *appends,
        *compacts,
        Deviation(round(later + 0.02, 3), "crash_all", (_lasts(random), _share(random))),
    ]


def _asking_again(random: Random, profile: Profile) -> list[Deviation]:
    """One is away while the others append and compact. It gets their snapshot, leads, and clients repeat what they had.

    Or the clock of one shows tomorrow when it starts, until it has compacted what it could.
    """
    at, away = random.uniform(0.25, 0.5), _python_peer(random, profile)
    others = [name for name in profile.python_peers if name != away]
    is_ahead = bool(others) and random.random() < 0.5
    wrong = random.choice(others) if is_ahead else ""
    scene = [(0.0, "crash", (away, "0.600", "1.0")), (0.02, "append_all", ()), (0.3, "append_all", ())]
    if is_ahead:
        scene += [(0.34, "show_tomorrow", (wrong, "0.380")), (0.35, "crash", (wrong, "0.010", "1.0"))]
        scene += [(0.42, "transfer", (wrong,))]
    scene += [(later, "compact", (name,)) for later in (0.45, 0.5, 0.55, 0.7) for name in others]
    scene += [(0.75, "transfer", (away,)), (0.8, "repeat_all", ()), (0.9, "repeat_all", ())]
    return [Deviation(round(at + later, 3), what, words) for later, what, words in scene]
