"""``statestore ha``: the servers of a replicated log."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from raft_client._common import event_loops, exits
from raft_client._common.command_line import Seconds, print_line
from statestore_client.cli.log_options import log_of, log_options
from statestore_client.cli.options import counted
from statestore_client.errors import (
    ConnectionLostError,
    InvalidArgumentError,
    RemoteProtocolError,
    SettingsError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from statestore_client.server.runtime.replication.membership import Memberships, Step

#: For a command: a hand-over takes two commits, and may wait for what is on its way.
_TIMEOUT_S: Final = 10.0
#: For a status: a server is there within a second, and it waits for a leader of its log for half a second itself.
_STATUS_S: Final = 1.5
#: Between two questions who is active now.
_LOOK_S: Final = 0.1
_REFUSED: Final = "connection refused; is it running, and is this its address for servers?"
_COLUMNS: Final = ("id", "role", "epoch", "index", "active", "clients", "passed_on", "silence_s", "format", "secrets")


def _options(command: Callable[..., int]) -> Callable[..., int]:
    command = click.option(
        "--cluster-key-file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="The secret that the servers have.",
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="One JSON object on each line.")(command)


@click.group("ha")
def ha() -> None:
    """Manage the servers of a replicated log. Print their status, hand over, import and export their state, add and
    remove servers.

    ADDRESS is the internal address of a server, HOST:PORT: `statestore serve --log` prints it.
    """


@ha.command("status")
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
@_options
def status(addresses: tuple[str, ...], *, cluster_key_file: str | None, as_json: bool) -> int:
    """Print the role and the state of each server. Exit code 1 if no server is active, or if one cannot be reached or
    has no leader of the log. The command asks all servers at once, and waits 1.5 seconds for one that does not answer.
    """
    answers = _ask_all(addresses, "status", "", cluster_key_file, _STATUS_S)
    if not as_json:
        print_line("  ".join(_COLUMNS))
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, Exception):
            print_line(json.dumps({"internal": address, "error": str(answer)}) if as_json else f"{address}: {answer}")
        else:
            _show(answer, as_json=as_json)
    if any(isinstance(answer, Exception) or not answer["log_has_leader"] for answer in answers):
        return exits.NEGATIVE  # and why is printed
    if "active" in [answer["role"] for answer in answers]:
        return exits.DONE
    if not any(answer["active"] for answer in answers):
        click.echo(
            "statestore: no server is active, though the log has a leader: usual for a second after a failover; "
            "servers that were started with --await-import wait for statestore ha import",
            err=True,
        )
    return exits.NEGATIVE


@ha.command("hand-over")
@click.argument("address", metavar="ADDRESS")
@click.option("--to", "next_id", default="", metavar="ID", help="The server to make active. Default: any that listens.")
@_options
def hand_over(address: str, *, next_id: str, cluster_key_file: str | None, as_json: bool) -> int:
    """Make another server active in place of the one at ADDRESS, and print which one. Exit code 1 if the server at
    ADDRESS is not active.
    """
    (answer,) = _ask_all((address,), "hand-over", next_id, cluster_key_file, _TIMEOUT_S)
    if isinstance(answer, Exception):
        raise answer
    if not answer["done"]:
        if as_json:
            print_line(json.dumps(answer))
        click.echo(f"statestore: {answer.get('reason') or 'it could not hand over'}", err=True)
        return exits.NEGATIVE
    after = _successor(address, answer["id"], cluster_key_file)
    if as_json:
        print_line(json.dumps({**answer, **after}))
    elif after:
        print_line(f"{after['active']} is active now, in epoch {after['epoch']}; {answer['id']} stands by")
    else:
        print_line(f"{answer['id']} is not active any more; see with statestore ha status who is")
    return exits.DONE


def _successor(address: str, former: str, key_file: str | None) -> dict[str, Any]:
    """What the former one says as soon as it knows another active one; nothing if it does not in time."""
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        (answer,) = _ask_all((address,), "status", "", key_file, _STATUS_S)
        if not isinstance(answer, Exception) and answer["active"] not in ("", former, None):
            return dict(answer)
        time.sleep(_LOOK_S)
    return {}


@ha.command("promote")
@click.argument("address", metavar="ADDRESS")
@click.option("--force", is_flag=True, required=True, help="Depose the active server, even if it is alive.")
@_options
def promote(address: str, *, force: bool, cluster_key_file: str | None, as_json: bool) -> int:
    """Make the server at ADDRESS active by force. Exit code 1 if it is active already, or has not read the log to its
    end.
    """
    del force
    return _command(address, "promote", "", cluster_key_file, as_json=as_json)


@ha.command("snapshot")
@click.argument("address", metavar="ADDRESS")
@_options
def snapshot(address: str, *, cluster_key_file: str | None, as_json: bool) -> int:
    """Write a snapshot into the log, from the server at ADDRESS. A server that starts then reads the log from there on.
    Servers write snapshots by themselves when the log is long. Exit code 1 if the server has not read the log to its
    end.
    """
    return _command(address, "snapshot", "", cluster_key_file, as_json=as_json)


@ha.command("trim")
@click.argument("address", metavar="ADDRESS")
@_options
def trim(address: str, *, cluster_key_file: str | None, as_json: bool) -> int:
    """Drop the entries before the newest snapshot of the log. Servers do so by themselves after each snapshot; use this
    for peers that were down at that time. Exit code 1, with the reason, if it cannot be done.
    """
    return _command(address, "trim", "", cluster_key_file, as_json=as_json)


@ha.command("format")
@click.argument("new", metavar="N", type=click.IntRange(min=1))
@click.argument("address", metavar="ADDRESS")
@_options
def raise_format(new: int, address: str, *, cluster_key_file: str | None, as_json: bool) -> int:
    """Raise the format of records to N. ADDRESS is the active server; all servers must run a release that knows this
    format.

    A server of an older release stops then, and does not start again. Formats never go back. Exit code 1 if it cannot
    be done: the reason is said.
    """
    return _command(address, "format", str(new), cluster_key_file, as_json=as_json)


@ha.command("import")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on a line.")
@log_options
def import_data(directory: str, *, as_json: bool, **options: Any) -> int:
    """Copy the data directory of one server into an empty log. DIR is the directory of a server that had no log; the
    log is that of new servers.

    That server must not run any more; DIR stays as it is. The peers of the log must run; servers may, if they were
    started with --await-import: one of them becomes active when all is there.
    """
    from statestore_client.server.runtime.replication.importing import import_directory

    imported = event_loops.run(import_directory(directory, log_of(options)))
    if as_json:
        print_line(json.dumps(attrs.asdict(imported)))
    else:
        print_line(f"{directory} is in the log up to entry {imported.index}: {_counts(imported.records)}")
    return exits.DONE


@ha.command("export")
@click.argument("out", metavar="OUT", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON object on a line.")
@log_options
def export_data(out: str, *, as_json: bool, **options: Any) -> int:
    """Write the state of the servers into a data directory. OUT must be new or empty, and `statestore serve --data OUT`
    goes on with it. It gets the keys, the sessions with the messages that wait, and the retained messages, as of one
    moment while the command ran.

    The servers may run, and are not disturbed. OUT must not be there, or be an empty directory; it is whole in the end,
    or there is none.
    """
    from statestore_client.server.runtime.replication.exporting import export_directory

    exported = event_loops.run(export_directory(out, log_of(options)))
    if as_json:
        print_line(json.dumps(attrs.asdict(exported)))
    else:
        print_line(f"{out} has the state as of entry {exported.index} of the log: {_counts(exported.records)}")
    return exits.DONE


def _member_options(command: Callable[..., int]) -> Callable[..., int]:
    nodes = click.option(
        "--cluster",
        "nodes",
        metavar="NODES",
        required=True,
        help="All servers as they are to find each other, ID=HOST[:PORT],…, also the one to add or to remove.",
    )
    name = click.option("--log-cluster", metavar="NAME", default="", help="The name of the peers' cluster.")
    return nodes(name(_options(command)))


_wait_option: Final = click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=Seconds(min=0),
    default=60.0,
    show_default=True,
    help="For a server that is to be started, and until it has read the log.",
)


@ha.command("add-server")
@click.argument("server", metavar="ID")
@_wait_option
@_member_options
def add_server(server: str, **options: Any) -> int:
    """Add the server ID to the cluster. Before: add it to --cluster of the other servers, restart these one at a time,
    and start the server ID with an empty --data.

    Exit code 1, with the reason, if that is not so. Given again it goes on where it was.
    """
    return _change_members(lambda members: members.add(server), **options)


@ha.command("remove-server")
@click.argument("server", metavar="ID")
@click.option("--force", is_flag=True, help="Also if fewer than three are left.")
@_member_options
def remove_server(server: str, *, force: bool, **options: Any) -> int:
    """Remove the server ID from the cluster, running or not. Stop it afterwards.

    Exit code 1, with the reason, if the others would have no majority, or fewer than three were left.
    """
    return _change_members(lambda members: members.remove(server, force=force), **options)


@ha.command("replace-server")
@click.argument("server", metavar="ID")
@_wait_option
@_member_options
def replace_server(server: str, **options: Any) -> int:
    """Replace the stopped server ID by an empty one. It has an empty --data, after the loss of its disk or on another
    machine. The command removes the server first, and adds it when it runs.

    Start it when this command says so, and not before: it has forgotten how it voted. Exit code 1, with the reason, if
    the others have no majority, or it does not run in time. Given again it goes on where it was.
    """
    return _change_members(lambda members: members.replace(server), **options)


@ha.command("rotate-secret")
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
@click.option("--new", "begins", is_flag=True, help="Begin: make a new secret. Without it, one under way goes on.")
@_options
def rotate_secret(addresses: tuple[str, ...], *, begins: bool, cluster_key_file: str | None, as_json: bool) -> int:
    """Change the secret of the servers while they run. Name the addresses of all servers. The command makes one step at
    a time, and the next one only when each server has made the last one.

    A step writes the file. Then copy it to each machine and restart the servers, one at a time, and give this command
    again, until it says that nothing is under way. Servers accept the old secret and the new one meanwhile. Exit code
    1, with the reason, if a server is not so far: nothing is written then.
    """
    from statestore_client.server.runtime.replication.rotation import SecretRotation

    if cluster_key_file is None:
        raise click.UsageError("--cluster-key-file says which file has the secret")
    rotation = SecretRotation(cluster_key_file)
    answers = _ask_all(addresses, "status", "", cluster_key_file, _STATUS_S)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    reason = rotation.why_not(answers, begins=begins)
    if not reason:
        rotation.go_on(begins=begins)
    if as_json:
        print_line(json.dumps({"done": not reason, "reason": reason, **rotation.as_json()}))
    elif not reason:
        print_line(rotation.advice)
    if reason:
        click.echo(f"statestore: {reason}", err=True)
    return exits.NEGATIVE if reason else exits.DONE


def _change_members(
    change: Callable[[Memberships], Awaitable[None]],
    *,
    nodes: str,
    log_cluster: str,
    cluster_key_file: str | None,
    as_json: bool,
    wait_s: float = 0.0,
) -> int:
    from statestore_client.server.runtime.replication.membership import RefusedChangeError, memberships
    from statestore_client.server.runtime.replication.settings import ReplicaSettings

    def say(step: Step) -> None:
        text = f"{step.text}. Members: {', '.join(step.members)}"
        print_line(json.dumps(attrs.asdict(step)) if as_json else text)

    async def run() -> None:
        key = b"" if cluster_key_file is None else ReplicaSettings.key_in(cluster_key_file)
        async with memberships(nodes, key, log_cluster, wait_s, say) as members:
            await change(members)

    try:
        event_loops.run(run())
    except SettingsError as error:
        raise click.UsageError(f"--cluster: {error}") from None
    except RefusedChangeError as error:
        click.echo(f"statestore: {error}", err=True)
        return exits.NEGATIVE
    return exits.DONE


def _counts(records: dict[str, int]) -> str:
    return ", ".join(counted(count, name) for name, count in records.items()) or "no records"


def _command(address: str, purpose: str, argument: str, key_file: str | None, *, as_json: bool) -> int:
    (answer,) = _ask_all((address,), purpose, argument, key_file, _TIMEOUT_S)
    if isinstance(answer, Exception):
        raise answer
    _show(answer, as_json=as_json)
    if reason := answer.get("reason"):
        click.echo(f"statestore: {reason}", err=True)
    return exits.DONE if answer["done"] else exits.NEGATIVE


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    print_line(json.dumps(answer) if as_json else "  ".join(_cell(answer, column) for column in _COLUMNS))
    if answer.get("warning"):
        click.echo(f"statestore: {answer['id']}: {answer['warning']}", err=True)


def _cell(answer: dict[str, Any], column: str) -> str:
    if column == "secrets":
        return ",".join(answer.get(column, ())) or "-"  # releases before do not tell
    return str(answer[column])


def _ask_all(
    addresses: tuple[str, ...], purpose: str, argument: str, key_file: str | None, timeout_s: float
) -> list[Any]:
    """What each server says, or an error: at once, each in its own time."""
    from statestore_client.server.runtime.replication.internal import ClusterSecret, Hello, dial
    from statestore_client.server.runtime.replication.settings import ReplicaSettings

    secret = ClusterSecret(b"" if key_file is None else ReplicaSettings.key_in(key_file))
    for address in addresses:
        if not address.rpartition(":")[2].isdecimal() or ":" not in address:
            raise InvalidArgumentError(f"an address is the internal HOST:PORT of a server, not {address}")
    if secret:
        _ = secret.dialler_tls  # made before the clock of the questions runs: it takes a while, and is kept

    async def ask(address: str) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                stream, _ = await dial(address, Hello(purpose, "statestore ha", address, argument), secret)
                try:
                    return json.loads(await stream.read_all())
                finally:
                    stream.transport.close()
        except (EOFError, ssl.SSLError):
            advice = "give --cluster-key-file" if key_file is None else f"it has another key than {key_file}"
            return ConnectionLostError(f"the server at {address} does not let us in: {advice}", fatal=True)
        except (OSError, ValueError, RemoteProtocolError) as error:
            return ConnectionLostError(f"no server of a log at {address}: {_in_words(error)}")

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*map(ask, addresses))

    return event_loops.run(ask_all())


def _in_words(error: Exception) -> str:
    """What an operator understands without a list of error numbers. A name with two addresses has two of them."""
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, socket.gaierror):
        return "no name server knows this host"
    numbers = [error.errno] if error.errno else [int(each) for each in re.findall(r"\[Errno (\d+)\]", str(error))]
    if not numbers:
        return str(error) or "no answer; is its machine there, and is this its address for servers?"
    texts = [_REFUSED if each == errno.ECONNREFUSED else os.strerror(each).lower() for each in numbers]
    return ", ".join(dict.fromkeys(texts))
