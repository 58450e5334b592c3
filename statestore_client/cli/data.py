"""``statestore sessions`` and ``statestore retained``: of a server that runs, or of the directory of a stopped one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import click

from statestore_client.cli import exits
from statestore_client.cli.connection import server_or_directory
from statestore_client.cli.option_types import Seconds
from statestore_client.cli.output import as_json, print_json, print_line
from statestore_client.mqtt.packets.topics import topic_filter_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from statestore_client.settings import ConnectionSettings
    from statestore_client.wire.administration import RetainedInfo, SessionInfo

__all__ = ["retained", "sessions"]


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
        from statestore_client.server.runtime.storage.inspection import DataDirectory  # the server's room

        return DataDirectory(data)
    from statestore_client.cli.administration import RunningServer  # the client's

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
    """Look at the sessions of a server, and remove some.

    Of the server at --url, which takes a user with the admin right where there are access rules; or with --data, of one
    that is stopped.
    """


@sessions.command("list")
@server_or_directory
@_json
def list_sessions(*, data: str | None, settings: ConnectionSettings | None, json_output: bool) -> int:
    """Print the sessions: client identifier, messages that wait or are in flight, when it ends."""
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
@click.option("--force", is_flag=True, help="Also those whose clients are connected: their connections end.")
@server_or_directory
def remove_sessions(
    client_ids: Sequence[str], *, force: bool, data: str | None, settings: ConnectionSettings | None
) -> int:
    """Remove sessions with all that waits for them. Of a running server, wills go out; otherwise they do not.

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
    help="Also those whose clients have been away for this long (s).",
)
@server_or_directory
@_json
def prune_sessions(
    *, away_s: float | None, data: str | None, settings: ConnectionSettings | None, json_output: bool
) -> int:
    """Remove the sessions whose time is over, and print their client identifiers.

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
    """Look at the retained messages of a server, and remove some.

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
    """Print the topics that match FILTER, all without it, and the sizes of their messages."""
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
