"""Every error that the ØMQ Raft SDK raises, in one tree.

::

    RaftError
    ├── InvalidArgumentError (ValueError)      my mistake: nothing was sent
    │   ├── SettingsError                      settings that cannot work
    │   ├── InvalidDataError                   data that a peer would ignore or die of
    │   └── PickleRefusedError (TypeError)     a live client cannot travel between processes
    ├── ClusterError                           the cluster refused the request, this time
    │   ├── RequestExpiredError                the request id is too old, or too far in the future; final
    │   ├── ClusterBusyError                   another change of the peers or the leader is under way
    │   ├── ConfigError                        the new list of peers was refused, with name and message
    │   ├── CompactionError                    no log was trimmed, or no snapshot made; the message says why
    │   ├── HandOverError                      the leadership was not handed over; the message says why
    │   ├── LeaseEndedError                    the lease of keys has ended, and nothing was done
    │   ├── LeaseLimitError                    too many leases, or keys of a lease
    │   ├── LeasesUnsupportedError             a member of the cluster knows no leases; the message says which
    │   └── NotLeaderError                     the peer that was asked is not the leader; it may say who is
    ├── TransportError                         no answer; see ``may_have_been_applied``
    │   ├── NoLeaderError (TimeoutError)       no peer said that it is the leader
    │   ├── ConnectionLostError                the link broke under a request that must not be repeated
    │   ├── RequestTimeoutError (TimeoutError) no final answer before the deadline
    │   └── OutcomeUnknownError                the entry is in the log; whether its comparisons held is forgotten
    ├── ProtocolError                          the other side broke the protocol, with frame and byte
    ├── LogError                               about the entries that were asked for
    │   ├── OutOfDateLogError                  the peer's log ends before the index that was asked for
    │   ├── TermMismatchError                  the position has another entry there: it is another log
    │   └── HistoryOutrunError                 the log was compacted beyond the index that was asked for
    ├── PipelineError                          a Spark pipeline and its checkpoint do not fit what the log says of it
    ├── SubscriberOverflowError                a reader fell behind its bounded queue
    ├── BatchError                             some items of append_many failed
    ├── StorageError                           a peer's disk failed; the peer says nothing more until it is opened anew
    │   ├── StorageDamagedError                what is stored is not what was written, with file and byte
    │   ├── StorageFullError                   there is no room for more
    │   ├── StorageInUseError                  another process has the directory open
    │   ├── StorageVersionError                written by a newer version of this package
    │   └── StorageOwnerError                  it belongs to another peer, or to another cluster
    ├── BusyError                              not so, or not now: two readers, another event loop, not opened
    ├── ForkedClientError                      a client used in a process that did not open it
    └── ClientClosedError                      closed by you

Every error pickles (Spark carries them from executor to driver). Errors that can happen after a request left this
process carry :attr:`~RaftError.may_have_been_applied`, and errors of an append carry :attr:`~RaftError.request_id`:
repeating the append with the same id is safe, for it cannot be appended twice. A refusal says no more than that this
attempt was refused: what was accepted before, or sent before without an answer, may be applied all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raft_client.wire.request_id import RequestId

__all__ = [
    "BatchError",
    "BusyError",
    "ClientClosedError",
    "ClusterBusyError",
    "ClusterError",
    "CompactionError",
    "ConfigError",
    "ConnectionLostError",
    "ForkedClientError",
    "HandOverError",
    "HistoryOutrunError",
    "InvalidArgumentError",
    "InvalidDataError",
    "LeaseEndedError",
    "LeaseLimitError",
    "LeasesUnsupportedError",
    "LogError",
    "NoLeaderError",
    "NotLeaderError",
    "OutOfDateLogError",
    "OutcomeUnknownError",
    "PickleRefusedError",
    "PipelineError",
    "ProtocolError",
    "RaftError",
    "RequestExpiredError",
    "RequestTimeoutError",
    "SettingsError",
    "StorageDamagedError",
    "StorageError",
    "StorageFullError",
    "StorageInUseError",
    "StorageOwnerError",
    "StorageVersionError",
    "SubscriberOverflowError",
    "TermMismatchError",
    "TransportError",
]


class RaftError(Exception):
    """Base of every error of this package."""

    #: True when nobody can tell whether the cluster has executed the request, or will: it left this process and was not
    #: refused at its first attempt. With a request id that the caller gave it is always True, for an earlier call may
    #: have had it. False means that it certainly was not and will not be applied. Errors of calls that did not begin
    #: (InvalidArgumentError, ForkedClientError, ClientClosedError of a client that is closed) speak of that call only.
    may_have_been_applied: bool = False
    #: The id of the append or change of peers that failed; None for everything else.
    request_id: RequestId | None = None
    #: Arguments of the caller's that the message may name; a command line says what they are called there.
    arguments: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The text of the error, without its class."""
        return str(self.args[0]) if self.args else ""


# -- my mistake --------------------------------------------------------------------------------------------------------


