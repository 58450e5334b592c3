"""Members that share work while they stand still, die, come and go: an item has one owner, and in the end all have it.

They run the steps of one update, as the two shells do, over the generators of locks and their renewals, in the world
of ``recipes_world``: machines stand still, their clocks differ and jump, requests arrive late or never, and what a
member knows of the group is late.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import attrs
import pytest
from recipes_world import Machine, Steps, World

from statestore_client.core.leases import keep_renewed
from statestore_client.core.locks import Grant, LockTerms, release, try_acquire
from statestore_client.core.steps import Invoke, Pause
from statestore_client.errors import LeaseLostError, StateStoreError
from statestore_client.recipes import shares
from statestore_client.recipes.roster import Roster
from statestore_client.recipes.shares import GiveBack, Join, Look, Sharing, Take, share_of
from statestore_client.wire.commands import Set

_ITEMS = ("a", "b", "c", "d", "e")
_LEASE_S = 1.0
_REQUEST_S = 0.3
#: Until then something fails now and then; then all comes right within the other.
_FAULTS_S, _RIGHT_S = 10.0, 8.0
_SCHEDULES = 60


@attrs.define(eq=False)
class Lease:
    """A lock that renews itself."""

    terms: LockTerms
    grant: Grant
    machine: Machine
    valid_until: float
    has_ended: bool = False

    @classmethod
    def of(cls, terms: LockTerms, grant: Grant, machine: Machine) -> Lease:
        made = cls(terms, grant, machine, grant.valid_until)
        machine.world.start(made._kept(), machine)
        return made

    @property
    def valid(self) -> bool:
        return not self.has_ended and not self.machine.is_dead and self.machine.now < self.valid_until

    def _kept(self) -> Steps:
        renewals = keep_renewed(self.terms, self.grant, now=self.machine.now, renewed=self._renewed, lost=self._lost)
        step = next(renewals)
        with suppress(StopIteration):
            while not self.has_ended:
                try:
                    answer = yield step
                except StateStoreError as error:
                    step = renewals.throw(error)
                else:
                    step = renewals.send(answer)

    def _renewed(self, valid_until: float) -> None:
        self.valid_until = valid_until

    def _lost(self, _: LeaseLostError) -> None:
        self.has_ended = True


class Member:
    """A program that shares the work, on a machine of its own."""

    def __init__(self, group: Group, name: str) -> None:
        self.group = group
        self.name = name
        self.machine = Machine(group.world, rate=group.world.random.uniform(0.992, 1.008))
        self.held: dict[str, Lease] = {}
        self.has_left = False
        self.leaves = False
        self._membership: Lease | None = None
        self._sharing = Sharing(name, _ITEMS)
        self._seen: Roster | None = None

    def work(self) -> Steps:
        """Until it is to leave; then it gives everything back."""
        while not self.leaves:
            try:
                yield from self._update()
                for item, lease in list(self.held.items()):
                    yield from self._work_on(item, lease)
            except StateStoreError:
                yield Pause(0.05)
        for item in sorted(self.held):
            yield from self._do(GiveBack(item))
        if self._membership is not None:
            yield from self._release(self._membership)
        self.has_left = True

    def _work_on(self, item: str, lease: Lease) -> Steps:
        if lease.valid:
            self.group.check_alone(self, item)
            yield Pause(self.group.world.random.uniform(0.0, 0.05))
            yield Invoke(Set(b"done/" + item.encode(), b""), _REQUEST_S, lease.grant.fencing_token)

    def _update(self) -> Steps:
        is_member = self._membership is not None and self._membership.valid
        steps = self._sharing.update(self.held, self.group.world.random.choice((0.0, 0.2)), is_member=is_member)
        answer: object = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            answer = yield from self._do(step)

    def _do(self, step: shares.Step) -> Steps:
        match step:
            case Join(seconds):
                self._membership = yield from self._locked(f"members/{self.name}")
                if self._membership is None:
                    yield Pause(max(0.05, seconds))
                return self._membership is not None
            case Look(seconds):
                yield Pause(max(0.01, seconds))
                return self._look()
            case GiveBack(item):
                yield from self._release(self.held.pop(item))
            case Take(item) if (lease := (yield from self._locked(f"items/{item}"))) is not None:
                self.held[item] = lease
        return None

    def _look(self) -> Roster | None:
        """Another roster than before; what is told of the group comes late now and then, or not at all."""
        if self.group.world.random.random() < self.group.blindness or self.group.present() == self._seen:
            return None
        self._seen = self.group.present()
        return self._seen

    def holder(self) -> bytes:
        """Used once."""
        return b"%b %d" % (self.name.encode(), next(self.group.holders))

    def _locked(self, name: str) -> Steps:
        terms = LockTerms(name.encode(), self.holder(), _LEASE_S)
        try:
            grant = yield from try_acquire(terms, _REQUEST_S)
        except StateStoreError:
            self.group.world.post(terms.give_back())
            raise
        return None if grant is None else Lease.of(terms, grant, self.machine)

    def _release(self, lease: Lease) -> Steps:
        lease.has_ended = True
        with suppress(StateStoreError):  # it ends by itself
            yield from release(lease.terms, _REQUEST_S)


class Group:
    """All members, what happens to them, and what must hold."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, longest_delay_s=1.5 * _LEASE_S, loss=0.03)
        self.blindness = 0.5
        self.holders = count()
        self.violations: list[str] = []
        random = self.world.random
        self.members = [Member(self, f"m{number}") for number in range(random.randint(2, 4))]
        for member in self.members:
            comes_at = random.choice((0.0, random.uniform(0.0, _FAULTS_S)))
            self.world.at(comes_at, partial(self.world.start, member.work(), member.machine))
        for _ in range(random.randint(3, 9)):
            self.world.at(random.uniform(0.5, _FAULTS_S), self._fail)

    def _fail(self) -> None:
        random, member = self.world.random, self.world.random.choice(self.members)
        living = [each for each in self.members if not (each.machine.is_dead or each.leaves)]
        match random.randrange(6):
            case 0 if len(living) > 1:
                random.choice(living).machine.is_dead = True
            case 1 if len(living) > 1:
                random.choice(living).leaves = True
            case 2:
                member.machine.ahead_s += random.uniform(0.0, 2 * _LEASE_S)
            case _:
                member.machine.stands_still_until = self.world.store.now + random.uniform(0.0, 3 * _LEASE_S)

    def present(self) -> Roster:
        """The members, as the store has them."""
        held = self.world.store.keys.items()
        return Roster({
            key[8:].decode(): each.value
            for key, each in held
            if key.startswith(b"members/") and each.ends_at > self.world.store.now
        })  # fmt: skip

    def check_alone(self, member: Member, item: str) -> None:
        """It is about to work on this: nobody else believes to have it, by any clock."""
        for other in self.members:
            lease = other.held.get(item)
            if other is not member and lease is not None and lease.valid:
                self.violations.append(f"{member.name} and {other.name} have {item} at {self.world.store.now:.3f} s")

    def run(self) -> list[str]:
        """What was violated."""
        self.world.run(_FAULTS_S)
        self.world.longest_delay_s, self.world.loss, self.blindness = 0.01, 0.0, 0.0
        self.world.run(_FAULTS_S + _RIGHT_S)
        living = [member for member in self.members if not (member.machine.is_dead or member.has_left)]
        names = [member.name for member in living]
        for member in living:
            has = {item for item, lease in member.held.items() if lease.valid}
            if has != share_of(member.name, names, _ITEMS):
                self.violations.append(f"{member.name} of {names} has {sorted(has)} in the end")
        return self.violations


