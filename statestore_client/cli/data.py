"""``statestore sessions | retained | check``: of a server that runs, or of the data directory of a stopped one.

``check`` says whether a data directory is sound, and what can be read of one that is not.

A server that runs is asked over one connection: :class:`RunningServer` asks and waits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

import attrs
import click

from raft_client._common import exits
from raft_client._common.command_line import Seconds, as_json, print_json, print_line
from statestore_client.cli.options import counted, server_or_directory
from statestore_client.errors import (
    ConnectionLostError,
    NotAuthorizedError,
    RequestTimeoutError,
    UnexpectedReplyError,
    UnknownServerError,
)
from statestore_client.mqtt.connectors import sync_connector
from statestore_client.mqtt.driver import SyncDriver
from statestore_client.mqtt.packets.topics import topic_filter_problem
from statestore_client.mqtt.probe import happenings
from statestore_client.wire.administration import (
    CONTROL_TOPIC,
    NOT_AUTHORIZED,
    RetainedInfo,
    SessionInfo,
    control_response_topic,
    encode_json,
)
from statestore_client.wire.messages import (
    Connected,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
    RequestHeader,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from statestore_client.server.runtime.storage.inspection import CheckedFile, Finding
    from statestore_client.server.runtime.storage.salvage import Salvage
    from statestore_client.settings import ConnectionSettings

#: The most names in one request, and the most characters of them together.
_NAMES: Final = 64
_NAMES_LENGTH: Final = 64 * 1024

_NO_SUBSCRIBERS: Final = 0x10
_FIRST_ERROR: Final = 0x80
_REFUSED: Final = 0x87
_ONLY_OURS: Final = "only statestore serve, and EmbeddedServer, know these requests"


class RunningServer:
    """Connected for the time of a ``with``. Raises TransportError without a connection or an answer, NotAuthorizedError
    without the right, UnexpectedReplyError from other brokers.
    """

    is_running = True

    def __init__(self, settings: ConnectionSettings) -> None:
        self._client_id = settings.client_id or f"statestore-admin-{uuid4().hex[:16]}"
        self._settings = settings.evolve(clean_start=True, session_expiry=0)
        self._connector = sync_connector(self._settings, client_id=self._client_id)
        self._driver: SyncDriver = self._connector.open(clean_start=True)
        self._numbers = count(1)
        self._envelope = RequestHeader(CONTROL_TOPIC, control_response_topic(self._client_id))
        self.where: str = f"at {settings.url}"

    def __enter__(self) -> Self:
        try:
            self._driver.connect()
            deadline = time.monotonic() + self._settings.connect_timeout
            for event in self._events(deadline):
                if isinstance(event, Connected):
                    return self
        finally:
            self._connector.close()  # what else was dialled
        raise ConnectionLostError(f"not connected to {self._settings.url} within {self._settings.connect_timeout:g} s")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.disconnect()
        self._driver.abort()

    # -- what is asked for --------------------------------------------------------------------------------------------

    def sessions(self) -> Iterator[SessionInfo]:
        """All of them except the one that asks, in the order of their client identifiers."""
        return (session for session in self._sessions() if session.client_id != self._client_id)

    def session(self, client_id: str) -> SessionInfo | None:
        """One session; None if there is none."""
        return next(self._sessions(client_id=client_id), None)

    def _sessions(self, **which: str) -> Iterator[SessionInfo]:
        last: SessionInfo | None = None
        for answer in self._pages("sessions.list", **which):
            for fields in _listed(answer, "sessions"):
                session = SessionInfo.decode(fields)
                if last is not None and last.client_id == session.client_id:  # more of its subscriptions
                    session = attrs.evolve(session, subscriptions=last.subscriptions + session.subscriptions)
                elif last is not None:
                    yield _in_order(last)
                last = session
        if last is not None:
            yield _in_order(last)

    def remove_sessions(self, client_ids: Iterable[str], *, force: bool = False) -> tuple[list[str], list[str]]:
        """Remove them; returns which were not there, and which were left because they are connected."""
        missing: list[str] = []
        connected: list[str] = []
        for answer in self._in_batches("sessions.remove", "client_ids", dict.fromkeys(client_ids), force=force):
            missing += _listed(answer, "missing")
            connected += _listed(answer, "connected")
        return missing, connected

    def prune_sessions(self, away_s: float | None) -> Iterator[str]:
        """Remove those that are over, or whose clients have been away for that long; returns which."""
        for answer in self._pages("sessions.prune", away_s=away_s):
            yield from _listed(answer, "removed")

    def retained(self, topic_filter: str | None, *, payloads: bool = False) -> Iterator[RetainedInfo]:
        """Those that the filter matches; None for all."""
        for answer in self._pages("retained.list", filter=topic_filter, payloads=payloads):
            for fields in _listed(answer, "messages"):
                message = RetainedInfo.decode(fields)
                if payloads and message.payload is None:
                    whole = self._whole(message.topic)
                    if whole is not None:  # otherwise it was removed meanwhile
                        yield whole
                else:
                    yield message

    def _whole(self, topic: str) -> RetainedInfo | None:
        """A large message, whose payload comes in parts."""
        parts: list[bytes] = []
        offset = 0
        while True:
            fields = self._ask("retained.payload", topic=topic, offset=offset).get("message")
            if fields is None:
                return None
            message = RetainedInfo.decode(fields)
            part = message.payload or b""
            parts.append(part)
            offset += len(part)
            if offset >= message.size or not part:
                return attrs.evolve(message, payload=b"".join(parts))

    def remove_retained(self, topics: Iterable[str]) -> int:
        """Remove those that are there; returns how many there were."""
        batches = self._in_batches("retained.remove", "topics", topics)
        return sum(len(_listed(answer, "removed")) for answer in batches)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _pages(self, command: str, **fields: Any) -> Iterator[dict[str, Any]]:
        place: object = None
        while True:
            answer = self._ask(command, **fields, **({} if place is None else {"at": place}))
            yield answer
            if answer.get("next") is None:
                return
            if answer["next"] == place:
                raise UnexpectedReplyError("the server's list does not end")
            place = answer["next"]

    def _in_batches(self, command: str, name: str, values: Iterable[str], **fields: Any) -> Iterator[dict[str, Any]]:
        for batch in _batches(values):
            rest: Sequence[str] = batch
            while rest:
                answer = self._ask(command, **{name: rest}, **fields)
                yield answer
                before, rest = len(rest), _listed(answer, "rest")
                if len(rest) >= before:
                    raise UnexpectedReplyError("the server did not do what was asked for")

    def _ask(self, command: str, **fields: Any) -> dict[str, Any]:
        """The answer to one request."""
        number, timeout = next(self._numbers), self._settings.request_timeout
        correlation = number.to_bytes(8, "big")
        payload = encode_json({"command": command, **fields})
        self._driver.publish(number, OutgoingMessage(self._envelope, payload, correlation, max(1, int(timeout)), ()))
        for event in self._events(time.monotonic() + timeout):
            if isinstance(event, Published) and event.delivery_id == number:
                self._check_taken(event.reason_code)
            elif isinstance(event, IncomingMessage):
                if event.ack_id:
                    self._driver.acknowledge(event.ack_id)
                if event.correlation_data == correlation:
                    return _read(bytes(event.payload))
        raise RequestTimeoutError(f"no answer within {timeout:g} s; {_ONLY_OURS}", may_have_been_applied=True)

    def _check_taken(self, reason_code: int) -> None:
        if reason_code == _NO_SUBSCRIBERS:
            raise UnexpectedReplyError(f"the broker cannot be administered: {_ONLY_OURS}")
        if reason_code == _REFUSED:
            raise NotAuthorizedError(f"the broker does not let this client publish to {CONTROL_TOPIC}; {_ONLY_OURS}")
        if reason_code >= _FIRST_ERROR:
            raise UnexpectedReplyError(f"the broker refused the request with MQTT reason code 0x{reason_code:02X}")

    def _events(self, deadline: float) -> Iterator[Event]:
        return happenings(self._driver, deadline)


def _read(payload: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise UnexpectedReplyError(f"the answer is not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise UnexpectedReplyError("the answer is not a JSON object")
    if (kind := answer.get("error")) is not None:
        if kind == NOT_AUTHORIZED:
            raise NotAuthorizedError(f"not authorized: {answer.get('message')}")
        raise UnknownServerError(f"{kind}: {answer.get('message')}")
    return answer


def _listed(answer: dict[str, Any], name: str) -> list[Any]:
    found = answer.get(name)
    if not isinstance(found, list):
        raise UnexpectedReplyError(f"the answer has no list {name!r}")
    return found


def _in_order(session: SessionInfo) -> SessionInfo:
    """With its subscriptions as they are shown."""
    return attrs.evolve(session, subscriptions=tuple(sorted(dict(session.subscriptions).items())))


def _batches(values: Iterable[str]) -> Iterator[list[str]]:
    """As many as one request may have."""
    batch: list[str] = []
    length = 0
    for value in values:
        if batch and (len(batch) == _NAMES or length + len(value) > _NAMES_LENGTH):
            yield batch
            batch, length = [], 0
        batch.append(value)
        length += len(value)
    if batch:
        yield batch


class _Place(Protocol):
    """Where sessions and retained messages are: RunningServer, or DataDirectory."""

    where: str  # for people
    is_running: bool

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def sessions(self) -> Iterable[SessionInfo]: ...

    def session(self, client_id: str) -> SessionInfo | None: ...

    def remove_sessions(self, client_ids: Iterable[str], *, force: bool = False) -> tuple[list[str], list[str]]: ...

    def prune_sessions(self, away_s: float | None) -> Iterable[str]: ...

    def retained(self, topic_filter: str | None, *, payloads: bool = False) -> Iterable[RetainedInfo]: ...

    def remove_retained(self, topics: Iterable[str]) -> int: ...


def _open(data: str | None, settings: ConnectionSettings | None) -> _Place:
    """To be used in a ``with``. Only what is needed is imported."""
    if data is not None:
        from statestore_client.server.runtime.storage.inspection import DataDirectory

        return DataDirectory(data)

    assert settings is not None  # noqa: S101 - one of them is given
    return RunningServer(settings)


def _filters(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what is not a topic filter: it would match nothing; and an empty one must not remove everything."""
    del context, parameter
    for value in values:
        if (problem := topic_filter_problem(value, shared=False)) is not None:
            raise click.BadParameter(f"{value!r} is not a topic filter: {problem}")
    return values


