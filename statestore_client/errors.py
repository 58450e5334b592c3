"""Every error that the state store SDK raises, in one tree.

::

    StateStoreError
    ├── InvalidArgumentError (ValueError)      the caller's mistake: nothing was sent
    │   ├── SettingsError                      connection settings that cannot work
    │   └── PickleRefusedError (TypeError)     a live client cannot travel between processes
    ├── ServerError                            the server refused the command: it was not applied
    │   ├── RequestClockSkewError
    │   ├── FencingError
    │   │   ├── FencingTokenRequiredError
    │   │   ├── FencingTokenTooOldError
    │   │   └── FencingTokenClockSkewError
    │   ├── QuotaExceededError
    │   ├── RequestSyntaxError
    │   ├── NotAuthorizedError
    │   ├── UnknownCommandError
    │   ├── WrongArgumentCountError
    │   ├── MissingTimestampError
    │   ├── MalformedTimestampError
    │   ├── EmptyKeyError
    │   └── UnknownServerError                 a text this release does not know; it is kept
    ├── TransportError                         the connection; see ``may_have_been_applied``
    │   ├── ConnectRefusedError                the broker answered CONNECT with a refusal
    │   ├── ConnectionLostError                the link broke
    │   │   └── SessionLostError               … and the broker has forgotten the requests under way
    │   └── RequestTimeoutError (TimeoutError) no answer before the request's deadline
    │       ├── CallbackReplacedError          … because the application took a callback of over() away
    │       └── NoStateStoreError              … because the broker has no state store
    ├── StoreReplacedError                     what was written is missing: the server has begun anew without its data
    ├── RemoteProtocolError                    the other side broke the protocol
    │   ├── Resp3Error                         with the byte offset
    │   ├── PacketError                        MQTT, with reason code and byte offset
    │   └── UnexpectedReplyError               well formed, but no answer to what was asked
    ├── TimestampError                         a hybrid logical clock (also a ValueError)
    │   ├── ClockDriftError
    │   └── CounterOverflowError
    ├── LockError
    │   ├── LockNotAcquiredError (TimeoutError)
    │   ├── LeaseLostError                     somebody else may hold the lock now
    │   └── KeyChangedError                    what was read under a lock is not there any more: read it again
    ├── WatchOverflowError                     a watch fell behind its bounded queue
    ├── NotMergedError                         a site of the KvStore did not take an entry
    ├── TooManyKeysError                       more keys have the prefix than the watch on it may watch
    ├── BatchError                             some items of set_many/get_many failed
    ├── DataDirectoryError                     ``statestore serve --data``: the directory cannot be used
    │   ├── DataInUseError                     by another server
    │   ├── DataDamagedError                   torn, corrupt, or not written by this server
    │   └── DataFormatError                    written by a newer release, or too old
    ├── ReplicatedLogError                     ``statestore serve --log``: the log cannot be used
    ├── BusyError                              not possible here or now: two readers, another event loop, not opened
    ├── ForkedClientError                      a client used in a process that did not open it
    └── ClosedError                            closed by you, or ended for a reason that it names

Every error pickles (Spark carries them from executor to driver). Errors that can happen after a request left this
process carry :attr:`~StateStoreError.may_have_been_applied`.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "BatchError", "BusyError", "CallbackReplacedError", "ClockDriftError", "ClosedError", "ConnectRefusedError",
    "ConnectionLostError", "CounterOverflowError", "DataDamagedError", "DataDirectoryError", "DataFormatError",
    "DataInUseError", "EmptyKeyError", "FencingError", "FencingTokenClockSkewError", "FencingTokenRequiredError",
    "FencingTokenTooOldError", "ForkedClientError", "InvalidArgumentError", "KeyChangedError", "LeaseLostError",
    "LockError", "LockNotAcquiredError", "MalformedTimestampError", "MissingTimestampError", "NoStateStoreError",
    "NotAuthorizedError", "NotMergedError", "PacketError", "PickleRefusedError", "QuotaExceededError",
    "RemoteProtocolError", "ReplicatedLogError", "RequestClockSkewError", "RequestSyntaxError", "RequestTimeoutError",
    "Resp3Error", "ServerError", "SessionLostError", "SettingsError", "StateStoreError", "StoreReplacedError",
    "TimestampError", "TooManyKeysError", "TransportError", "UnexpectedReplyError", "UnknownCommandError",
    "UnknownServerError", "WatchOverflowError", "WrongArgumentCountError",
]  # fmt: skip

#: So much of a key is shown (bytes or characters).
_SHOWN: Final = 80
_SYNCHRONIZE: Final = "ensure that the client and broker system clocks are synchronized"


class StateStoreError(Exception):
    """Base of every error of this package."""

    #: True when the command left this process and nobody can tell whether the server executed it.
    #: False means that it certainly was not applied. Repeating it is then safe.
    may_have_been_applied: bool = False
    #: Arguments of the caller's that the message may name; a command line says what they are called there.
    arguments: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The text of the error, without its class."""
        return str(self.args[0]) if self.args else ""