def violations(seed: int) -> list[str]:
    """Of a schedule."""
    return Group(seed).run()


def test_an_item_has_one_owner_and_all_are_shared_in_the_end() -> None:
    """Also where members stand still, die, leave or come late, clocks jump, and messages are lost."""
    assert {seed: found for seed in range(_SCHEDULES) if (found := violations(seed))} == {}


# -- the checker sees mistakes -----------------------------------------------------------------------------------------


def _keeps(items: Any) -> Any:
    """Nothing is given back."""
    del items
    yield from ()


def _takes_what_the_roster_says(member: Member, step: Any, does: Any = Member._do) -> Steps:
    """The lock of an item is not asked for."""
    if not isinstance(step, Take):
        return (yield from does(member, step))
    terms = LockTerms(b"nobody's/" + member.holder(), b"x", _LEASE_S)
    grant = yield from try_acquire(terms, _REQUEST_S)
    member.held[step.item] = Lease.of(terms, grant, member.machine)
    return None


def _never_joins_again(sharing: Sharing, *given: Any, does: Any = Sharing.update, is_member: bool) -> Any:
    """Who was a member once is one for ever."""
    return does(sharing, *given, is_member=is_member or bool(sharing._roster.members))


@pytest.mark.parametrize(
    ("place", "name", "mistake", "complaint"),
    [
        (shares, "_give_back", _keeps, "in the end"),
        (Sharing, "update", _never_joins_again, "in the end"),
        (Member, "_do", _takes_what_the_roster_says, " have "),
        pytest.param(
            Member, "holder", lambda member: member.name.encode(), " have ", marks=pytest.mark.ci
        ),  # 126 of them
        (Lease, "valid", property(lambda lease: not lease.has_ended and not lease.machine.is_dead), " have "),
    ],
    ids=["keeps_all", "never_joins_again", "asks_no_lock", "one_name_for_ever", "believes_too_long"],
)
def test_a_mistake_is_seen(
    place: object, name: str, mistake: Callable[..., Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some schedule complains of it."""
    monkeypatch.setattr(place, name, mistake)
    assert any(complaint in found for seed in range(300) for found in violations(seed))
