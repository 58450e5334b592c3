"""The state store as an application inside the broker: requests in, effects out.

What becomes of a request:

================================================  ====================================================================
no response topic                                 dropped: there is nowhere to answer (PUBACK 0x83, a line in the log)
response topic that the document forbids          the client is disconnected (0x90, topic name invalid)
a message below the prefix of notifications       the client is disconnected (0x87, not authorized): a counterfeit
response topic that access rules do not permit    the client is disconnected (0x87, not authorized)
response topic with a wildcard, or empty          the client is disconnected (0x82, protocol error; MQTT 5.0, 3.3.2.3.5)
message expiry of zero                            dropped in the same way: its sender does not wait any longer
KEYNOTIFY of a client that cannot be told         ``-ERR`` and why (a hosted store does not know who it is)
not QoS 1, or no correlation data                 ``-ERR syntax error``; the service's dialect adds status 400 and why
malformed payload                                 the refusal of :func:`~statestore_client.wire.commands.decode_command`
not authorized                                    ``-ERR not authorized``
a continuation token of somebody else             ``-ERR syntax error``; see :mod:`.scan_tokens`
SET, DEL or VDEL of a read-only key               the same: other sites alone say what is there
the same SET, DEL or VDEL again                   the same response again; nothing is executed
``__ts`` or ``__ft`` that is not a timestamp      ``-ERR malformed timestamp``
an answer that its client does not take           ``-ERR`` with both sizes: brokers leave out what is too large
anything else                                     what the store says
================================================  ====================================================================

**The same request.** Client identifier, user, correlation data, payload, ``__ts`` and ``__ft`` are equal. ``__ts`` is
another one in each request of a client with a clock, so an equal one is the same request, as a new PUBLISH too: clients
resend so where a session was lost. Without ``__ts`` a new PUBLISH is a new request, whatever its correlation data;
only one with the DUP flag and the packet identifier of the first is the same. A will is always carried out: it is sent
once.

An answer goes to the response topic of its request, with its correlation data, its expiry, ``__stat`` and, if the store
gave a version, that version as an HLC in ``__ts``, because clients order by it what they hear.

Source: state store protocol, "State store system topic, QoS, and required MQTT5 properties", "Response format",
"KEYNOTIFY notification topics and lifecycle"; the response properties are those of the official SDKs.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache, partial
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.errors import (
    MalformedTimestampError,
    NotAuthorizedError,
    QuotaExceededError,
    RequestSyntaxError,
    Resp3Error,
    ServerError,
    TimestampError,
    UnknownServerError,
)
from statestore_client.mqtt.packets import encode
from statestore_client.mqtt.packets.primitives import BoundedCache
from statestore_client.mqtt.packets.publish import AnswerTemplate
from statestore_client.mqtt.packets.types import Publish, PublishProperties, ReasonCode
from statestore_client.server.broker.application import (
    NO_RESPONSE_TOPIC,
    Deliver,
    DisconnectClient,
    Drop,
    InOrder,
    ReportClock,
    ReportDenial,
    Route,
    Told,
    refuse_response_topic,
)
from statestore_client.server.journal import DamagedRecordError
from statestore_client.server.service.response_cache import ResponseCache, ResponseCacheLimits
from statestore_client.server.service.scan_tokens import ScanTokens
from statestore_client.server.store import Change, Outcome, RequestContext
from statestore_client.wire.commands import Command, Del, Get, KeyNotify, Scan, Set, VDel, decode_command, is_key_notify
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.protocol import (
    COMMAND_TOPIC,
    CONTENT_TYPE,
    FENCING_TOKEN,
    MAX_PACKET_SIZE,
    NOTIFICATIONS,
    PERSIST,
    PERSISTED,
    PROTOCOL_VERSION,
    QOS,
    SCAN_ENTRIES,
    STATUS,
    STATUS_MESSAGE,
    STORE_ID,
    TIMESTAMP,
    Dialect,
    notification_topic,
)
from statestore_client.wire.replies import (
    OK,
    Entries,
    ErrorReply,
    Keys,
    Notification,
    Operation,
    Reply,
    decode_notification,
    encode_notification,
    encode_reply,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from statestore_client.mqtt.packets.types import UserProperties
    from statestore_client.server.broker.application import Effect
    from statestore_client.server.journal import Journal, Row, StoredRecords, Timeline, WriteBatch
    from statestore_client.server.shares import Shares
    from statestore_client.server.store import StateStore, StoreUsage
    from statestore_client.wire.instant import Instant

# -- request properties ------------------------------------------------------------------------------------------------
#
# What comes beside the payload of a request: its user properties, and by what it is recognised when it comes again.


#: What makes two requests with the same client identifier and correlation data one: payload, ``__ts``, ``__ft``, the
#: client's user, and, without ``__ts``, the packet identifier.
Content: TypeAlias = tuple[bytes, str | None, str | None, str | None, int | None]

_TRUE: Final = PERSISTED[1]

#: Of ``__ts`` and ``__ft``. Node ids are client ids, which are no longer; the quota does not count those of the fences.
_LONGEST_NODE_ID: Final = 1024


def digest(content: Content) -> int:
    """A fingerprint that means the same after a restart, which ``hash`` does not. That of a request with ``__ts`` and
    without a user is the one of earlier releases: a client that repeats it across an upgrade gets its answer.
    """
    payload, timestamp, token, user, packet_id = content
    hashed = blake2b(payload, digest_size=8)
    hashed.update(f"\0{timestamp}\0{token}".encode())
    if user is not None or packet_id is not None:
        hashed.update(repr((user, packet_id)).encode())
    return int.from_bytes(hashed.digest(), "big")


def request_properties(user_properties: UserProperties) -> tuple[str | None, str | None, bool]:
    """The texts of ``__ts`` and ``__ft``, of a repeated property the first one; and whether it is to be on disk."""
    timestamp = token = None
    is_marked = False
    for name, text in user_properties:
        if name == TIMESTAMP and timestamp is None:
            timestamp = text
        elif name == FENCING_TOKEN and token is None:
            token = text
        elif name == PERSIST and text == _TRUE:
            is_marked = True
    return timestamp, token, is_marked


def parse_timestamp(text: str) -> HlcTimestamp:
    """Stricter than clients are: a timestamp without a node identifies nobody, and one may be stored with every key."""
    try:
        timestamp = HlcTimestamp.parse(text)
    except TimestampError as error:
        raise MalformedTimestampError from error
    if not 0 < len(timestamp.node_id) <= _LONGEST_NODE_ID:
        raise MalformedTimestampError
    return timestamp


def _parse_token(text: str) -> HlcTimestamp:
    """Without the writer's own way to write it: every marked key holds a token."""
    token = parse_timestamp(text)
    return HlcTimestamp(token.wall_ms, token.counter, token.node_id)


