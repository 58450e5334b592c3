"""Reading and changing a key under a lease: what is read is claimed, before anything is made of it.

A token on the write alone does not protect what was *read* before it. A holder that stands still between its read and
its write, with the request on its way or the socket full, wakes up when the next holder has read the key and not
written it: the old token is still the newest one that the key has seen, so the late write is applied, and the next
holder writes what it made of the value before. One of the two updates is lost.

So a read claims the key. ``SET key value NEX`` with the value that GET returned and with the lease's token leaves the
value as it is and raises the key's mark; if the value has changed in between, nothing is applied, and all begins anew.
The protocol has no other command that raises a mark (state store protocol, "Fencing Token Algorithm").

Invariant: no write with an older token is applied to a key between its claim and the end of the lease, unless the key
is deleted or expires meanwhile: its mark goes with it.
Invariant: a key that was missing when it was read gets its first value with NX. It has no mark that could be raised.

What the protocol gives no means against is a late *deletion* between GET and the claim: NEX is applied to a missing key
as well, and sets the value again that was deleted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from enum import Enum
from typing import Final, Literal, TypeAlias

import attrs

from statestore_client.core.arguments import BatchCommands, refuse_awaitable, value_bytes
from statestore_client.core.leases import LeaseView, guarded, next_token
from statestore_client.core.locks import LockTerms, set_result
from statestore_client.core.results import Item, SetResult
from statestore_client.core.steps import Answer, Step
from statestore_client.errors import FencingTokenTooOldError, KeyChangedError
from statestore_client.wire.commands import Condition, Get, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

#: So often a key may change between a read and its claim: more than leftovers of earlier holders explain.
ATTEMPTS: Final = 20
#: Of so many keys a lease's store knows what it has read or written last.
_MOST_KEYS: Final = 65_536


class Claims:
    """What is known of keys under one lease: the version that its holder gave a key, or that the key was missing.

    A key that still has the version of the holder's own write has its mark, too: reading it needs no claim. Nor does
    the lock's own key: it would lose its end by the claim.
    """

    __slots__ = ("_known", "_lock_key")

    def __init__(self, lock_key: bytes) -> None:
        self._lock_key = lock_key
        self._known: OrderedDict[bytes, HlcTimestamp | None] = OrderedDict()  # None: it was missing when it was read

    def claim(self, template: Set, item: Item | None) -> Set | None:
        """The command that raises the mark of a key that was read, and leaves its value; None if none is needed.

        ``template`` has the key and what a SET sets beside the value: without an expiry, an earlier one ends.
        """
        key = template.key
        if item is None:
            self._note(key, None)
            return None
        return None if self._covers(key, item) else claim(template, item)

    def _covers(self, key: bytes, item: Item) -> bool:
        is_own = item.version is not None and self._known.get(key) == item.version
        return is_own or key == self._lock_key

    def to_send(self, command: Set) -> Set:
        """What to send for a SET: the first one of a key that was missing goes with NX."""
        was_missing = command.condition is None and self._known.get(command.key, command) is None
        return attrs.evolve(command, condition=Condition.NX) if was_missing else command

    def applied(self, key: bytes, result: SetResult) -> bool:
        """Note the answer to a SET under the lease; returns whether it was applied."""
        if result.applied and result.version is not None:
            self._note(key, result.version)
        else:
            self._known.pop(key, None)
        return result.applied

    def written(self, key: bytes, result: SetResult, *, was_missing: bool) -> SetResult:
        """Note the answer to what :meth:`to_send` made. Raises :class:`KeyChangedError` if its NX was in vain."""
        if not self.applied(key, result) and was_missing:
            raise _changed(key, "it was missing when it was read, and somebody has written it since")
        return result

    def _note(self, key: bytes, version: HlcTimestamp | None) -> None:
        self._known.pop(key, None)
        self._known[key] = version
        if len(self._known) > _MOST_KEYS:
            self._known.popitem(last=False)


def claim(template: Set, item: Item) -> Set:
    """The command that raises the mark of a key, if it still has the value that was read."""
    return attrs.evolve(template, value=item.value, condition=Condition.NEX)


def read(lease: LeaseView, claims: Claims, template: Set, timeout: float) -> Generator[Step, Answer, Item | None]:
    """Read a key and claim it for the lease. ``timeout`` (seconds) is for each request."""
    for _ in range(ATTEMPTS):
        item: Item | None = (yield from guarded(lease, Get(template.key), timeout, None)).value
        if (command := claims.claim(template, item)) is None:
            return item
        result = set_result((yield from guarded(lease, command, timeout, lease.fencing_token)))
        if claims.applied(command.key, result):
            return Item(command.value, result.version)
    raise _kept_changing(template.key)


class BatchReads:
    """Many reads at once. ``outcomes``: for each key what was read, or an error; complete when all is answered."""

    def __init__(self, claims: Claims, templates: BatchCommands) -> None:
        self.outcomes: list[object] = []
        self._claims = claims
        self._source = templates
        self._templates: list[Set | None] = []  # None: it is no key
        self._claimed: list[tuple[int, Set]] = []

    def gets(self) -> BatchCommands:
        """What to send first."""
        for template in self._source:
            self._templates.append(template if isinstance(template, Set) else None)
            yield Get(template.key) if isinstance(template, Set) else template

    def to_claim(self) -> BatchCommands:
        """What to send then."""
        for position, (template, item) in enumerate(zip(self._templates, self.outcomes, strict=True)):
            if template is not None and (item is None or isinstance(item, Item)):
                command = self._claims.claim(template, item)
                if command is not None:
                    self._claimed.append((position, command))
                    yield command

    def changed(self, answers: list[object]) -> Iterator[tuple[int, Set]]:
        """What has changed between the two and is to be read again: its position, and how to claim it."""
        for (position, command), answer in zip(self._claimed, answers, strict=True):
            if not isinstance(answer, SetResult):
                self.outcomes[position] = answer
            elif self._claims.applied(command.key, answer):
                self.outcomes[position] = Item(command.value, answer.version)
            else:
                yield position, command


class BatchWrites:
    """Many SETs at once: what to send for them, and what their answers mean."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._sent: list[tuple[bytes, bool] | None] = []  # the key, and whether it was missing; None: an error

    def to_send(self, commands: BatchCommands) -> BatchCommands:
        """What to send."""
        for command in commands:
            sent = self._claims.to_send(command) if isinstance(command, Set) else command
            self._sent.append((sent.key, sent is not command) if isinstance(sent, Set) else None)
            yield sent

    def outcomes(self, answers: list[object]) -> list[object]:
        """The answers; an error for each key that was missing when it was read, and was not when it was written."""
        return [self._outcome(sent, answer) for sent, answer in zip(self._sent, answers, strict=True)]

    def _outcome(self, sent: tuple[bytes, bool] | None, answer: object) -> object:
        if sent is None or not isinstance(answer, SetResult):
            return answer
        key, was_missing = sent
        try:
            return self._claims.written(key, answer, was_missing=was_missing)
        except KeyChangedError as error:
            return error


