"""``statestore counter | semaphore | members | barrier``: the recipes for shells. ``docs/reference/recipes.md``.

Shared work (``Partitioner``) has no command: it takes and gives items back between two pieces of a program's work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from raft_client._common import exits
from raft_client._common.command_line import Seconds, as_json, print_json, print_line
from raft_client._common.standard_streams import ends_with_reader
from statestore_client.cli.lock import LEASE, LOCK_VARIABLE, CommandLast, Holding, Patience, patience_options
from statestore_client.cli.options import connection_options, open_client
from statestore_client.recipes import Barrier, Counter, Members, Roster, Semaphore
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient
from statestore_client.sync.leases import Lease
from statestore_client.sync.locks import LockObservation

#: The command finds its semaphore, or its group and its name there, in these.
_SEMAPHORE_VARIABLE: Final = "STATESTORE_SEMAPHORE"
_GROUP_VARIABLE: Final = "STATESTORE_GROUP"
_MEMBER_VARIABLE: Final = "STATESTORE_MEMBER"

_json = click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")


# -- counter -----------------------------------------------------------------------------------------------------------


@click.command("counter")
@click.argument("name")
@click.option("--add", "amount", type=int, metavar="N", help="Add N, which may be negative, and print the sum.")
@click.option("--lock", help="The lock under which it is added. Default: NAME/lock.")
@click.option("--lease", type=LEASE, default=10.0, show_default=True, help="How long others wait for one that dies.")
@click.option("-w", "--wait", type=Seconds(min=0), help="Of --add: give up after this time. Default: never.")
@_json
@connection_options
def counter(
    name: str,
    *,
    amount: int | None,
    lock: str | None,
    lease: float,
    wait: float | None,
    json_output: bool,
    settings: ConnectionSettings,
) -> int:
    """Print the number in the key NAME, or add to it. Example: statestore counter line1/parts --add 1

    An addition that is acknowledged has counted once. With exit code 1 somebody else was adding until --wait was over,
    and nothing was added; with 4, read the number before you add again. Exit code 2 if the key holds no whole number.
    """
    if amount is None and wait is not None:
        raise click.UsageError("--wait is for --add")
    with open_client(settings) as store:
        parts = Counter(store, name, lock=lock, lease=lease)
        number = parts.get() if amount is None else parts.add(amount, timeout=wait)
    if json_output:
        print_json({"counter": name, "value": number})
    else:
        print_line(str(number))
    return exits.DONE


# -- semaphore ---------------------------------------------------------------------------------------------------------


@click.command("semaphore", cls=CommandLast)
@click.argument("name")
@click.argument("command", metavar="[--] [COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-n", "--permits", type=click.IntRange(1, 1_000), required=True, help="How many may hold it; all give the same."
)
@click.option("--lease", type=LEASE, default=10.0, show_default=True, help="How long a permit lasts; it is renewed.")
@click.option("--show", is_flag=True, help="Run nothing: print who has a permit.")
@click.option("--json", "json_output", is_flag=True, help="Of --show: one JSON object per permit.")
@patience_options("--no-wait")
@connection_options
def semaphore(
    name: str,
    command: tuple[str, ...],
    *,
    permits: int,
    lease: float,
    show: bool,
    json_output: bool,
    settings: ConnectionSettings,
    **patience: Any,
) -> int:
    """Run COMMAND while holding one of N permits. Example: statestore semaphore line1/presses -n 3 -- ./press.sh

    A permit is the lock NAME/0, NAME/1 and so on. COMMAND finds it in STATESTORE_LOCK and its fencing token, which
    protects keys of this permit only, in STATESTORE_FENCING_TOKEN. All else is as for statestore lock.

    With --show there is no COMMAND: the permits that are taken are printed with their holders. Exit code 1 if none is.
    """
    if show == bool(command):
        raise click.UsageError("give either a COMMAND to run while holding a permit, or --show")
    if json_output and not show:
        raise click.UsageError("--json is for --show")
    how = Patience(**patience)
    with open_client(settings) as store:
        slots = Semaphore(store, name, permits, lease=lease)
        if show:
            return _show_holders(name, slots.holders(), json_output=json_output)
        held = Holding(
            f"the permit of {name}",
            lease,
            slots.acquire,
            lambda permit: _observation(store, permit),
            lambda permit: {_SEMAPHORE_VARIABLE: name, LOCK_VARIABLE: permit.name},
        )
        return held.run(command, how)


def _show_holders(name: str, holders: dict[int, bytes], *, json_output: bool) -> int:
    for slot, holder in sorted(holders.items()):
        if json_output:
            print_json({"permit": slot, "lock": f"{name}/{slot}"}, as_json("holder", holder))
        else:
            print_line(f"{name}/{slot}", holder)
    return exits.DONE if holders else exits.NEGATIVE


def _observation(store: StateStoreClient, lease: Lease) -> LockObservation:
    return store.lock(lease.name).observe()


# -- members -----------------------------------------------------------------------------------------------------------


@click.command("members", cls=CommandLast)
@click.argument("group")
@click.argument("command", metavar="[--] [COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--join", "name", metavar="NAME", help="Run COMMAND as the member NAME; one process at a time has the name."
)
@click.option("--lease", type=LEASE, default=10.0, show_default=True, help="How long one that has died is a member.")
@click.option("--watch", is_flag=True, help="Print who is there, and then who joins and who leaves.")
@click.option("--rescan", type=Seconds(0.01, 86_400), default=1.0, show_default=True, help="Of --watch: list so often.")
@click.option("--count", type=click.IntRange(min=1), help="Of --watch: end after this many lines.")
@click.option("--json", "json_output", is_flag=True, help="Without COMMAND: one JSON object per line.")
@patience_options("-n", "--no-wait")
@connection_options
def members(
    group: str,
    command: tuple[str, ...],
    *,
    name: str | None,
    lease: float,
    watch: bool,
    rescan: float,
    count: int | None,
    json_output: bool,
    settings: ConnectionSettings,
    **patience: Any,
) -> int:
    """Print the members of GROUP, or be one while COMMAND runs. Example: statestore members workers --join press-1 --
    ./work.sh

    Without COMMAND, each member is printed: NAME HOLDER. Exit code 1 if there is none. With --watch: joined NAME for
    each that is there, then joined NAME and left NAME as they come and go; suspended while the connection is down, and
    resumed when what happened meanwhile was printed.

    With --join NAME, COMMAND runs as a member; a NAME that is taken is waited for. COMMAND finds STATESTORE_GROUP,
    STATESTORE_MEMBER, and the fencing token of its name in STATESTORE_FENCING_TOKEN. When the others think that the
    member is gone, COMMAND is terminated and the exit code is 5. All else is as for statestore lock.
    """
    if (name is not None) != bool(command):
        raise click.UsageError("to be a member give both --join NAME and a COMMAND to run meanwhile")
    if command and (watch or json_output):
        raise click.UsageError("--watch and --json print members, and with a COMMAND nothing is printed")
    if count is not None and not watch:
        raise click.UsageError("--count is for --watch")
    how = Patience(**patience)
    with open_client(settings) as store:
        workers = Members(store, group, lease=lease)
        if watch:
            return _watch_members(workers, rescan, count, json_output=json_output)
        if not command:
            return _show_members(workers.present(), json_output=json_output)
        held = Holding(
            f"the membership {name} of {group}",
            lease,
            lambda timeout: workers.join(name, timeout),
            lambda membership: _observation(store, membership),
            lambda _: {_GROUP_VARIABLE: group, _MEMBER_VARIABLE: str(name)},
        )
        return held.run(command, how)


def _show_members(roster: Roster, *, json_output: bool) -> int:
    for name in roster.names:
        if json_output:
            print_json({"name": name}, as_json("holder", roster.members[name]))
        else:
            print_line(name, roster.members[name])
    return exits.DONE if roster.names else exits.NEGATIVE


def _watch_members(workers: Members, rescan: float, count: int | None, *, json_output: bool) -> int:
    with workers.watch(rescan=rescan) as rosters, ends_with_reader():
        for seen, (event, name) in enumerate(_events(rosters), 1):
            if json_output:
                print_json({"event": event}, {} if name is None else {"name": name})
            else:
                print_line(event, *([] if name is None else [name]))
            if seen == count:
                break
    return exits.DONE


def _events(rosters: Iterator[Roster]) -> Iterator[tuple[str, str | None]]:
    """Who has joined or left, and whether there may be more. A name that is taken anew has left, and joined."""
    before = Roster({})
    for roster in rosters:
        if before.is_current and not roster.is_current:
            yield "suspended", None
        for name in before.names:
            if roster.members.get(name) != before.members[name]:
                yield "left", name
        for name in roster.names:
            if before.members.get(name) != roster.members[name]:
                yield "joined", name
        if roster.is_current and not before.is_current:
            yield "resumed", None
        before = roster


# -- barrier -----------------------------------------------------------------------------------------------------------


@click.command("barrier")
@click.argument("name")
@click.option("--create", is_flag=True, help="Set it up.")
@click.option("--remove", is_flag=True, help="Take it away, and let all through that wait.")
@click.option("--expiry", type=Seconds(0.001, 86_400), help="Of --create: it ends by itself after this time.")
@click.option("-w", "--wait", type=Seconds(min=0), help="Give up after this time. Default: never.")
@_json
@connection_options
def barrier(
    name: str,
    *,
    create: bool,
    remove: bool,
    expiry: float | None,
    wait: float | None,
    json_output: bool,
    settings: ConnectionSettings,
) -> int:
    """Wait until the barrier NAME is gone. Example: statestore barrier line1/warming-up && ./start.sh

    Exit code 1 if it still is when --wait is over; of --create if it was there already, and of --remove if there was
    none.
    """
    if create and remove:
        raise click.UsageError("give either --create or --remove")
    if expiry is not None and not create:
        raise click.UsageError("--expiry is for --create")
    if wait is not None and (create or remove):
        raise click.UsageError("--create and --remove do not wait")
    with open_client(settings) as store:
        gate = Barrier(store, name)
        done = gate.create(expiry=expiry) if create else gate.remove() if remove else gate.wait(wait)
    if json_output:
        print_json({"barrier": name, "done": done})
    return exits.DONE if done else exits.NEGATIVE