#: A writer sends the same token with each of its requests. As the same object again it passes the mark that it has set
#: itself without a comparison, and a thousand marked keys hold one token.
TOKENS: Final = BoundedCache(_parse_token)


# -- service -----------------------------------------------------------------------------------------------------------


#: Whether this client may carry out this command.
Authorizer: TypeAlias = "Callable[[str, Command], bool]"

_SERVICE: Final = Dialect.SERVICE
_OK: Final = encode_reply(OK)  # in either dialect
_STATUS_OK: Final = ((STATUS, "200"), (PROTOCOL_VERSION, "1.0"))
_DEFAULT_CACHE: Final = ResponseCacheLimits()


class StateStoreService:
    """Implements :class:`~statestore_client.server.broker.application.Application`."""

    __slots__ = (
        "_answer",
        "_authorize",
        "_counters",
        "_dialect",
        "_fingerprint",
        "_has_rules",
        "_keeps_all",
        "_largest_packet",
        "_life_id",
        "_may_be_answered_on",
        "_no_observer",
        "_read_only",
        "_responses",
        "_status",
        "_store",
        "_text_of",
        "_tokens",
        "_user_of",
        "next_deadline",
    )

    def __init__(
        self,
        store: StateStore,
        *,
        token_key: bytes,
        dialect: Dialect = Dialect.SERVICE,
        authorize: Authorizer | None = None,
        cache_limits: ResponseCacheLimits = _DEFAULT_CACHE,
        may_be_answered_on: Callable[[str, str], bool] | None = None,
        user_of: Callable[[str], str | None] | None = None,
        largest_packet: Callable[[str], int] | None = None,
        journal: Journal | None = None,
        keeps_all: bool = True,
        read_only: bytes | None = None,
        no_observer: Callable[[str], str | None] | None = None,
    ) -> None:
        """``may_be_answered_on(client id, topic)``: otherwise a client could have us publish where it may not.
        ``user_of(client id)`` is who its client proved to be, None for nobody in particular: what one user was answered
        is not another's, who has the same client identifier later. ``token_key``: see :class:`.ScanTokens`.
        ``largest_packet(client id)`` is how many bytes of a packet its client takes.

        Responses to writes are written into the ``journal``; those to reads are lost with the server, and so are,
        unless the store ``keeps_all``, those to what does not survive, and notifications: clients that come back look
        again at what they observe.

        Below the prefix ``read_only`` clients change nothing; what others put there is as fleeting as a read.
        ``no_observer(client id)`` says why this client cannot be told of changes; None if it can.
        """
        self._no_observer = no_observer
        self._read_only = read_only
        self._keeps_all = keeps_all
        self._store = store
        #: When the next key expires (monotonic seconds). Old responses wait for any tick: their number is bounded.
        self.next_deadline: Final = store.next_deadline
        self._dialect = dialect
        self._text_of = HlcTimestamp.__str__ if dialect is _SERVICE else HlcTimestamp.unpadded
        self._authorize = authorize
        self._has_rules = authorize is not None or read_only is not None
        self._may_be_answered_on = may_be_answered_on
        self._user_of = user_of or _nobody
        self._largest_packet = largest_packet or _any_size
        self._responses = ResponseCache(cache_limits, journal)
        self._tokens = ScanTokens(token_key, journal)
        self._life_id = self._tokens.store_id
        self._name_store()
        self._fingerprint: Callable[[Content], int] = hash if journal is None else digest
        self._counters: defaultdict[str, int] = defaultdict(int)

    @property
    def usage(self) -> StoreUsage:
        """What the store holds."""
        return self._store.usage

    @property
    def shares(self) -> tuple[Shares, ...]:
        """What of it is whose."""
        return self._store.shares

    @property
    def quota_refusals(self) -> Mapping[str, int]:
        """How many requests were refused, by the name of the quota."""
        return self._store.quota_refusals

    def clock_ahead_s(self, now: float) -> float:
        """How far the clocks of clients are ahead of the store's: see :class:`.ClientClocks`."""
        return self._store.clocks.furthest_s(now)

    @property
    def counters(self) -> Mapping[str, int]:
        """Since the start: ``requests.Set``, ``refusals.QuotaExceededError``, ``dropped.expired``, ``redelivered``."""
        return self._counters

    def restore(self, storage: StoredRecords, timeline: Timeline) -> None:
        """Responses and keys of an earlier life. Raises DamagedRecordError."""
        self._store.restore(storage, timeline)
        self._tokens.restore(storage)
        self._name_store()
        self._responses.restore(storage, timeline)

    def absorb(self, batch: WriteBatch, timeline: Timeline) -> None:
        """Follow another server, which wrote this batch, or rows of a snapshot that no batch has touched since. Raises
        DamagedRecordError.
        """
        self._store.absorb(batch, timeline)
        self._tokens.absorb(batch)
        self._responses.absorb(batch, timeline)

    def rows(self) -> Iterator[Row]:
        """What is written of each key and response, as it is when the iterator comes to it."""
        yield from self._store.rows()
        yield from self._responses.rows()

    def settle(self) -> None:
        """The rows of a snapshot are all here."""
        self._responses.settle()

    def go_on(self, storage: StoredRecords, timeline: Timeline) -> None:
        """After the last batch, in that server's place. ``storage`` has its clock. Raises DamagedRecordError."""
        self._name_store()
        self._responses.settle()
        self._store.go_on(storage, timeline)

    @property
    def store_id(self) -> str:
        """The name of the store, in its answers; empty where the dialect has no place for it. It is another one after
        each start if what is written does not survive them all.
        """
        if self._dialect is not _SERVICE:
            return ""
        return self._tokens.store_id if self._keeps_all else self._life_id

    def _name_store(self) -> None:
        """Answers say which store this is."""
        store_id = self.store_id
        # The document knows __ts alone; the official SDKs insist on the status and the version of the protocol.
        self._status: UserProperties = (*_STATUS_OK, (STORE_ID, store_id)) if self._dialect is _SERVICE else ()
        # By message expiry: that of a client's requests is always the same.
        self._answer = lru_cache(maxsize=64)(partial(_answer_template, self._status))

    # -- Application --------------------------------------------------------------------------------------------------

    #: Where requests come, and the topics on which the store alone may speak: together what
    #: :func:`.is_state_store_topic` names.
    topics: Final = (COMMAND_TOPIC,)
    prefixes: Final = (NOTIFICATIONS,)

    def handle(self, client_id: str, message: Publish, now: Instant) -> Sequence[Effect]:
        """Carry out a request: the response first, then the notifications that it caused."""
        if message.topic != COMMAND_TOPIC:
            self._counters["kicked"] += 1
            return (DisconnectClient(client_id, ReasonCode.NOT_AUTHORIZED, "notifications are the server's to send"),)
        properties = message.properties
        response_topic, correlation_data = properties.response_topic, properties.correlation_data
        if response_topic is None:
            return self._drop(client_id, "no_response_topic", NO_RESPONSE_TOPIC)
        if refusal := refuse_response_topic(client_id, response_topic):
            self._counters["kicked"] += 1
            return (refusal,)
        if self._may_be_answered_on is not None and not self._may_be_answered_on(client_id, response_topic):
            self._counters["kicked"] += 1
            denial = ReportDenial(client_id, ReasonCode.NOT_AUTHORIZED, "publish", response_topic)
            return (
                denial,
                DisconnectClient(client_id, ReasonCode.NOT_AUTHORIZED, "this response topic is not permitted"),
            )
        if properties.message_expiry == 0:
            return self._drop(client_id, "expired", "the request has expired: its message expiry is 0")
        if message.qos != QOS or correlation_data is None:
            return (self._bad_request(message, "requests need QoS 1 and correlation data"),)
        return self._respond(client_id, message, correlation_data, now)

    def client_disconnected(self, client_id: str, now: Instant) -> None:  # noqa: ARG002 - part of the protocol
        """Stop notifying the client. Its responses are kept: it may send the same requests again."""
        self._store.client_disconnected(client_id)

    def tick(self, now: Instant) -> Sequence[Effect]:
        """Expire keys and forget old responses."""
        self._responses.drop_old(now.monotonic)
        return self._notifications(self._store.tick(now))

    # -- requests -----------------------------------------------------------------------------------------------------

    def _respond(self, client_id: str, message: Publish, correlation_data: bytes, now: Instant) -> Sequence[Effect]:
        if not self._tokens.is_written:
            self._tokens.write()
        timestamp, token, is_marked = request_properties(message.properties.user_properties)
        command: Command | None = None
        denials: tuple[ReportDenial | ReportClock, ...] = ()
        fingerprint: int | None = None  # of what is remembered
        if len(correlation_data) > _LONG_CORRELATION_DATA:
            correlation_data = sha256(correlation_data).digest()
        request = (client_id, correlation_data)
        try:
            user = self._user_of(client_id)
            command = decode_command(message.payload, self._dialect)
            if self._has_rules:
                self._check_rights(client_id, command)
            if type(command) in _WRITES and message.packet_id:
                packet_id = message.packet_id if timestamp is None else None
                fingerprint = self._fingerprint((message.payload, timestamp, token, user, packet_id))
                if timestamp is not None or message.dup:
                    known = self._responses.get(request, fingerprint, now.monotonic)
                    if known is not None:
                        self._counters["redelivered"] += 1
                        payload, version = known
                        return (self._response(message.properties, payload, version, is_kept=self._keeps_all),)
            if is_marked and type(command) is Set:
                command = attrs.evolve(command, persist=True)
            elif type(command) is Scan and SCAN_ENTRIES in message.properties.user_properties:
                command = attrs.evolve(command, entries=True)
            outcome = self._execute(client_id, user, command, timestamp, token, now)
        except ServerError as error:
            outcome = Outcome(ErrorReply(error.with_traceback(None)), is_kept=self._keeps_all)
        reply = outcome.reply
        if command is not None:
            self._counters[_REQUESTS[type(command)]] += 1
        if type(reply) is ErrorReply:
            self._counters[f"refusals.{type(reply.error).__name__}"] += 1
            denials = _denials(client_id, command, reply.error)
        payload = _OK if reply is OK else self._encoded(reply, message.payload)
        if fingerprint is not None:
            self._responses.put(request, fingerprint, payload, outcome.version, now.monotonic, is_kept=outcome.is_kept)
        is_kept = outcome.is_kept and type(command) in _WRITES
        response = self._response(message.properties, payload, outcome.version, is_kept=is_kept)
        quota = reply.error.quota if type(reply) is ErrorReply and isinstance(reply.error, QuotaExceededError) else None
        if quota is not None and self._dialect is _SERVICE:
            # Beside the text that all SDKs know. An answer that is repeated is without it: the payload is remembered.
            told = (*self._status, (STATUS_MESSAGE, quota))
            response = _reply(message.properties, payload, told, is_fleeting=not is_kept)
        if len(payload) > _SHORT and (problem := self._misfit(client_id, response.message)) is not None:
            self._counters["refusals.AnswerTooLarge"] += 1
            payload = self._encoded(ErrorReply(UnknownServerError(problem)), message.payload)
            response = self._response(message.properties, payload, None, is_kept=False)
        if self._store.clocks.news:
            denials = (*denials, *self._clock_reports())
        changes = outcome.changes
        return (response, *self._notifications(changes), *denials) if changes or denials else (response,)

    def _clock_reports(self) -> list[ReportClock]:
        news = self._store.clocks.news
        reports = [ReportClock(each.client_id, each.ahead_ms / 1000) for each in news]
        news.clear()
        return reports

    def _check_rights(self, client_id: str, command: Command) -> None:
        """Before anything is done, and before anything that was done is told again."""
        if self._authorize is not None and not self._authorize(client_id, command):
            raise NotAuthorizedError
        if isinstance(command, _WRITE) and self.is_read_only(command.key):
            raise NotAuthorizedError

    def _execute(
        self,
        client_id: str,
        user: str | None,
        command: Command,
        timestamp: str | None,
        token: str | None,
        now: Instant,
    ) -> Outcome:
        if type(command) is KeyNotify and len(notification_topic(client_id, command.key)) > _LONGEST_TOPIC:
            raise RequestSyntaxError  # its notifications could never be sent
        if type(command) is KeyNotify and self._no_observer is not None and (why := self._no_observer(client_id)):
            raise UnknownServerError(why)
        stamp = None if timestamp is None else parse_timestamp(timestamp)
        fencing_token = None if token is None else TOKENS[token]
        request = RequestContext(client_id, stamp, fencing_token, now, user)
        return self._scan(command, request) if type(command) is Scan else self._store.apply(command, request)

    def _scan(self, command: Scan, request: RequestContext) -> Outcome:
        """The store's own tokens are places among the keys, for its eyes only."""
        user, pattern = request.user, command.pattern
        if command.token is not None:
            command = attrs.evolve(command, token=self._tokens.open(command.token, user, pattern))
        outcome = self._store.apply(command, request)
        reply = outcome.reply
        if not isinstance(reply, Keys | Entries) or reply.token is None:
            return outcome
        token = self._tokens.seal(reply.token, user, pattern, request.now.monotonic)
        return attrs.evolve(outcome, reply=attrs.evolve(reply, token=token))

    def _misfit(self, client_id: str, message: Publish) -> str | None:
        """Why the client would never get this: brokers leave out what is larger than it takes (MQTT-3.1.2-25)."""
        most = self._largest_packet(client_id)
        if len(message.payload) <= most - _LONGEST_HEAD:
            return None
        head = len(encode(attrs.evolve(message, payload=b"", packet_id=1)))
        size = head + len(message.payload) + _MORE_BYTES
        return None if size <= most else f"the answer takes {size} bytes, and this client {most} (Maximum Packet Size)"

    def _response(
        self, request: PublishProperties, payload: bytes, version: HlcTimestamp | None, *, is_kept: bool
    ) -> Route:
        """``is_kept``: it belongs to what is there after a restart. An answer to a read is as fleeting as the read."""
        if version is None or request.correlation_data is None:
            return _reply(request, payload, self._status, is_fleeting=not is_kept)
        text = self._text_of(version)
        properties, block = self._answer(request.message_expiry).fill(request.correlation_data, text)
        message = Publish(request.response_topic or "", payload, QOS, False, False, 0, properties, block)
        return Route(message, not is_kept)

    def _encoded(self, reply: Reply, request: bytes) -> bytes:
        """In the words of the dialect. What the document says of KEYNOTIFY holds for one that cannot be read, too."""
        is_odd = self._dialect is Dialect.DOCUMENT and type(reply) is ErrorReply and is_key_notify(request)
        return encode_reply(reply, self._dialect, to_key_notify=is_odd)

    def _bad_request(self, message: Publish, why: str) -> Effect:
        self._counters["bad_requests"] += 1
        properties = message.properties
        payload = self._encoded(ErrorReply(RequestSyntaxError()), message.payload)
        if self._dialect is Dialect.DOCUMENT:
            return _reply(properties, payload, (), is_fleeting=True)
        status = ((STATUS, "400"), (PROTOCOL_VERSION, "1.0"), (STATUS_MESSAGE, why))
        return _reply(properties, payload, status, is_fleeting=True)

    def is_read_only(self, key: bytes) -> bool:
        """Whether it is other sites that say what is there."""
        return self._read_only is not None and key.startswith(self._read_only)

    # -- notifications ------------------------------------------------------------------------------------------------

    def announce(self, changes: Iterable[Change]) -> Sequence[Effect]:
        """What observers are told of changes that no client has made."""
        return self._notifications(changes)

    def _notifications(self, changes: Iterable[Change]) -> Sequence[Effect]:
        """One series for each change of a key: its observers hear of the changes in order, whoever made them."""
        return [self._in_order(same) for same in _together(changes)]

    def _in_order(self, changes: Sequence[Change]) -> InOrder:
        first = changes[0]
        payload = encode_notification(first.notification, self._dialect)  # once: a value may have megabytes
        is_kept = self._keeps_all and not self.is_read_only(first.key)
        told = Told(first.key, payload, first.version) if is_kept else None
        return InOrder(first.key, self._series(changes, payload), told)

    def tell_again(self, told: Told, client_ids: Iterable[str]) -> Sequence[Effect]:
        """What these clients were to be told in an earlier life. Raises DamagedRecordError."""
        try:
            notification = decode_notification(told.payload)
        except Resp3Error as error:
            raise DamagedRecordError(f"the record of a notice: {error}") from error
        return self._notifications(Change(name, told.key, notification, told.version) for name in client_ids)

    def _series(self, changes: Sequence[Change], payload: bytes) -> Iterator[Effect]:
        """Carried out a part at a time: by then somebody else may be connected under the client identifier."""
        self._counters["notifications"] += len(changes)
        observers = self._store.observers
        for change in changes:
            if observers.has(change.client_id, change.key):
                yield self._notification(change, payload)

    def _notification(self, change: Change, payload: bytes) -> Effect:
        """To the owning connection as the real service does; to subscribers as the document says."""
        version = self._text_of(change.version)
        properties = PublishProperties(None, None, CONTENT_TYPE, None, None, ((TIMESTAMP, version),))
        topic = notification_topic(change.client_id, change.key)
        message = Publish(topic, payload, QOS, False, False, 0, properties)
        if len(payload) > _SHORT and self._misfit(change.client_id, message) is not None:
            message = attrs.evolve(message, payload=_CHANGED)  # without the value: its observer may read it
        is_fleeting = not self._keeps_all or self.is_read_only(change.key)
        if self._dialect is _SERVICE:
            return Deliver(change.client_id, message, is_fleeting)
        return Route(message, is_fleeting)

    # -- counting -----------------------------------------------------------------------------------------------------

    def _drop(self, client_id: str, counter: str, why: str) -> Sequence[Effect]:
        self._counters[f"dropped.{counter}"] += 1
        return (Drop(client_id, why),)