class InvalidArgumentError(RaftError, ValueError):
    """An argument cannot be used. Nothing was sent; correct the call.

    ``arguments`` are those whose names are in the message, where the name alone says which is meant.
    """

    def __init__(self, *args: object, argument: str | tuple[str, ...] = ()) -> None:
        super().__init__(*args)
        if argument:
            self.arguments: tuple[str, ...] = (argument,) if isinstance(argument, str) else argument


class SettingsError(InvalidArgumentError):
    """Settings that cannot work. The message names the setting and what it takes."""


class InvalidDataError(InvalidArgumentError):
    """Data that cannot be an entry: peers ignore an empty one and one over 10 MiB without a word. Nothing was sent."""


class PickleRefusedError(InvalidArgumentError, TypeError):
    """A live client cannot be pickled. Pickle its ``RaftSettings`` and open a client where it is needed."""


class BusyError(RaftError):
    """The program uses it in a way, or at a moment, that does not work. Nothing was sent, and nothing was taken.

    Another task or thread reads from this very iterator, subscriber or watch (one reader each), or its callback does;
    the client was not opened, or belongs to another event loop; a codec or condition uses its client, which
    waits for it (use a ``callback``). The arguments are not to blame, so it is not a ``ValueError``.
    """


class ForkedClientError(RaftError):
    """The client was opened before ``fork()``; open a new one in this process. The parent's client is unharmed."""


class ClientClosedError(RaftError):
    """The client, iterator, subscriber or watch was closed by this program."""

    def __init__(self, message: str = "the client is closed", *, may_have_been_applied: bool = False) -> None:
        super().__init__(message)
        self.may_have_been_applied = may_have_been_applied


# -- refused by the cluster --------------------------------------------------------------------------------------------


class ClusterError(RaftError):
    """The cluster answered no to this attempt; ``may_have_been_applied`` tells whether another one may be applied."""


class RequestExpiredError(ClusterError):
    """The request id is older than the cluster remembers (8 hours), or more than 15 minutes in its future; final.

    (ØMQ Raft protocol, "RequestUpdate RPC"). An append of that age may have been applied long ago under its id, and one
    that another peer had accepted may be applied still: unless ``may_have_been_applied`` is False, look for the id in
    the log before appending it under a new one.
    """


class ClusterBusyError(ClusterError):
    """Another change of the peers or of the leader is under way. Try again later.

    (ØMQ Raft protocol, "ConfigUpdate RPC", status 3)
    """


class ConfigError(ClusterError):
    """The cluster refused the new list of peers. ``name`` and ``message`` are its own words (status 2)."""

    def __init__(self, name: str = "", message: str = "") -> None:
        super().__init__(f"{name}: {message}" if name else message)
        self.name = name
        self._reason = message

    @property
    def message(self) -> str:
        """What the cluster says is wrong."""
        return self._reason

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


class CompactionError(ClusterError):
    """No log was trimmed, or no snapshot made: a Node peer, a state machine that has no use for it, an unknown index.

    The log is as it was, unless ``may_have_been_applied``.
    """


class HandOverError(ClusterError):
    """The leadership was not handed over: no such member, a Node peer, or one that did not take over in time.

    The leader goes on, unless ``may_have_been_applied``.
    """


class LeaseEndedError(ClusterError):
    """The lease of keys has ended, or its owner has to take it for ended: it could not be kept alive in time.

    Its keys are deleted, or will be in a moment. What was to be done with it was not done. Begin another one.
    """


class LeaseLimitError(ClusterError):
    """There are as many leases as a cluster holds, or keys as a lease holds, or all of them. Nothing was done.

    A cluster holds 10,000 leases, with 1,000 keys each and 100,000 together.
    """


class LeasesUnsupportedError(ClusterError):
    """The cluster grants no leases, because not all of its members know them. The message says which do not.

    They are npm's peers, or of an earlier version, or have another state machine; or, after the time-out, the leader
    has not reached them since it started, and no lease was ever granted.
    """


class NotLeaderError(ClusterError):
    """The peer that was asked is not the leader. ``leader_id`` is whom it believes to be, or None.

    Calls to the cluster follow the leader by themselves; only calls to one named peer end like this.
    """

    def __init__(self, message: str = "the peer is not the leader", *, leader_id: str | None = None) -> None:
        super().__init__(message)
        self.leader_id = leader_id


# -- no answer ---------------------------------------------------------------------------------------------------------


class TransportError(RaftError):
    """No final answer; ``may_have_been_applied`` tells whether the request may take effect all the same."""

    #: What the advice about peers with keys names.
    arguments: tuple[str, ...] = ("curve_public_key", "curve_peer_keys", "curve_server_key")

    def __init__(self, message: str = "", *, may_have_been_applied: bool = False) -> None:
        super().__init__(message)
        self.may_have_been_applied = may_have_been_applied


class NoLeaderError(TransportError, TimeoutError):
    """No reachable peer was the leader until the deadline: no majority, a wrong cluster ident, or wrong addresses.

    Peers drop messages with another cluster ident without a word (ØMQ Raft facts, 1.1): when all are silent, the
    message names the setting ``cluster``.
    """


