"""Which keys are watched, by whom, and what each watcher has seen.

One KEYNOTIFY per key however many watch it (the server keeps it per client and key and forgets it when the client
disconnects: state store protocol, "KEYNOTIFY notification topics and lifecycle").

Invariant: a watcher sees versions of a key in ascending order, each once; a deletion may repeat the version of the
value that it deleted.
Invariant: after a reconnect, the first event of a key carries the latest state, with ``missed`` set if it changed
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import attrs

from statestore_client.core.actions import EventKind, Observer, Output, Waiter, WatchEvent, WatchOptions
from statestore_client.core.results import Item
from statestore_client.errors import ClosedError, StateStoreError
from statestore_client.wire.commands import Command, Get, KeyNotify
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import Notification, Operation


class _Phase(Enum):
    STARTING = "starting"  # KEYNOTIFY is to be sent, or on its way
    READING = "reading"  # the server notifies; a GET is on its way to learn what was missed
    ACTIVE = "active"


@attrs.define(eq=False)
class _Watcher:
    observer: Observer
    waiter: Waiter | None  # waits until the watch is active; None afterwards
    options: WatchOptions
    initial: bool  # the current value is still owed
    late: bool = False  # there may have been values before it: its first event says so
    suspended: bool = False  # it has had an event that says so
    notified: bool = False  # it has had an event, so that later ones go to it as well


@attrs.define(eq=False)
class _Key:
    phase: _Phase = _Phase.STARTING
    watchers: list[_Watcher] = attrs.Factory(list)
    version: HlcTimestamp | None = None  # of the last event
    present: bool | None = None  # None until something is known
    missed: bool = False  # the link was down since the last event
    missed_before: bool = False  # the same, when the connection before ended: what its leftovers have to tell
    attempt: int = 0  # number of the request that it waits for
    poll: float | None = None  # seconds between reads
    polled: bool = False  # the read on its way is one of these
    renews: bool = False  # KEYNOTIFY is sent once more before that read
    overtaken: bool = False  # a notification came while it is on its way
    again: bool = False  # one without its value came then: that read may be too old
    listed: bool = False  # a SCAN said that it is there, if nothing else is known


class WatchTable:
    """The watch half of a client."""

    __slots__ = ("_output", "keys")

    def __init__(self, *, output: Output) -> None:
        self._output = output
        self.keys: dict[bytes, _Key] = {}

    def __bool__(self) -> bool:
        return bool(self.keys)

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self.keys))

    def add(
        self,
        key: bytes,
        observer: Observer,
        waiter: Waiter,
        options: WatchOptions,
        *,
        listed: bool = False,
        late: bool = False,
    ) -> bool:
        """Watch ``key``. Returns whether what is :meth:`wanted` must be sent.

        ``listed``: a SCAN has said that it is there. ``late``: the watcher's first event may not be the key's first.
        """
        state = self.keys.get(key)
        new = state is None
        if state is None:
            state = self.keys[key] = _Key()
        state.listed = state.listed or listed
        watcher = _Watcher(observer, waiter, options, options.initial, late)
        state.watchers.append(watcher)
        state.poll = _shortest_poll(state.watchers)
        is_unknown = state.listed and state.present is None
        if state.phase is _Phase.ACTIVE and not options.initial and not is_unknown:
            self._started(watcher)
        elif state.phase is _Phase.ACTIVE:
            state.phase = _Phase.READING
            return True
        return new

    def wanted(self, key: bytes) -> Command:
        """What the server has to be asked for ``key`` next."""
        state = self.keys.get(key)
        if state is None:
            return KeyNotify(key, stop=True)
        return Get(key) if state.phase is _Phase.READING and not state.renews else KeyNotify(key)

    def is_active(self, key: bytes) -> bool:
        """Whether the server notifies of ``key``, and nothing is to be asked."""
        state = self.keys.get(key)
        return state is not None and state.phase is _Phase.ACTIVE

    def is_absent(self, key: bytes) -> bool:
        """Whether the last thing that is known of ``key`` is that it does not exist."""
        state = self.keys.get(key)
        return state is None or state.present is False

    def remove(self, key: bytes, observer: Observer) -> bool:
        """Forget a watcher. Returns whether KEYNOTIFY STOP must be sent: it was the key's last.

        A caller that still waits for the watch to begin gets an error.
        """
        state = self.keys.get(key)
        if state is None:
            return False
        for watcher in state.watchers:
            if watcher.observer is observer and watcher.waiter is not None:
                watcher.waiter.reject(ClosedError("the watch is closed"))
        state.watchers = [w for w in state.watchers if w.observer is not observer]
        if state.watchers:
            state.poll = _shortest_poll(state.watchers)
            return False
        del self.keys[key]
        return True

    def poll_interval(self, key: bytes) -> float | None:
        """Seconds between reads of ``key``; None for no reads."""
        state = self.keys.get(key)
        return None if state is None else state.poll

    def polling(self, key: bytes) -> bool:
        """It is time to read ``key``. Returns whether a GET must be sent: nothing else is going on."""
        state = self.keys.get(key)
        if state is None or state.phase is not _Phase.ACTIVE:
            return False
        state.phase = _Phase.READING
        state.polled = True
        return True

    def renewing(self, key: bytes) -> bool:
        """The server may have forgotten ``key``. Returns whether it must be told again: KEYNOTIFY is not on its way.

        The key is read after that. What is found then was missed; notifications go on counting meanwhile.
        """
        state = self.keys.get(key)
        if state is None or state.phase is _Phase.STARTING:
            return False
        state.phase = _Phase.READING
        state.polled = state.renews = True
        return True

    def suspended(self) -> None:
        """The link broke: the server forgets our KEYNOTIFYs and changes go unseen."""
        for key, state in self.keys.items():
            state.phase = _Phase.STARTING
            state.missed_before = state.missed
            state.missed = True
            state.polled = state.renews = state.again = False
            for watcher in state.watchers:
                if watcher.options.connection_events and watcher.waiter is None and not watcher.suspended:
                    watcher.suspended = True
                    self._output.notify(watcher.observer, WatchEvent(EventKind.SUSPENDED, key, None, None))

    def expect(self, key: bytes, attempt: int) -> None:
        """From now on only the answer to this request counts for ``key``."""
        if (state := self.keys.get(key)) is not None:
            state.attempt = attempt
            state.overtaken = False

    def expects(self, key: bytes, attempt: int) -> bool:
        """Whether ``key`` waits for the answer to this request.

        An answer to a KEYNOTIFY of an earlier connection says nothing: the server has forgotten it (and answers a
        repeated one from its cache, without carrying it out).
        """
        state = self.keys.get(key)
        return state is not None and state.attempt == attempt

    def notifying(self, key: bytes) -> bool:
        """KEYNOTIFY was answered. Returns whether a GET must tell what is there.

        After a reconnect, for ``initial``, and for a key that was listed: it may have gone since. If nobody knows that,
        no later listing contradicts what is known, when the notification of its return was lost.
        """
        state = self.keys.get(key)
        if state is not None and state.renews:
            state.renews = False
            return True
        if state is None or state.phase is not _Phase.STARTING:
            return False
        if state.missed or state.listed or any(w.initial for w in state.watchers):
            state.phase = _Phase.READING
            return True
        self._activate(key, state)
        return False

    def read(self, key: bytes, item: Item | None) -> bool:
        """The GET was answered: emit what the watchers have not seen. Returns whether it must be repeated.

        That a key is absent comes without a version. When a notification said meanwhile that it is there, nobody can
        tell which of the two is newer: responses and notifications have topics of their own, and no common order.
        """
        state = self.keys.get(key)
        if state is None or state.phase is not _Phase.READING:
            return False
        if item is None and state.overtaken and state.present:
            return True
        changed = self._changed(state, item)
        event = WatchEvent(
            EventKind.DELETE if item is None else EventKind.SET,
            key,
            None if item is None else item.value,
            None if item is None else item.version,
            # A read that finds news found what a notification did not tell. That a key is gone is found without a
            # version: nobody can say which of the changes that are yet to be notified lie before it.
            missed=state.missed or state.polled or item is None,
        )
        state.polled = False
        for watcher in state.watchers:
            owed = watcher.initial and item is not None
            watcher.initial = False
            if owed or (changed and (watcher.notified or watcher.waiter is None)):
                self._notify(watcher, event, missed=event.missed and not owed)
        if changed:
            state.present = item is not None
            # After a gap, versions of keys to come may be smaller, as below.
            state.version = item.version if item is not None else None if state.missed else state.version
        self._activate(key, state)
        is_stale, state.again = state.again, False
        return is_stale and self.polling(key)

    def told_without_value(self, key: bytes, notification: Notification, version: HlcTimestamp | None) -> bool:
        """A NOTIFY SET arrived without VALUE. Returns whether a GET must be sent, whose answer is the event.

        Before KEYNOTIFY is answered nothing is owed for it, as with :meth:`notified`: after a gap the key is read.
        """
        state = self.keys.get(key)
        if state is None or state.phase is _Phase.STARTING or _is_outdated(state, notification, version):
            return False
        state.again = state.phase is _Phase.READING
        return self.polling(key)

    def notified(self, key: bytes, notification: Notification, version: HlcTimestamp | None) -> None:
        """A NOTIFY arrived. Repeated and outdated ones are dropped.

        Before KEYNOTIFY is answered it can only be a leftover of the connection before, which the broker delivers again
        (MQTT 5.0, 4.4). It follows what was seen there without a gap, and says nothing about the time since.
        """
        state = self.keys.get(key)
        if state is None:
            return
        if _is_outdated(state, notification, version):
            return
        state.version = version or state.version
        state.present = notification.operation is Operation.SET
        state.overtaken = True
        kind = EventKind.SET if state.present else EventKind.DELETE
        is_leftover = state.phase is _Phase.STARTING
        missed = state.missed_before if is_leftover else state.missed
        event = WatchEvent(kind, key, notification.value, version, missed=missed)
        if is_leftover:
            state.missed_before = False
        else:
            state.missed = False
        for watcher in state.watchers:
            if not is_leftover:
                watcher.initial = False  # this event is as new as what the pending GET can answer
            elif watcher.waiter is not None and not watcher.notified:
                continue  # it had not begun to watch then
            self._notify(watcher, event, missed=missed)

    def failed(self, key: bytes, error: StateStoreError) -> None:
        """The server refused to watch ``key``: the watch ends with the error."""
        state = self.keys.pop(key, None)
        for watcher in state.watchers if state else ():
            self._end(watcher, error)

    def close(self, error: StateStoreError) -> None:
        """The client ends: so do all watches."""
        for key in list(self.keys):
            self.failed(key, error)

    def _changed(self, state: _Key, item: Item | None) -> bool:
        """Whether the watchers must hear of what the GET found.

        A key that is absent after a gap, as it was before, may have been there in between. A version that is smaller
        after a gap, before anything was notified, is that of a store that began anew, on a machine that was set back.
        """
        if item is None:
            return state.present is True or state.missed or (state.present is None and state.listed)
        if item.version is None or state.version is None:
            return state.present is not True or state.missed
        return item.version > state.version or (state.missed and item.version != state.version)

    def _activate(self, key: bytes, state: _Key) -> None:
        state.phase = _Phase.ACTIVE
        state.missed = False
        for watcher in state.watchers:
            self._started(watcher)
            if watcher.suspended:
                watcher.suspended = False
                self._output.notify(watcher.observer, WatchEvent(EventKind.RESUMED, key, None, None))

    def _notify(self, watcher: _Watcher, event: WatchEvent, *, missed: bool) -> None:
        if event.missed is not (missed := missed or watcher.late):
            event = attrs.evolve(event, missed=missed)
        watcher.notified, watcher.late = True, False
        self._output.notify(watcher.observer, event)

    def _started(self, watcher: _Watcher) -> None:
        if watcher.waiter is not None:
            watcher.waiter.resolve(None)
        watcher.waiter = None

    def _end(self, watcher: _Watcher, error: StateStoreError) -> None:
        if watcher.waiter is not None:
            watcher.waiter.reject(error)
        self._output.notify(watcher.observer, error)


def _is_outdated(state: _Key, notification: Notification, version: HlcTimestamp | None) -> bool:
    """Whether the watchers know of this already.

    A server that follows the published document notifies of a deletion with the version of the value that was deleted.
    """
    if version is None or state.version is None or version > state.version:
        return False
    deletes_last = notification.operation is Operation.DELETE and version == state.version and state.present is True
    return not deletes_last


def _shortest_poll(watchers: list[_Watcher]) -> float | None:
    return min((w.options.poll for w in watchers if w.options.poll is not None), default=None)