class Keep(Enum):
    """The type of :data:`KEEP`."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return "KEEP"


#: What a change returns to leave the key as it is.
KEEP: Final = Keep.KEEP

#: Gets the present value (None: there is no such key), returns the new one, None to delete the key, or KEEP.
Change: TypeAlias = Callable[[bytes | None], bytes | str | Literal[Keep.KEEP] | None]


@attrs.frozen
class Edit:
    """What is to be changed, and how. ``timeout`` (seconds) is for each request."""

    key: bytes
    change: Change
    expiry_ms: int | None
    timeout: float
    persist: bool = False


def edit(terms: LockTerms, lease: LeaseView, work: Edit) -> Generator[Step, Answer, Item | None]:
    """Edit once, under ``lease``. Returns the item as it is afterwards; None when there is none.

    Raises :class:`LeaseLostError` when the lease is lost before the write was sent or answered.
    """
    token = lease.fencing_token
    try:
        return (yield from _edit(lease, work, token))
    except FencingTokenTooOldError:
        # A newer token of this very lease may guard the key: one from next_token(), with which it was written before. A
        # fresh one is newer than that. If it is refused too, another lock guards the key, and repeating is no use.
        token = yield from next_token(terms, lease, work.timeout)
        return (yield from _edit(lease, work, token))


def _edit(lease: LeaseView, work: Edit, token: HlcTimestamp) -> Generator[Step, Answer, Item | None]:
    """Claims the key once it is known that it is to be changed: what is kept gets no mark."""
    for _ in range(ATTEMPTS):
        item: Item | None = (yield from guarded(lease, Get(work.key), work.timeout, None)).value
        wanted = work.change(None if item is None else item.value)
        refuse_awaitable("change", wanted)
        if wanted is KEEP:
            return item
        if wanted is None:
            if item is None:
                return None
            if (yield from guarded(lease, VDel(work.key, item.value), work.timeout, token)).value.matched:
                return None
            continue
        value = value_bytes(wanted)
        write = Set(work.key, value, None, work.expiry_ms, None, work.persist)
        if item is None:
            write = attrs.evolve(write, condition=Condition.NX)
        elif not set_result((yield from guarded(lease, claim(write, item), work.timeout, token))).applied:
            continue
        result = set_result((yield from guarded(lease, write, work.timeout, token)))
        if result.applied:
            return Item(value, result.version)
    raise _kept_changing(work.key)


def _kept_changing(key: bytes) -> KeyChangedError:
    """The error of a reader who could not claim what it had read."""
    return _changed(key, f"it changed {ATTEMPTS} times before it was claimed: somebody writes it without the lock")


def _changed(key: bytes, why: str) -> KeyChangedError:
    name = key[:80].decode("utf-8", "backslashreplace")
    return KeyChangedError(f"the key {name} is not what was read: {why}", key=key)