def _filter(context: click.Context, parameter: click.Parameter, value: str) -> str:
    return _filters(context, parameter, (value,))[0] if value else value


_json = click.option("--json", "json_output", is_flag=True, help="One JSON object on a line.")


@click.group("sessions")
def sessions() -> None:
    """Print the sessions of a server, or remove some.

    Of the server at --url, which takes a user with the admin right where there are access rules; or with --data, of one
    that is stopped.
    """


@sessions.command("list")
@server_or_directory
@_json
def list_sessions(*, data: str | None, settings: ConnectionSettings | None, json_output: bool) -> int:
    """Print the sessions. Each line has the client identifier, the messages that wait or are in flight, and the end."""
    with _open(data, settings) as place:
        for session in place.sessions():
            if json_output:
                print_json(_as_json(session))
            else:
                waiting = session.queued + session.in_flight
                print_line(session.client_id, f"{waiting} messages,", *_states(session, is_running=place.is_running))
    return exits.DONE


@sessions.command("show")
@click.argument("name", metavar="CLIENT_ID")
@server_or_directory
@_json
def show_session(name: str, *, data: str | None, settings: ConnectionSettings | None, json_output: bool) -> int:
    """Print everything about the session of CLIENT_ID. Exit code 1 when there is none."""
    with _open(data, settings) as place:
        session = place.session(name)
    if session is None:
        _say_not_found("session", name, place)
        return exits.NEGATIVE
    if json_output:
        print_json(_as_json(session))
        return exits.DONE
    for field, value in _as_json(session).items():
        if field != "subscriptions":
            nothing = "never" if field == "expiry_s" else "-"
            print_line(f"{field}:", nothing if value is None else str(value))
    for topic_filter, qos in session.subscriptions:
        print_line("subscription:", topic_filter, f"(QoS {qos})")
    return exits.DONE