# -- my mistake --------------------------------------------------------------------------------------------------------


class InvalidArgumentError(StateStoreError, ValueError):
    """An argument cannot be used. Nothing was sent; correct the call.

    ``arguments`` are those whose names are in the message, where the name alone says which is meant.
    """

    def __init__(self, *args: object, argument: str | tuple[str, ...] = ()) -> None:
        super().__init__(*args)
        if argument:
            self.arguments: tuple[str, ...] = (argument,) if isinstance(argument, str) else argument


class SettingsError(InvalidArgumentError):
    """Connection settings that cannot work. The message names the setting and what it takes."""


class PickleRefusedError(InvalidArgumentError, TypeError):
    """A live client cannot be pickled. Pickle its ``ConnectionSettings`` and open a client where it is needed."""


class DataDirectoryError(StateStoreError):
    """A server's data directory cannot be used: permissions, a full disk, an I/O error. The message says what to do.

    A server that meets it while it runs stops: nothing that it could not write down was acknowledged."""


class DataInUseError(DataDirectoryError):
    """Another server has the data directory open. Stop that one first."""


class DataDamagedError(DataDirectoryError):
    """What is in the data directory is torn, corrupt or of another program. It was not changed. Restore a backup."""


class DataFormatError(DataDirectoryError):
    """A newer release wrote the data directory: use that release. Or a development version wrote it, in a format that
    no release reads."""


class ReplicatedLogError(StateStoreError):
    """A replicated server stops: its log is of something else or of a newer release, damaged, trimmed, or silent."""


class BusyError(StateStoreError):
    """The object cannot be used in this way, or not now. Nothing was sent, and nothing was taken.

    Another task or thread reads from this very watch or acquires with this very lock (one each), or the lock holds it
    already; the client was not opened, the watch not started, or it belongs to another event loop; a listener that runs
    in the network's thread waits for the network. The arguments are not to blame, so it is not a ``ValueError``."""


class ForkedClientError(StateStoreError):
    """The client was opened before ``fork()``; open a new one in this process. The parent's client is unharmed."""


class ClosedError(StateStoreError):
    """The client, lock or watch was closed by this program, or the client has ended: ``__cause__`` is the reason then.

    Trying again is in vain; a client that has ended may be opened again."""


# -- refused by the server ---------------------------------------------------------------------------------------------


class ServerError(StateStoreError):
    """The state store refused the command and changed nothing. (state store protocol, "-ERR responses")

    ``message`` is what the server said; the whole text names the command and the beginning of its key, too."""

    #: The exact text on the wire. Empty for the classes that stand for several texts.
    wire_text: str = ""
    #: What was refused: ``"SET"``, say. None where no command of this client was.
    command: str | None = None
    #: Its whole key; of a SCAN the pattern.
    key: bytes | None = None

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.wire_text if message is None else message)

    def __str__(self) -> str:
        return self.message if self.key is None else f"{self.message} ({self.command} of {_shortened(self.key)})"


class RequestClockSkewError(ServerError):
    """This machine's clock is more than a minute ahead of the server's. Synchronise the clocks.

    A client that is open is right again as soon as its clock is."""

    wire_text = f"the request timestamp is too far in the future; {_SYNCHRONIZE}"


class FencingError(ServerError):
    """A fencing token protects the key and this request's token does not allow the change. Do not retry."""


class FencingTokenRequiredError(FencingError):
    """The key is protected by a fencing token and the request carried none."""

    wire_text = "a fencing token is required for this request"


class FencingTokenTooOldError(FencingError):
    """A newer fencing token already wrote this key: another holder took over. Stop writing."""

    wire_text = "the request fencing token is a lower version than the fencing token protecting the resource"