#: An MQTT string has at most this many bytes (MQTT 5.0, 1.5.4); notification topics are ASCII.
_LONGEST_TOPIC: Final = 65_535

#: Clients use 16 bytes. Longer ones are remembered as their hash: a few hundred of 64 KiB would fill the cache and make
#: it forget the responses of everybody else.
_LONG_CORRELATION_DATA: Final = 64

#: Bytes of an answer or notification that every client is taken to have room for.
_SHORT: Final = 128

#: More than anything beside the payload: two texts of 65,535 bytes, and some short ones.
_LONGEST_HEAD: Final = 200_000

#: Of a longer remaining length and two subscription identifiers.
_MORE_BYTES: Final = 3 + 2 * 5

#: What an observer gets in place of a notification that is too large for it.
_CHANGED: Final = encode_notification(Notification(Operation.SET))

#: Bytes of a key in the log.
_SHOWN: Final = 200

#: What must not be executed twice. Reading twice does no harm, and a KEYNOTIFY that is sent again after a reconnect
#: must be executed: its first execution ended with the connection.
_WRITE: Final = (Set, Del, VDel)
_WRITES: Final[frozenset[type[Command] | None]] = frozenset(_WRITE)

#: Refusals of a command that whoever runs the server wants to know of. The others are its client's business.
_DENIALS: Final[dict[type[ServerError], int]] = {
    NotAuthorizedError: ReasonCode.NOT_AUTHORIZED,
    QuotaExceededError: ReasonCode.QUOTA_EXCEEDED,
}