@sessions.command("remove")
@click.argument("client_ids", metavar="CLIENT_ID...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also remove sessions of connected clients, and disconnect them.")
@server_or_directory
def remove_sessions(
    client_ids: Sequence[str], *, force: bool, data: str | None, settings: ConnectionSettings | None
) -> int:
    """Remove sessions and the messages that wait for them. A running server publishes their wills; with --data no will
    is published.

    Exit code 1 when one of them is not there, or its client is connected: it is named, and the others are removed.
    """
    if force and data is not None:
        raise click.UsageError("--force is for a server that runs; with --data, no client is connected")
    with _open(data, settings) as place:
        missing, connected = place.remove_sessions(client_ids, force=force)
    for client_id in missing:
        _say_not_found("session", client_id, place)
    for client_id in connected:
        click.echo(f"statestore: {client_id!r} is connected {place.where}; --force ends its connection", err=True)
    return exits.NEGATIVE if missing or connected else exits.DONE


@sessions.command("prune")
@click.option(
    "--away",
    "away_s",
    type=Seconds(min=0),
    help="Also remove sessions whose clients have been away for this many seconds.",
)
@server_or_directory
@_json
def prune_sessions(
    *, away_s: float | None, data: str | None, settings: ConnectionSettings | None, json_output: bool
) -> int:
    """Remove the sessions that have expired, and print their client identifiers.

    With --away also others, even those that never end. A client that was connected when its server ended left then;
    one that is connected stays.
    """
    with _open(data, settings) as place:
        for client_id in place.prune_sessions(away_s):
            if json_output:
                print_json({"client_id": client_id})
            else:
                print_line(client_id)
    return exits.DONE