class FencingTokenClockSkewError(FencingError):
    """The fencing token lies more than a minute in the server's future. It did not come from a lock of this server."""

    wire_text = f"the request fencing token timestamp is too far in the future; {_SYNCHRONIZE}"


class QuotaExceededError(ServerError):
    """The state store has as much as it may, together or of this user or client. Delete keys, end watches, or raise the
    quota.

    ``quota`` says which it is, its value, and what raises it, if the server tells: ours does, and not in the dialect of
    the document. It begins with the quota's name: ``keys``, ``bytes``, ``observations`` or ``observation-bytes``, with
    ``-per-user`` or ``-per-client`` where it is that of one of them."""

    wire_text = "the quota has been exceeded"

    def __init__(self, message: str | None = None, *, quota: str | None = None) -> None:
        super().__init__(message)
        self.quota: str | None = quota

    def __str__(self) -> str:
        return super().__str__() if self.quota is None else f"{super().__str__()}: {self.quota}"


class RequestSyntaxError(ServerError):
    """The server could not read the request."""

    wire_text = "syntax error"


class NotAuthorizedError(ServerError):
    """This client may not do that with this key. Nobody writes below ``sites/`` of a server whose keys cross to other
    sites: write at the site that the name tells."""

    wire_text = "not authorized"


class UnknownCommandError(ServerError):
    """The server does not know the command (older servers have no SCAN)."""

    wire_text = "unknown command"


class WrongArgumentCountError(ServerError):
    """The server expects another number of arguments for this command."""

    wire_text = "wrong number of arguments"


class MissingTimestampError(ServerError):
    """A SET arrived without its ``__ts``. A proxy that drops MQTT user properties is the usual cause."""

    wire_text = "missing timestamp"


class MalformedTimestampError(ServerError):
    """The server could not read ``__ts`` or the fencing token."""

    wire_text = "malformed timestamp"


class EmptyKeyError(ServerError):
    """Keys have at least one byte."""

    wire_text = "the key length is zero"


class UnknownServerError(ServerError):
    """The server refused with a text that this release does not know; ``message`` keeps it."""


# -- the connection ----------------------------------------------------------------------------------------------------


class TransportError(StateStoreError):
    """The connection failed before an answer arrived; ``may_have_been_applied`` tells if a repeat is safe.

    ``fatal`` is True when connecting again in the same way cannot help: wrong credentials, a certificate that is not
    trusted. A broker that is full, busy or shutting down is not (state store facts, 3.4). A client that was connected
    goes on all the same: somebody may put it right.
    """

    arguments: tuple[str, ...] = ("tls_ca_file", "tls_cert_file")  # what the advice about a certificate names

    def __init__(self, message: str = "", *, may_have_been_applied: bool = False, fatal: bool = False) -> None:
        super().__init__(message)
        self.may_have_been_applied = may_have_been_applied
        self.fatal = fatal


class ConnectRefusedError(TransportError):
    """The broker refused CONNECT. ``reason_code`` is MQTT's (MQTT 5.0, 3.2.2.2)."""

    def __init__(self, message: str = "", *, reason_code: int = 0x80, fatal: bool = False) -> None:
        super().__init__(message, fatal=fatal)
        self.reason_code = reason_code


class ConnectionLostError(TransportError):
    """The link broke, and the command could not be finished on a new one."""


class SessionLostError(ConnectionLostError):
    """The client is connected again, and the broker has forgotten its session: answers that were due will not come.

    Reads were sent anew; writes that were under way fail with this error, and may have been applied. Watches read their
    keys again. ``on_state`` is told with the state ``connected``."""


class StoreReplacedError(StateStoreError):
    """The store had carried out the write, and another one answers now: the server has begun anew, without that data.

    A server in memory does so when it is started again; one with a data directory or a log keeps its store. Of a batch
    of writes, these items have to be written again. If more was written before, by whatever call, that is missing, too:
    compare the ``store_id`` of the results. Servers that do not say which store they are, as the official service does
    not, never cause it.
    """


class RequestTimeoutError(TransportError, TimeoutError):
    """No answer before the deadline."""


class CallbackReplacedError(RequestTimeoutError):
    """No answer came through, because the application has replaced a callback of its paho client after ``over()``.

    The message names the callback. Set callbacks before ``over()``, or let a new one call the one that it replaces."""