#: In the words of access rules, but for SCAN, which has a pattern and no key.
_ACTIONS: Final[dict[type[Command], str]] = {Get: "read", Scan: "scan", KeyNotify: "watch"}

_REQUESTS: Final[dict[type[Command], str]] = {
    kind: f"requests.{kind.__name__}" for kind in (Set, Get, Del, VDel, KeyNotify, Scan)
}


def _nobody(client_id: str) -> None:
    del client_id


def _any_size(client_id: str) -> int:
    del client_id
    return MAX_PACKET_SIZE


def _denials(client_id: str, command: Command | None, error: ServerError) -> tuple[ReportDenial, ...]:
    code = _DENIALS.get(type(error))
    if code is None or command is None:
        return ()
    what = command.pattern if isinstance(command, Scan) else command.key
    return (ReportDenial(client_id, code, _ACTIONS.get(type(command), "write"), _shown(what)),)


def _shown(key: bytes) -> str:
    return key[:_SHOWN].decode(errors="backslashreplace")


def _together(changes: Iterable[Change]) -> list[list[Change]]:
    """What different observers are to hear of the same change."""
    groups: list[list[Change]] = []
    last: Change | None = None
    for change in changes:
        if last is None or change.version is not last.version or change.key != last.key:
            groups.append([])
        groups[-1].append(change)
        last = change
    return groups


def _answer_template(users: UserProperties, expiry_s: int | None) -> AnswerTemplate:
    """Of responses with a version."""
    return AnswerTemplate(expiry_s, CONTENT_TYPE, users, TIMESTAMP)


def _reply(request: PublishProperties, payload: bytes, user_properties: UserProperties, *, is_fleeting: bool) -> Route:
    """Routed like any message. It lives as long as its request would have."""
    properties = PublishProperties(
        None, request.message_expiry, CONTENT_TYPE, None, request.correlation_data, user_properties
    )
    return Route(Publish(request.response_topic or "", payload, QOS, False, False, 0, properties), is_fleeting)