@click.group("retained")
def retained() -> None:
    """Print the retained messages of a server, or remove some.

    Of the server at --url, which takes a user with the admin right where there are access rules; or with --data, of one
    that is stopped.
    """


@retained.command("list")
@click.argument("topic_filter", metavar="[FILTER]", default="", callback=_filter)
@server_or_directory
@_json
def list_retained(
    topic_filter: str, *, data: str | None, settings: ConnectionSettings | None, json_output: bool
) -> int:
    """Print topics with the sizes of their messages: those that match FILTER, or all."""
    with _open(data, settings) as place:
        for message in place.retained(topic_filter or None, payloads=json_output):
            if json_output:
                print_json(_message_as_json(message), as_json("payload", message.payload))
            else:
                print_line(message.topic, f"{message.size} bytes, QoS {message.qos}")
    return exits.DONE


@retained.command("remove")
@click.argument("topic_filters", metavar="FILTER...", nargs=-1, required=True, callback=_filters)
@server_or_directory
def remove_retained(topic_filters: Sequence[str], *, data: str | None, settings: ConnectionSettings | None) -> int:
    """Remove the retained messages whose topics match a FILTER. Exit code 1 when there are none.

    A FILTER that matches none of them is named.
    """
    with _open(data, settings) as place:
        matching = {each: [message.topic for message in place.retained(each)] for each in topic_filters}
        count = place.remove_retained(dict.fromkeys(topic for found in matching.values() for topic in found))
    for topic_filter, found in matching.items():
        if not found:
            _say_not_found("retained message that matches", topic_filter, place)
    return exits.DONE if count else exits.NEGATIVE


def _say_not_found(what: str, name: str, place: _Place) -> None:
    """On standard error, as what was found goes to standard output."""
    click.echo(f"statestore: no {what} {name!r} {place.where}", err=True)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _states(session: SessionInfo, *, is_running: bool) -> list[str]:
    """Whether its client is here, and when it ends."""
    is_here = is_running and session.was_connected
    since = "connected," if is_here else "" if session.left_at is None else f"away since {_moment(session.left_at)},"
    return [*filter(None, (since,)), _end(session, is_here=is_here)]


def _end(session: SessionInfo, *, is_here: bool) -> str:
    if session.expiry_s is None:
        return "never ends"
    if session.ends_at is not None:
        return f"ends {_moment(session.ends_at)}"
    if is_here:
        return "ends with its connection" if not session.expiry_s else f"ends {session.expiry_s} s after its connection"
    return f"ends {session.expiry_s} s after the next start"


def _as_json(session: SessionInfo) -> dict[str, Any]:
    return {
        "client_id": session.client_id,
        "user": session.user,
        "expiry_s": session.expiry_s,
        "was_connected": session.was_connected,
        "left_at": None if session.left_at is None else _moment(session.left_at),
        "ends_at": None if session.ends_at is None else _moment(session.ends_at),
        "will_topic": session.will_topic,
        "queued": session.queued,
        "in_flight": session.in_flight,
        "unreleased": session.unreleased,
        "subscriptions": [{"filter": name, "qos": qos} for name, qos in session.subscriptions],
    }


def _message_as_json(message: RetainedInfo) -> dict[str, Any]:
    expires_at = None if message.expires_at is None else _moment(message.expires_at)
    return {"topic": message.topic, "qos": message.qos, "publisher": message.publisher, "expires_at": expires_at}


# -- check -------------------------------------------------------------------------------------------------------------


#: Kinds of records whose names say little to others.
_KINDS: Final = {"responses": "remembered answers"}
_WHAT_TO_DO: Final = (
    "what to do: a server refuses this directory. Restore it from a backup; or write what can be read into a new one, "
    "with --salvage OUT; or move it away and start with an empty one. Nothing was changed here"
)