class NoStateStoreError(RequestTimeoutError):
    """The broker has no state store, as far as can be told after a second: it says that nobody is subscribed to
    requests (MQTT reason code 0x10), and no store has ever answered this client.

    Start one beside the broker with ``statestore serve --broker``, or connect to the broker that has it. Where a broker
    does not say 0x10, a request ends with its time-out instead."""


# -- the other side broke the protocol ---------------------------------------------------------------------------------


class RemoteProtocolError(StateStoreError):
    """The peer sent bytes that its protocol does not allow."""


class Resp3Error(RemoteProtocolError):
    """Malformed RESP3; ``offset`` is the byte at which it stopped making sense, from the start of the value."""

    def __init__(self, message: str = "", *, offset: int | None = None) -> None:
        # Without an offset, the message has it already: that is how an error comes out of a pickle.
        super().__init__(message if offset is None else f"{message} (at byte {offset})")
        self.offset: int = offset or 0


class PacketError(RemoteProtocolError):
    """A malformed or forbidden MQTT packet, with the ``reason_code`` that MQTT 5.0 answers; ``offset`` is in bytes."""

    def __init__(self, message: str = "", *, reason_code: int = 0x81, offset: int | None = None) -> None:
        super().__init__(message)
        self.reason_code = reason_code
        self.offset = offset


class UnexpectedReplyError(RemoteProtocolError):
    """A well-formed reply that cannot answer the command that was sent. The command may have been applied."""

    may_have_been_applied = True


# -- clocks ------------------------------------------------------------------------------------------------------------


class TimestampError(StateStoreError, ValueError):
    """A text or numbers that are not a timestamp of a hybrid logical clock."""


class ClockDriftError(TimestampError):
    """A timestamp lies further in the future than clocks may drift (60 s unless configured)."""


class CounterOverflowError(TimestampError):
    """The logical counter of a hybrid logical clock is exhausted; it frees itself when the wall clock moves on."""


# -- locks and watches -------------------------------------------------------------------------------------------------


class LockError(StateStoreError):
    """Base of the errors about locks."""


class LockNotAcquiredError(LockError, TimeoutError):
    """Somebody else still held the lock when the time to wait for it was over.

    A client that cannot reach the server does not know that, and raises :class:`RequestTimeoutError` instead."""


class LeaseLostError(LockError):
    """The lease can no longer be proven to be ours. Stop the guarded work; another holder may have started."""


class KeyChangedError(LockError):
    """What was read under a lock is not there any more; nothing was written. Read ``key`` again, and decide anew.

    A key that was missing is there now: an earlier holder's write came late, or somebody writes without the lock. Or a
    key changed again and again between a read and its claim, which only a writer without the lock brings about."""

    def __init__(self, message: str = "", *, key: bytes = b"") -> None:
        super().__init__(message)
        self.key: bytes = key


class WatchOverflowError(StateStoreError):
    """The reader of a watch fell behind its bounded queue, which could not keep what was asked for: every event with
    ``overflow="error"``, and with ``"latest"``, on a prefix, the latest state of each key that changed."""


class NotMergedError(StateStoreError):
    """A site of the KvStore did not take an entry. ``reason`` is a ``NoMergeReason``, or one of a newer release."""

    def __init__(self, message: str = "", *, key: str = "", reason: int = 0) -> None:
        super().__init__(message)
        self.key: str = key
        self.reason: int = reason


class TooManyKeysError(StateStoreError):
    """More keys begin with the prefix than ``watch_prefix`` may watch.

    Raise its ``max_keys``, if the server has room for that many watched keys; or watch a longer prefix, or one key that
    the writers change whenever another one changes."""

    arguments: tuple[str, ...] = ("max_keys",)


class BatchError(StateStoreError):
    """Some items failed, the others were done. ``results``: for each item, in order, the result or the exception."""

    def __init__(self, message: str = "", *, results: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.results = results

    @property
    def failures(self) -> dict[int, Exception]:
        """Position of each failed item -> its error."""
        return {i: r for i, r in enumerate(self.results) if isinstance(r, Exception)}


def _shortened(key: bytes) -> str:
    """A key for people: as text, if it is one, and the beginning of a long one."""
    try:
        beginning = repr(key.decode()[:_SHOWN])
    except UnicodeDecodeError:
        beginning = repr(key[:_SHOWN])
    return beginning if len(key) <= _SHOWN else f"{beginning}... ({len(key)} bytes)"
