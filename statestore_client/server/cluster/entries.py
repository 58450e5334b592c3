"""What servers write into the replicated log: entries, their bytes, and batches of the journal in pieces.

==========  ===================================  =====================================================================
kind        beside the header                    it is valid if
==========  ===================================  =====================================================================
Claim       url, format, lease, wall clock,      its epoch is the next one, and ``seq`` is the last valid one of the
           whether it is forced                  current epoch (compare-and-set), or nobody owns that, or it is forced
BatchPiece  a piece of a batch of the journal    the epoch is current, the life is its owner, ``seq`` is the next one
Renewal     wall clock                           as a BatchPiece
HandOver    which server is to be the next       as a BatchPiece; nobody owns the epoch afterwards
NewFormat   format                               as a BatchPiece; batches after it may have this format
Challenge                                        it changes nothing; an owner that lives answers with a Renewal
Snapshot    index and fence of a snapshot        no other one is being written, or that was begun 60 s ago
Part        a piece of the snapshot              it is the next one of the snapshot that is being written
==========  ===================================  =====================================================================

:class:`~statestore_client.server.cluster.fence.Fence` decides. ``seq`` of a Challenge and of a Part are numbers of
their sender's own.

Source: ``docs/decisions/replicated-server.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import msgpack

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.journal import Changes, Stream, WriteBatch
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore_client.server.journal import Subject

#: Of the entries. A program that meets another one stops: what it cannot read may be a claim.
VERSION: Final = 1
#: The newest format of records in batches that this program reads.
FORMAT: Final = 1
#: The format of an epoch in which a data directory is copied into the log, until all of it is there: a part of it is
#: nothing to go on from.
UNFINISHED: Final = 0

#: Larger entries make the appends of others wait for more than 50 ms.
MAX_ENTRY: Final = 1 << 20
MAX_ID_BYTES: Final = 64
MAX_LEASE_MS: Final = 60_000
MAX_URL_BYTES: Final = 1024
#: Of a piece: the header has its place beside it.
MAX_DATA: Final = MAX_ENTRY - 512


@hot_value
class Life:
    """A server from its start until it stops or is deposed. ``incarnation`` is a random number of 64 bits."""

    id: str
    incarnation: int


@attrs.frozen
class Claim:
    """The server wants to own the next epoch. Clients that arrive elsewhere are passed on to ``url``. Its leases last
    ``lease_ms``: others wait for longer than that, whatever they are set to. Batches of the epoch have ``format``,
    until there is a :class:`NewFormat`.
    """

    url: str
    format: int
    lease_ms: int
    wall_ms: int
    is_forced: bool = False


@hot_value
class BatchPiece:
    """A piece of a batch; with ``is_last`` the batch is complete, and counts."""

    data: bytes
    is_last: bool = True


@hot_value
class Renewal:
    """The owner lives, and has seen everything before."""

    wall_ms: int


@attrs.frozen
class HandOver:
    """The owner gives up its epoch. ``next_id`` names the server that claims at once; others wait a moment."""

    next_id: str = ""


@attrs.frozen
class NewFormat:
    """All servers know this format of records: from here on batches may have it. Formats never go back."""

    format: int


@attrs.frozen
class Challenge:
    """A server asks whether the owner lives."""


@attrs.frozen
class Snapshot:
    """The rows as of ``index`` follow in parts, and ``fence`` is what a reader begins with there."""

    index: int
    fence: bytes


@attrs.frozen
class Part:
    """A piece of rows of the snapshot of ``index``. With ``is_last`` these rows are complete, with ``is_end`` the whole
    snapshot is.
    """

    index: int
    data: bytes
    is_last: bool = True
    is_end: bool = False


Body: TypeAlias = Claim | BatchPiece | Renewal | HandOver | NewFormat | Challenge | Snapshot | Part


@hot_value
class LogEntry:
    """One entry. ``log_ms`` is the log time when it was made; ``base`` is the index of the entry of the newest complete
    snapshot that its writer knows, 0 for none.
    """

    epoch: int
    seq: int
    life: Life
    log_ms: int
    base: int
    body: Body


# -- codec -------------------------------------------------------------------------------------------------------------
#
# Entries of the replicated log <-> bytes: an array of MessagePack.
#
# ``[version, kind, epoch, seq, id, incarnation, log time, base, …]``, and what the kind has more. There are no optional
# fields: another shape is another version, and a program that does not know it stops.


class UnreadableLogError(Exception):
    """The log has something that no server writes: it is not theirs, or it is damaged."""


class NewerLogError(UnreadableLogError):
    """A newer program has written into the log: this one must be upgraded before it can take part."""


#: Log time never goes back, so one that is near the largest number would be the end of all that is written.
_LATEST_MS: Final = 1 << 52
_MAX_NUMBER: Final = (1 << 64) - 1


def number(value: Any) -> Any:
    """0 to 2^64 - 1. Raises UnreadableLogError, as the other readers do."""
    # True and False are integers to Python, and not to MessagePack.
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise UnreadableLogError("a number from 0 to 2^64 - 1 is missing")
    return value


def text(value: Any, most_bytes: int = MAX_URL_BYTES) -> Any:
    """A text, which may be empty."""
    if type(value) is not str or len(value.encode()) > most_bytes:
        raise UnreadableLogError(f"a text of at most {most_bytes} bytes is missing")
    return value


def server_id(value: Any) -> Any:
    """As :func:`text`."""
    return text(value, MAX_ID_BYTES)


def _data(value: Any) -> Any:
    if type(value) is not bytes:
        raise UnreadableLogError("bytes are missing")
    return value


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise UnreadableLogError("true or false is missing")
    return value


def moment(value: Any) -> Any:
    """Of log time."""
    if number(value) >= _LATEST_MS:
        raise UnreadableLogError(f"an entry of the time {value} ms")
    return value


def lease(value: Any) -> Any:
    """Milliseconds. A longer one would keep all others from taking over."""
    if number(value) > MAX_LEASE_MS:
        raise UnreadableLogError(f"a lease of {value} ms; servers have at most {MAX_LEASE_MS}")
    return value


_KINDS: Final[dict[int, tuple[Callable[..., Body], tuple[tuple[str, Callable[[Any], Any]], ...]]]] = {
    1: (Claim, (
        ("url", text), ("format", number), ("lease_ms", lease), ("wall_ms", number), ("is_forced", _boolean),
    )),
    2: (BatchPiece, (("data", _data), ("is_last", _boolean))),
    3: (Renewal, (("wall_ms", number),)),
    4: (HandOver, (("next_id", server_id),)),
    5: (Challenge, ()),
    6: (Snapshot, (("index", number), ("fence", _data))),
    7: (Part, (("index", number), ("data", _data), ("is_last", _boolean), ("is_end", _boolean))),
    8: (NewFormat, (("format", number),)),
}  # fmt: skip
_CODES: Final = {make: code for code, (make, _) in _KINDS.items()}
_HEADER: Final = 8


def encode(entry: LogEntry) -> bytes:
    """Raises InvalidArgumentError if a reader would not take it."""
    life, body = entry.life, entry.body
    code = _CODES[type(body)]
    fields: list[Any] = [VERSION, code, entry.epoch, entry.seq, life.id, life.incarnation, entry.log_ms, entry.base]
    try:
        _check_header(fields)
        fields += [read(getattr(body, name)) for name, read in _KINDS[code][1]]
        packed: bytes = msgpack.packb(fields)
    except (UnreadableLogError, ValueError) as error:
        raise InvalidArgumentError(f"an entry of the log: {error}") from error
    if len(packed) > MAX_ENTRY:
        raise InvalidArgumentError(f"an entry of the log of {len(packed)} bytes; {MAX_ENTRY} are allowed")
    return packed


def decode(data: bytes) -> LogEntry:
    """One entry. Raises UnreadableLogError, or NewerLogError."""
    if len(data) > MAX_ENTRY:
        raise UnreadableLogError(f"an entry of {len(data)} bytes; servers write at most {MAX_ENTRY}")
    fields = unpack(data)
    if type(fields) is not tuple or not fields or type(fields[0]) is not int:
        raise UnreadableLogError("an entry that is not of servers of the state store")
    if fields[0] != VERSION:
        raise NewerLogError(f"an entry of version {fields[0]}; this program knows version {VERSION}")
    if len(fields) < _HEADER:
        raise UnreadableLogError("an entry without a whole header")
    kind = _KINDS.get(fields[1]) if type(fields[1]) is int else None
    if kind is None:
        raise NewerLogError(f"an entry of kind {fields[1]!r:.40}, which this program does not know")
    make, readers = kind
    if len(fields) != _HEADER + len(readers):
        raise UnreadableLogError(f"an entry of kind {fields[1]} with {len(fields)} fields")
    _check_header(fields)
    _, _, epoch, seq, name, incarnation, log_ms, base, *rest = fields
    body = make(*(read(value) for (_, read), value in zip(readers, rest, strict=True)))
    return LogEntry(epoch, seq, Life(name, incarnation), log_ms, base, body)


def _check_header(fields: Any) -> None:
    for at in (2, 3, 5, 7):
        number(fields[at])
    moment(fields[6])
    if not server_id(fields[4]):
        raise UnreadableLogError("an entry without the id of a server")


def unpack(data: bytes) -> Any:
    """MessagePack, arrays as tuples. Raises UnreadableLogError."""
    try:
        return msgpack.unpackb(data, use_list=False)
    # What msgpack raises: ValueError and its kinds, RecursionError and OverflowError come out of depth and of dates.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise UnreadableLogError(f"not MessagePack: {error}") from error


# -- batches -----------------------------------------------------------------------------------------------------------
#
# Batches of the journal <-> bytes, in pieces that fit into entries.
#
# A batch is an array of streams: the name, subjects and records in turn, and the subjects that are removed. Records
# stay the bytes that the journal has sealed. A batch counts from its last piece on: until then nobody can read it.


#: Bytes of one batch, and its pieces: what a reader holds for a batch that is not complete. A server reads its clients
#: no longer when 32 MiB wait; one packet, and what has ended in one moment, may come on top.
MAX_BATCH: Final = 256 << 20
MAX_PIECES: Final = 4096

_MAX_SUBJECT: Final = (1 << 63) - 1

_STREAMS: Final = {stream.value: stream for stream in Stream}


def pack_batch(batch: WriteBatch) -> bytes:
    """The whole."""
    packed: bytes = msgpack.packb(
        [
            [
                changes.stream.value,
                [field for put in changes.puts for field in put],
                changes.removals,
            ]
            for changes in batch.changes
        ]
    )
    return packed


def unpack_batch(data: bytes) -> WriteBatch:
    """The other way. Raises UnreadableLogError, or NewerLogError."""
    try:
        return WriteBatch(tuple(_changes(*each) for each in unpack(data)))
    except (TypeError, ValueError) as error:
        raise UnreadableLogError(f"a batch: {error}") from error


def _changes(name: str, puts: tuple[Any, ...], removals: tuple[Any, ...]) -> Changes:
    stream = _STREAMS.get(name)
    if stream is None:
        raise NewerLogError(f"a batch of the stream {name!r:.40}, which this program does not know")
    if type(puts) is not tuple or type(removals) is not tuple:
        raise UnreadableLogError(f"a batch whose changes of {stream.value} are not arrays")
    records = tuple(zip(puts[::2], puts[1::2], strict=True))
    for subject, record in records:
        _check_subject(stream, subject)
        if type(record) is not bytes:
            raise UnreadableLogError(f"a batch with a record of {stream.value} that is not bytes")
    for subject in removals:
        _check_subject(stream, subject)
    return Changes(stream, records, removals)


def _check_subject(stream: Stream, subject: Subject) -> None:
    if stream.is_numbered:
        is_one = type(subject) is int and 0 <= subject <= _MAX_SUBJECT
    else:
        is_one = type(subject) is str or type(subject) is bytes
    if not is_one:
        raise UnreadableLogError(f"a batch with the subject {subject!r:.40} in {stream.value}")


def pieces(data: bytes, size: int = MAX_DATA) -> Iterator[tuple[bytes, bool]]:
    """At least one, and whether it is the last one."""
    for start in range(0, max(len(data), 1), size):
        yield data[start : start + size], start + size >= len(data)


class Assembly:
    """Pieces that wait for the last one."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._pieces)

    def clear(self) -> None:
        """What waits is never completed: its writer is not the owner any longer."""
        self._pieces.clear()
        self._bytes = 0

    def add(self, data: bytes, *, is_last: bool) -> bytes | None:
        """The whole, if this was the last piece. Raises UnreadableLogError for what is too large."""
        self._pieces.append(data)
        self._bytes += len(data)
        if len(self._pieces) > MAX_PIECES or self._bytes > MAX_BATCH:
            raise UnreadableLogError(f"a batch of more than {MAX_PIECES} pieces or {MAX_BATCH} bytes")
        if not is_last:
            return None
        whole = b"".join(self._pieces)
        self._pieces.clear()
        self._bytes = 0
        return whole
