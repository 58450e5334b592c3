"""``statestore sessions`` and ``statestore retained``: what is in a data directory whose server is not running."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from statestore_client.cli import exits
from statestore_client.cli.option_types import Seconds, nonempty_path
from statestore_client.cli.output import as_json, print_json, print_line
from statestore_client.mqtt.packets.topics import topic_filter_problem
from statestore_client.server.broker.topictree import FilterTree
from statestore_client.server.runtime.storage.inspection import DataDirectory, StoredSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.server.broker.messages import Message

__all__ = ["retained", "sessions"]


def _filters(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """What is no topic filter matches nothing; and an empty one must not remove everything."""
    del context, parameter
    for value in values:
        if (problem := topic_filter_problem(value, shared=False)) is not None:
            raise click.BadParameter(f"{value!r} is no topic filter: {problem}")
    return values


def _filter(context: click.Context, parameter: click.Parameter, value: str) -> str:
    return _filters(context, parameter, (value,))[0] if value else value


_data = click.option(
    "--data",
    required=True,
    type=click.Path(file_okay=False),
    callback=nonempty_path,
    help="The data directory. Its server must not run.",
)
_json = click.option("--json", "json_output", is_flag=True, help="One JSON object on a line.")


@click.group("sessions")
def sessions() -> None:
    """Look at the sessions in a data directory, and remove some. The server must not be running."""


@sessions.command("list")
@_data
@_json
def list_sessions(*, data: str, json_output: bool) -> int:
    """Print the sessions: client identifier, messages that wait or are in flight, when it ends."""
    with DataDirectory(data) as directory:
        for session in directory.sessions():
            if json_output:
                print_json(_as_json(session))
            else:
                waiting = session.queued + session.in_flight
                away = "" if session.left_at is None else f"away since {_moment(session.left_at)},"
                print_line(session.client_id, f"{waiting} messages,", *filter(None, (away, _end(session))))
    return exits.DONE


@sessions.command("show")
@click.argument("client_id")
@_data
@_json
def show_session(client_id: str, *, data: str, json_output: bool) -> int:
    """Print everything about the session of CLIENT_ID. Exit code 1 when there is none."""
    with DataDirectory(data) as directory:
        session = next((each for each in directory.sessions() if each.client_id == client_id), None)
    if session is None:
        _say_not_found("session", client_id, data)
        return exits.NEGATIVE
    if json_output:
        print_json(_as_json(session))
        return exits.DONE
    for name, value in _as_json(session).items():
        if name != "subscriptions":
            nothing = "never" if name == "expiry_s" else "-"
            print_line(f"{name}:", nothing if value is None else str(value))
    for topic_filter, qos in session.subscriptions:
        print_line("subscription:", topic_filter, f"(QoS {qos})")
    return exits.DONE


@sessions.command("remove")
@click.argument("client_ids", metavar="CLIENT_ID...", nargs=-1, required=True)
@_data
def remove_sessions(client_ids: Sequence[str], *, data: str) -> int:
    """Remove sessions with all that waits for them. Wills are not sent.

    Exit code 1 when one of them is not there: it is named, and the others are removed.
    """
    with DataDirectory(data) as directory:
        there = {session.client_id for session in directory.sessions()}
        directory.remove_sessions(client_ids)
    missing = [client_id for client_id in dict.fromkeys(client_ids) if client_id not in there]
    for client_id in missing:
        _say_not_found("session", client_id, data)
    return exits.NEGATIVE if missing else exits.DONE


@sessions.command("prune")
@click.option(
    "--away",
    "away_s",
    type=Seconds(min=0),
    help="Also those whose clients left so long ago (s).",
)
@_data
@_json
def prune_sessions(*, away_s: float | None, data: str, json_output: bool) -> int:
    """Remove the sessions whose time is over, and print their client identifiers.

    With --away also others, even those that never end. A client that was connected when the server ended left then.
    """
    now = time.time()
    with DataDirectory(data) as directory:
        found = [
            session.client_id
            for session in directory.sessions()
            if session.is_over(now) or (away_s is not None and session.is_away(now - away_s))
        ]
        directory.remove_sessions(found)
    for client_id in found:
        if json_output:
            print_json({"client_id": client_id})
        else:
            print_line(client_id)
    return exits.DONE


@click.group("retained")
def retained() -> None:
    """Look at the retained messages in a data directory, and remove some. The server must not be running."""


@retained.command("list")
@click.argument("topic_filter", metavar="[FILTER]", default="", callback=_filter)
@_data
@_json
def list_retained(topic_filter: str, *, data: str, json_output: bool) -> int:
    """Print the topics that match FILTER, all without it, and the sizes of their messages."""
    with DataDirectory(data) as directory:
        for message in directory.retained():
            if _matches(topic_filter, message.topic):
                if json_output:
                    print_json(_message_as_json(message), as_json("payload", message.payload))
                else:
                    print_line(message.topic, f"{len(message.payload)} bytes, QoS {message.qos}")
    return exits.DONE


@retained.command("remove")
@click.argument("topic_filters", metavar="FILTER...", nargs=-1, required=True, callback=_filters)
@_data
def remove_retained(topic_filters: Sequence[str], *, data: str) -> int:
    """Remove the retained messages whose topics match a FILTER. Exit code 1 when there are none.

    A FILTER that matches none of them is named.
    """
    with DataDirectory(data) as directory:
        topics = [message.topic for message in directory.retained()]
        matching = {each: [topic for topic in topics if _matches(each, topic)] for each in topic_filters}
        count = directory.remove_retained(topic for found in matching.values() for topic in found)
    for topic_filter, found in matching.items():
        if not found:
            _say_not_found("retained message that matches", topic_filter, data)
    return exits.DONE if count else exits.NEGATIVE


def _say_not_found(what: str, name: str, data: str) -> None:
    """On standard error, as what was found goes to standard output."""
    click.echo(f"statestore: no {what} {name!r} in {data}", err=True)


def _matches(topic_filter: str, topic: str) -> bool:
    """As a subscription would. An empty filter is for everything."""
    if not topic_filter:
        return True
    tree: FilterTree[bool] = FilterTree()
    tree.insert(topic_filter, True)
    return bool(tree.match(topic))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _end(session: StoredSession) -> str:
    if session.expiry_s is None:
        return "never ends"
    return (
        f"ends {session.expiry_s} s after the next start"
        if session.ends_at is None
        else f"ends {_moment(session.ends_at)}"
    )


def _as_json(session: StoredSession) -> dict[str, Any]:
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


def _message_as_json(message: Message) -> dict[str, Any]:
    expires_at = None if message.expires_at is None else _moment(message.expires_at)
    return {"topic": message.topic, "qos": message.qos, "publisher": message.publisher, "expires_at": expires_at}
