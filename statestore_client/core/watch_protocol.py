"""What keeps the watches of a client going: KEYNOTIFY and GET of its own, and the notifications that come in.

Steps for one key, on each connection anew (state store protocol, "KEYNOTIFY")::

    subscribed to notifications --> KEYNOTIFY --OK--> GET, if something may have been missed or is owed --> active

A store that is itself a client of the broker does not see this client's connection: it forgets a watch after a time, or
when it is started again, while the connection stands. So both steps are taken once more at half of ``lifetime``, and
when the store was away. Where a server remembers KEYNOTIFY until the connection ends, that changes nothing: state store
facts, 1.5.

The answers to these requests come to callbacks. No more of them are under way than the window holds, however many keys
there are: a request of the user waits for no more than that.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial
from itertools import count

from statestore_client.core.actions import Observer, Output, Waiter, WatchOptions
from statestore_client.core.prefixes import PrefixTable, PrefixWatch
from statestore_client.core.request import OnAnswer, Request, Stage
from statestore_client.core.request_table import RequestTable
from statestore_client.core.results import Item, KeyPage
from statestore_client.core.watches import WatchTable
from statestore_client.errors import (
    NoStateStoreError,
    RemoteProtocolError,
    RequestTimeoutError,
    StateStoreError,
    TimestampError,
    TransportError,
)
from statestore_client.wire.commands import Command, Get, KeyNotify
from statestore_client.wire.hlc import MAX_DRIFT_MS, HlcTimestamp
from statestore_client.wire.instant import Instant
from statestore_client.wire.messages import IncomingMessage
from statestore_client.wire.protocol import TIMESTAMP, notification_filter, parse_notification_topic
from statestore_client.wire.replies import Operation, decode_notification


class WatchProtocol:
    """The watches of one client. True while there are any."""

    def __init__(
        self, client_id: str, *, request_table: RequestTable, output: Output, request_timeout: float, lifetime: float
    ) -> None:
        self._client_id = client_id
        self._request_table = request_table
        self._request_timeout = request_timeout
        self._lifetime = lifetime  # seconds for which a server remembers a watch, at least
        self._renew_at = math.inf  # monotonic seconds
        self.table: WatchTable = WatchTable(output=output)
        self._to_ask: OrderedDict[bytes, None] = OrderedDict()  # keys that the server is still to be asked for
        self.prefixes: PrefixTable = PrefixTable(client_id, table=self.table, output=output, to_ask=self._to_ask)
        self._polls: dict[bytes, float] = {}  # when to read a key again, monotonic seconds
        self._next_poll = math.inf  # no later than the first of them
        self._steps: dict[int, Request] = {}  # requests without an answer, by attempt
        self._attempts = count(1)
        self._started = False  # on this connection: subscribed, and KEYNOTIFYs may leave
        self._closed = False
        self._is_sending = False
        #: The filter that all notifications of this client match.
        self.topic_filter: str = notification_filter(client_id)

    def __bool__(self) -> bool:
        return bool(self.table.keys or self.prefixes.watches)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def add(self, key: bytes, observer: Observer, waiter: Waiter, now: Instant, options: WatchOptions) -> None:
        """Watch ``key``, at once if notifications are subscribed to, otherwise with :meth:`start`."""
        if options.prefix is not None:
            watch = self.prefixes.add(key, observer, waiter, options, options.prefix)
            if self._started:
                self._scan(watch, now)
            return
        must_ask = self.table.add(key, observer, waiter, options)
        self._plan_poll(key, now)
        if must_ask:
            self._ask(key, now)

    def remove(self, key: bytes, observer: Observer, now: Instant) -> None:
        """Forget a watcher; the server is told when it was the last one of its key."""
        if self.prefixes.remove(observer):
            self._send(now)
            return
        was_last = self.table.remove(key, observer)
        self._plan_poll(key, now)
        if was_last:
            self._ask(key, now)

    # -- the connection ------------------------------------------------------------------------------------------------

    def start(self, now: Instant) -> None:
        """Notifications are subscribed to: KEYNOTIFY for every key, and a listing for every prefix."""
        self._started = True
        self._renew_at = now.monotonic + self._lifetime / 2
        self._to_ask.clear()
        self._to_ask.update(dict.fromkeys(self.table))
        for watch in self.prefixes:
            self._scan(watch, now)
        self._send(now)

    def suspend(self, now: Instant) -> None:
        """The link broke. After a reconnect every watch starts anew.

        A KEYNOTIFY of before that were sent again would take effect unnoticed, ahead of the one that is waited for, and
        what it lets through could not be told from what the old connection left over.
        """
        self._started, self._renew_at = False, math.inf
        self.table.suspended()
        self.prefixes.suspended()
        for request in self._steps.values():
            self._request_table.cancel(request, now)
        self._steps.clear()

    def refused(self, error: StateStoreError) -> None:
        """The broker refused the subscription: every watch ends."""
        for key in self.table:
            self.table.failed(key, error)
        self.prefixes.close(error)

    def close(self, error: StateStoreError) -> None:
        """The client ends."""
        self._started, self._renew_at = False, math.inf
        self._closed = True
        self.table.close(error)
        self.prefixes.close(error)

    def begin_anew(self) -> None:
        """The client is opened again, and has no watches any more."""
        for container in (self._steps, self._to_ask, self._polls):
            container.clear()
        self._closed = False

    # -- reading now and then, for brokers that lose notifications -----------------------------------------------------

    def _plan_poll(self, key: bytes, now: Instant) -> None:
        interval = self.table.poll_interval(key)
        if interval is None:
            self._polls.pop(key, None)
        else:
            self._polls[key] = due = now.monotonic + interval
            self._next_poll = min(self._next_poll, due)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        renew_at = self._renew_at if self.table else math.inf
        deadline = min(self._next_poll if self._polls else math.inf, self.prefixes.next_deadline(), renew_at)
        return None if deadline == math.inf else deadline

    def tick(self, now: Instant) -> None:
        """List and read the keys whose time has come."""
        for watch in self.prefixes.due(now):
            self._scan(watch, now)
        if now.monotonic >= self._renew_at:
            self.renew(now)
        self._send(now)
        if not self._polls or now.monotonic < self._next_poll:
            return
        for key in [key for key, due in self._polls.items() if due <= now.monotonic]:
            self._plan_poll(key, now)
            if self._started and self.table.polling(key):
                self._ask(key, now)
        self._next_poll = min(self._polls.values(), default=math.inf)

    def renew(self, now: Instant) -> None:
        """Tell the server once more what is watched, and read it."""
        if not self._started:
            return
        self._renew_at = now.monotonic + self._lifetime / 2
        self._to_ask.update(dict.fromkeys(key for key in self.table if self.table.renewing(key)))
        self._send(now)

    # -- messages ------------------------------------------------------------------------------------------------------

    def receive(self, message: IncomingMessage, now: Instant) -> None:
        """A message that is not a reply: a notification, or something foreign, which is dropped and counted.

        A version from the far future would make every later change look outdated. So the key is read, and so it is
        after a SET whose value was not sent.
        """
        target = parse_notification_topic(message.topic)
        if target is None or target[0] != self._client_id:
            self._request_table.stats.late_or_unknown_replies += 1
            return
        text = message.user_property(TIMESTAMP)
        try:
            notification = decode_notification(bytes(message.payload))
            version = None if text is None else HlcTimestamp.parse(text)
        except (RemoteProtocolError, TimestampError):
            self._request_table.stats.late_or_unknown_replies += 1
            return
        key = target[1]
        if version is not None and version.wall_ms - now.wall_ms > MAX_DRIFT_MS:
            must_read = self._started and self.table.polling(key)
        elif notification.operation is Operation.SET and notification.value is None:
            must_read = self._started and self.table.told_without_value(key, notification, version)
        else:
            must_read = False
            self.table.notified(key, notification, version)
        if must_read:
            self._ask(key, now)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _ask(self, key: bytes, now: Instant) -> None:
        """Send what the table wants for ``key`` when its turn has come."""
        self._to_ask[key] = None
        self._send(now)

    def _send(self, now: Instant) -> None:
        """Ask for the keys whose turn has come. A request may fail at once, and its callback comes here again."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._started and self._to_ask and len(self._steps) < self._request_table.window.depth:
                key, _ = self._to_ask.popitem(last=False)
                self._submit(self.table.wanted(key), key, now)
        finally:
            self._is_sending = False

    def _scan(self, watch: PrefixWatch, now: Instant) -> None:
        watch.attempt = attempt = next(self._attempts)
        self._request(watch.scan, attempt, partial(self._scan_done, watch, attempt), now)

    def _submit(self, command: Command, key: bytes, now: Instant) -> None:
        attempt = next(self._attempts)
        self.table.expect(key, attempt)
        self._request(command, attempt, partial(self._step_done, command, key, attempt), now)

    def _request(self, command: Command, attempt: int, on_answer: OnAnswer, now: Instant) -> None:
        """Send a request of a step.

        ``attempt`` tells the answer that a watch waits for from those to what it asked for on an earlier connection, or
        before the key was unwatched and watched again.
        """
        timeout = self._request_timeout
        request = self._request_table.submit(command, None, now, timeout=timeout, on_answer=on_answer)
        if request.stage is not Stage.DONE:
            self._steps[attempt] = request

    def _scan_done(
        self, watch: PrefixWatch, attempt: int, result: object, error: StateStoreError | None, now: Instant
    ) -> None:
        self._steps.pop(attempt, None)
        if watch.attempt != attempt:
            pass
        elif error is not None:
            if self._is_worth_repeating(error):
                self._scan(watch, now)
            elif self._is_final(error):
                self.prefixes.end(watch, error)
        elif isinstance(result, KeyPage) and self.prefixes.receive_page(watch, result, now):
            self._scan(watch, now)
        self._send(now)

    def _step_done(
        self, command: Command, key: bytes, attempt: int, result: object, error: StateStoreError | None, now: Instant
    ) -> None:
        self._steps.pop(attempt, None)
        if self.table.expects(key, attempt):
            if isinstance(command, KeyNotify) and command.stop:
                pass
            elif error is not None:
                self._step_failed(command, key, error, now)
            elif isinstance(command, Get):
                if self.table.read(key, result if isinstance(result, Item) else None):
                    self._submit(command, key, now)
            elif self.table.notifying(key):
                self._submit(Get(key), key, now)
            if self.prefixes and self.table.is_active(key):
                self.prefixes.activated(key)
        self._send(now)

    def _step_failed(self, command: Command, key: bytes, error: StateStoreError, now: Instant) -> None:
        if self._is_worth_repeating(error):
            self._submit(command, key, now)
        elif self._is_final(error):
            self.table.failed(key, error)
            self.prefixes.failed(key, error)

    def _is_worth_repeating(self, error: StateStoreError) -> bool:
        """A time-out, while connected to a broker with a store."""
        is_late = isinstance(error, RequestTimeoutError) and not isinstance(error, NoStateStoreError)
        return self._started and is_late

    def _is_final(self, error: StateStoreError) -> bool:
        """Whether it ends the watch: after a reconnect every watch starts anew; anything else is final.

        Final as well: a publication that the broker refuses. Repeating it at once would keep both of us busy for ever.
        """
        return self._started or self._closed or not isinstance(error, TransportError)
