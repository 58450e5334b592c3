"""Two sites that keep one key alive, restart, part and meet, in any order; beside them what people were told.

The model knows no versions. It knows what each site was told last, and from that alone what must come of it:

======================================  ===============================================================================
who keeps the key alive in the end      what both sites have, also two times to live later
======================================  ===============================================================================
nobody                                  nothing, once the time to live is over; until then the last word of a site that
                                        has unset the key, if no other site has said anything
one site                                what it was told last
both persist it                         what one of the two was told last, and both say that it is contested
both, and one of them with ``set``      not possible: that one has said that the key is lost, to the other one
======================================  ===============================================================================

A site loses a key to another one only, never to what it has said itself in an earlier life.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from random import Random
from typing import Final

import attrs
from own_key_sites import KEY_TTL_MS, Mesh

from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.own_keys import KeyContested, KeyLost, OwnNameInUse
from statestore_client.wire.kvstore.value import Value

KEY: Final = "key"
SITES: Final = ("a", "b")
#: What happens to one site, and to both.
OF_ONE: Final = ("set", "persist", "unset", "restart")
OF_BOTH: Final = ("contest", "sync", "cut", "expiry")
STEPS: Final = (*(f"{step} {site}" for site in SITES for step in OF_ONE), *OF_BOTH)
#: Where one site alone is told something.
STEPS_OF_ONE: Final = (*(f"{step} a" for step in OF_ONE), *OF_BOTH[1:])

#: Longer than all batches take, and longer than the slowest pace of a key that is contested.
_BATCHES_S: Final = 0.3
_SLOWEST_S: Final = 8.5
_TTL_S: Final = KEY_TTL_MS / 1000
#: At what is there in the end, while the time to live passes twice.
_LOOKS: Final = 7


@attrs.define
class Told:
    """What one site was told since its start."""

    keeps: str | None = None
    value: bytes = b""
    #: It was told to unset a key that it had.
    last_word: bytes | None = None
    has_said: bool = False
    is_contested: bool = False


class TwoSites(Mesh):
    """A line between them stands at first. A site that starts again comes up without it."""

    def __init__(self, *, falling: bool, clock: Random | None = None) -> None:
        super().__init__(*SITES)
        self.told = {site: Told() for site in SITES}
        self.violations: list[str] = []
        self._falling = falling
        self._clock = clock
        self._number = 0
        self._must_sync = False
        for site in SITES:
            self._start(site)

    # -- what happens --------------------------------------------------------------------------------------------------

    def do(self, step: str, pause: float = _BATCHES_S) -> None:
        """One step, and some time after it."""
        what, _, site = step.partition(" ")
        match what:
            case "set" | "persist":
                self._keep(site, what)
            case "unset":
                self._unset(site)
            case "restart":
                self._start(site)
                self.told[site] = Told(has_said=self.told[site].has_said)
                self.cut = {site}
            case "contest":
                for each in SITES:
                    self._keep(each, "persist")
            case "cut":
                self.cut = {"a"}
            case "sync":
                self.cut = set()
                self.sync(*SITES)
            case _:
                pause = _TTL_S + 1
        self.run(pause)
        self._look()

    def _start(self, site: str) -> None:
        """With the wall clock, which is set wrong at some starts."""
        started_ms = int(self.now * 1000)
        if self._clock is not None:
            started_ms = self._clock.choice([0, 1000, started_ms])
        self.areas[site] = Area("0", site, key_ttl_ms=KEY_TTL_MS, started_ms=started_ms)

    def _value(self) -> bytes:
        """Another one each time; greater ones first, or last: the greater one of equal versions wins."""
        self._number += 1
        return b"%03d" % (900 - self._number if self._falling else self._number)

    def _keep(self, site: str, how: str) -> None:
        value = self._value()
        assert getattr(self.areas[site].own, how)(KEY, value, self.now) is None
        self.told[site] = Told(how, value, has_said=True)

    def _unset(self, site: str) -> None:
        value = self._value()
        is_there = self.areas[site].get(KEY) is not None
        assert self.areas[site].own.unset(KEY, value, self.now) is None
        told = self.told[site]
        self.told[site] = Told(last_word=value if is_there else None, has_said=told.has_said or is_there)

    def _deliver(self, sender: str, receiver: str, entries: Mapping[str, Value]) -> None:
        """What does not fit begins a sync, as between real sites."""
        before = len(self.resyncs)
        super()._deliver(sender, receiver, entries)
        self._must_sync |= len(self.resyncs) > before

    def settle(self) -> None:
        """Also the syncs that come of it."""
        super().settle()
        while self._must_sync:
            self._must_sync = False
            self.sync(*SITES)

    # -- what must hold ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """At what the sites say, and whether they have what they keep alive."""
        for site in SITES:
            own, told = self.areas[site].own, self.told[site]
            for event in own.events:
                if isinstance(event, OwnNameInUse) or event.originator == site:
                    self.violations.append(f"{site} takes itself for another: {event}")
                elif isinstance(event, KeyContested):
                    told.is_contested = True
                elif isinstance(event, KeyLost):
                    if told.keeps != "set":
                        self.violations.append(f"{site} has lost what it does not hold with set")
                    told.keeps = None
            own.events.clear()
            if (own.get(KEY) is None) != (told.keeps is None):
                self.violations.append(f"{site} keeps the key alive, or does not: {told}")
            if told.keeps is not None and self._waits_for_nothing(site) and self.areas[site].get(KEY) is None:
                self.violations.append(f"{site} does not have what it keeps alive")

    def _waits_for_nothing(self, site: str) -> bool:
        return KEY not in self.areas[site].own._advertise

    def end(self) -> list[str]:
        """The line stands again, and nothing happens any more. What is wrong then."""
        self.do("sync")
        self._check_last_words()
        self.run(_SLOWEST_S)
        self._check()
        for _ in range(_LOOKS):
            if self.violations:
                break
            self.run(2 * _TTL_S / _LOOKS)
            self._check()
        return self.violations

    def _values(self) -> set[bytes | None]:
        return {None if (entry := self.areas[site].get(KEY)) is None else entry.value for site in SITES}

    def _check_last_words(self) -> None:
        if any(told.keeps for told in self.told.values()):
            return
        for site, other in (SITES, SITES[::-1]):
            word = self.told[site].last_word
            if word is not None and not self.told[other].has_said and not self._values() <= {word, None}:
                self.violations.append(f"the last word of {site} was {word!r}, and there is {self._values()}")

    def _check(self) -> None:
        self._look()
        keepers = [site for site in SITES if self.told[site].keeps]
        wanted = {self.told[site].value for site in keepers} or {None}
        found = self._values()
        if len(keepers) == 2 and any(self.told[site].keeps == "set" for site in SITES):
            self.violations.append("two keep the key alive, and one of them with set")
        if len(found) > 1 or not found <= wanted:
            self.violations.append(f"there is {found}, and told was {self.told}")


def every_order(least: int, most: int, steps: tuple[str, ...] = STEPS) -> Iterator[tuple[str, ...]]:
    """So many steps, but for those that begin with what does nothing to sites that have nothing."""
    beginnings = [step for step in steps if step.partition(" ")[0] in ("set", "persist", "contest", "cut")]
    for length in range(least - 1, most):
        for first in beginnings:
            yield from ((first, *others) for others in product(steps, repeat=length))


def violations(steps: Iterable[str], *, falling: bool = True) -> list[str]:
    """Of what must hold, when this happens one after the other, with all batches done in between."""
    sites = TwoSites(falling=falling)
    for step in steps:
        sites.do(step)
    return sites.end()


def random_steps(seed: int) -> tuple[str, ...]:
    """Four to twelve of them; in every third case one site alone is told something."""
    random = Random(seed)
    steps = STEPS if seed % 3 else STEPS_OF_ONE
    return tuple(random.choice(steps) for _ in range(random.randint(4, 12)))


def random_violations(seed: int) -> list[str]:
    """Of :func:`random_steps`, some of them within one batch, and with wall clocks that are set wrong."""
    random = Random(-seed)
    sites = TwoSites(falling=random.random() < 0.5, clock=random if random.random() < 0.5 else None)
    for step in random_steps(seed):
        sites.do(step, random.choice([0.0, 0.05, _BATCHES_S, 3.0]))
    return sites.end()