@click.command("check")
@click.argument("directory", metavar="[DIR]", type=click.Path(readable=False), required=False)
@click.option(
    "--broker",
    metavar="URL",
    help="Say instead whether a state store can be hosted on this broker: mqtts://USER@HOST:PORT?NAME=VALUE&…, with "
    "the settings of a client, such as password_file, tls_ca_file and client_id.",
)
@click.option(
    "--salvage",
    metavar="OUT",
    type=click.Path(),
    help="Of DIR: write what can be read into the new data directory OUT, and list what cannot.",
)
@click.option("--json", "json_output", is_flag=True, help="One JSON object on a line.")
def check_data(directory: str | None, *, broker: str | None, salvage: str | None, json_output: bool) -> int:
    """Check the data directory DIR, or with --broker a broker. Print what is wrong, what can be read, and what to do;
    or what the broker lacks to host a state store.

    Everything in the directory is read and compared with its checksums, and whether the records fit together is decided
    as a server does that starts. Changes nothing. The server must not be running. Exit code 0 when a server can start
    with it, 6 when it refuses.

    With --salvage a server can start with OUT. DIR stays as it is, and there is a whole OUT in the end, or none. Exit
    code 0 when OUT has all of it, 8 when some of it cannot be read: values may be older ones then, and keys that were
    deleted may be back. 6 when nothing can be read.

    Of a broker, what a store and its clients need is tried with messages to topics below statestore/check/, and
    nothing is left there. Exit code 0 when it has what is needed, 1 when something is lacking.
    """
    if (directory is None) == (broker is None):
        raise click.UsageError("give either a data directory or --broker")
    if broker is not None and salvage is not None:
        raise click.UsageError("--salvage is of a data directory")
    if broker is not None:
        return _check_broker(broker, json_output=json_output)
    if salvage is not None:
        return _salvage(str(directory), salvage, json_output=json_output)
    from statestore_client.server.runtime.storage.inspection import check  # the server's: a client does without

    finding = check(str(directory))
    if json_output:
        print_json(attrs.asdict(finding))
    else:
        _print_finding(str(directory), finding)
    return exits.DONE if finding.problem is None else exits.DATA


def _check_broker(url: str, *, json_output: bool) -> int:
    from statestore_client.cli.broker_check import BrokerCheck, lacking, print_checks
    from statestore_client.settings import ConnectionSettings

    settings = ConnectionSettings.from_url(url)
    checks = BrokerCheck(settings).run()
    print_checks(settings.url, checks, json_output=json_output)
    return exits.NEGATIVE if lacking(checks) else exits.DONE


def _salvage(directory: str, out: str, *, json_output: bool) -> int:
    from statestore_client.server.runtime.storage.salvage import salvage

    found = salvage(directory, out)
    if json_output:
        print_json(attrs.asdict(found))
    else:
        _print_finding(directory, found.finding, with_advice=False)
        _print_missing(found)
        print_line(f"{out} holds {_counts(found.records)}")
    return exits.DONE if found.is_whole else exits.PARTLY


#: Names of broken records that are listed for people; all of them are in the JSON.
_LISTED: Final = 50


def _print_missing(found: Salvage) -> None:
    for stream, name in found.broken[:_LISTED]:
        print_line(f"cannot be read: {name!r} of {_KINDS.get(stream, stream)}")
    if (more := len(found.broken) - _LISTED) > 0:
        print_line(f"and {more} more: --json lists all of them")
    if found.left_out:
        print_line(f"left out, because they do not fit together any more: {_counts(found.left_out)}")
    if not found.is_whole:
        print_line(
            "what was written in the bytes that cannot be read is missing: values may be older ones, and keys that "
            "were deleted may be back, locks among them"
        )


def _counts(records: dict[str, int]) -> str:
    known = {_KINDS.get(name, name): count for name, count in records.items() if name != "clock"}
    return ", ".join(counted(count, name) for name, count in known.items()) or "no records"


def _print_finding(directory: str, finding: Finding, *, with_advice: bool = True) -> None:
    is_sound = finding.problem is None
    verdict = "sound: a server can start with it" if is_sound else f"damaged: {finding.problem}"
    from statestore_client.server.runtime.storage.files import FIRST_VERSIONS

    print_line(f"{directory} is {verdict}")
    if finding.format is not None:
        print_line(f"format {finding.format}: versions from {FIRST_VERSIONS[finding.format]} on read it")
    print_line("checked: each frame of the files against its checksum, and whether the records fit together")
    for file in finding.files:
        print_line(f"{file.name}: {_described(file)}")
    if finding.broken_records:
        verb = "is" if finding.broken_records == 1 else "are"
        print_line(f"{counted(finding.broken_records, 'records')} {verb} not what was written")
    print_line(f"{'it holds' if is_sound else 'can be read:'} {_counts(finding.records)}")
    if with_advice and not is_sound:
        print_line(_WHAT_TO_DO)


def _described(file: CheckedFile) -> str:
    gaps = ", ".join(f"{start} to {end}" for start, end in file.gaps)
    text = f"{counted(file.size, 'bytes')}, {counted(file.frames, 'frames')}"
    return f"{text}; cannot be read: bytes {gaps}" if gaps else text