class ConnectionLostError(TransportError):
    """The link to the leader broke under a request that must not be sent twice (a custom message)."""


class RequestTimeoutError(TransportError, TimeoutError):
    """No final answer before the deadline. Repeat an append with the same ``request_id``: that is safe for hours."""


class OutcomeUnknownError(TransportError):
    """The entry is in the log at ``index``, and the cluster does not remember what became of it.

    The key/value machine remembers the results of the last 65,536 entries that compare or delete, and none from before
    a snapshot that it was restored from. Read the keys: what the entry says was done, or was not.
    """

    def __init__(self, index: int) -> None:
        super().__init__(
            f"the entry {index} is in the log, but the cluster does not remember whether its comparisons held",
            may_have_been_applied=True,
        )
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


# -- the other side broke the protocol ---------------------------------------------------------------------------------


class ProtocolError(RaftError):
    """A frame that the protocol does not allow. ``frame`` counts from 0 and ``offset`` is in bytes; None if unknown."""

    def __init__(self, message: str = "", *, frame: int | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.frame = frame
        self.offset = offset


# -- entries -----------------------------------------------------------------------------------------------------------


class LogError(RaftError):
    """Base of the errors about entries that were asked for."""


class OutOfDateLogError(LogError):
    """The peer's log ends before the index that was asked for: its data was lost, or it is another cluster."""


class TermMismatchError(LogError):
    """The entry at the position that was given has another term or request id: the position is of another log.

    The cluster lost its disks, or it is another cluster. What was read before does not belong to this log: read it from
    the start. ``index`` and ``term`` are the position's, ``found_term`` is the log's, which may be the same; of an
    entry that exists only in a snapshot, that of the snapshot. (Raft, "Log Matching Property")
    """

    def __init__(self, message: str = "", *, index: int = 0, term: int = 0, found_term: int = 0) -> None:
        super().__init__(message)
        self.index = index
        self.term = term
        self.found_term = found_term


class HistoryOutrunError(LogError):
    """The log was compacted beyond the index that was asked for: the entries from there on no longer exist.

    Read the state anew from the snapshot, and go on after ``snapshot_index``. The log has the entries from
    ``oldest_index`` to ``current_index``, which is how far the leader had applied it. None: not known.
    """

    def __init__(
        self, message: str = "", *, snapshot_index: int | None = None, current_index: int | None = None
    ) -> None:
        super().__init__(message)
        self.snapshot_index = snapshot_index
        self.current_index = current_index

    @property
    def oldest_index(self) -> int | None:
        """The oldest entry that can still be had, once it exists."""
        return None if self.snapshot_index is None else self.snapshot_index + 1


class PipelineError(RaftError):
    """What the log says of a Spark pipeline does not fit the checkpoint that it runs with. Nothing was appended.

    The checkpoint was lost, changed or put back, or the log was trimmed beyond the pipeline's markers: going on could
    append rows twice, or leave some out. The message says what to restore, and what to do when that is not possible.
    """


class SubscriberOverflowError(RaftError):
    """The reader of a watch fell behind its bounded queue and asked for an error rather than for a pause.

    What the queue held was handed out first: watch again after the watch's ``resume_after``, and nothing is missed.
    """


class BatchError(RaftError):
    """Some items of a batch failed; the others were done.

    ``results`` has one entry per item, in order: the log index, or the exception of that item.
    """

    def __init__(self, message: str = "", *, results: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.results = results

    @property
    def failures(self) -> dict[int, Exception]:
        """Position of each failed item -> its error."""
        return {i: r for i, r in enumerate(self.results) if isinstance(r, Exception)}


# -- a peer's disk -----------------------------------------------------------------------------------------------------


class StorageError(RaftError):
    """The disk of a peer failed, or cannot be used. What was acknowledged before is not taken back.

    After it, the log takes and serves nothing until it is opened again: what a failed sync left on the disk is known
    only to who reads it anew. The message names the file.
    """


class StorageDamagedError(StorageError):
    """What is stored is not what was written. Nothing of it is served, and nothing was changed.

    ``file`` is its name in the directory and ``offset`` the byte where the damage begins. Give the machine an empty
    directory and a new peer id, and let it join as a new member. A backup, too: take another one.
    """

    def __init__(self, message: str = "", *, file: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset


class StorageFullError(StorageError):
    """There is no room for more on the disk, or in the quota. Make room, and open the peer again."""


class StorageInUseError(StorageError):
    """Another peer has the directory open, in this process or in another one. It was left alone."""


class StorageVersionError(StorageError):
    """The directory was written by a newer version of this package. It was left alone."""


class StorageOwnerError(StorageError):
    """The directory belongs to another peer id, or to a cluster of another ident. It was left alone."""


def _rebuild(cls: type[RaftError], args: tuple[Any, ...], state: dict[str, Any]) -> RaftError:
    """Unpickle an error whose constructor decorates its message."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
