"""``zmqraft kv``: the keys and values that a cluster has now, a copy that follows, and changes with their outcomes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from raft_client._common import exits
from raft_client._common.command_line import (
    CommandBehindDashes,
    argument_bytes,
    as_json,
    print_json,
    print_line,
    warn,
    write,
)
from raft_client._common.standard_streams import ends_with_reader, shown
from raft_client.cli.append import request_id_option
from raft_client.cli.keys import Line, Report, say_that_prefixes_are_literal, watch
from raft_client.cli.options import connection_options, open_client
from raft_client.core.key_value_calls import WriteOutcome
from raft_client.core.mirrors import MirrorEvent
from raft_client.core.stream_actions import Freshness
from raft_client.errors import LeaseEndedError
from raft_client.settings import RaftSettings
from raft_client.sync.mirror import KeyMirror, MirrorChanges
from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from raft_client.sync.client import RaftClient
    from raft_client.sync.lease import KeyLease

F = TypeVar("F", bound=Callable[..., object])

_json = click.option("--json", "json_output", is_flag=True, help="One JSON object on one line.")
_stale = click.option("--stale", is_flag=True, help="Any peer answers, with what it has applied; no leader is needed.")


@click.group("kv")
def kv() -> None:
    """Read and change keys and values that the peers hold. Peers of `zmqraft serve` have the machine for that, unless
    --machine says otherwise."""


# -- reading -----------------------------------------------------------------------------------------------------------


@kv.command("get")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--raw", is_flag=True, help="The bytes of the value and nothing else, no line feed at the end.")
@_stale
@_json
@connection_options
def get(keys: Sequence[str], *, raw: bool, stale: bool, json_output: bool, settings: RaftSettings) -> int:
    """Print the value of each KEY. Exit code 1 if a key does not exist."""
    if raw and json_output:
        raise click.UsageError("give either --raw or --json")
    missing = False
    with _open(settings, stale=stale) as client:
        for name in map(argument_bytes, keys):
            state = client.kv.get(name, stale=stale)
            missing = missing or not state.exists
            if json_output:
                print_json(as_json("key", name), as_json("value", state.value), _place(state.position))
            elif state.value is not None:
                write(state.value if raw else shown(state.value + b"\n", lines=True))
            elif len(keys) > 1:
                warn(f"there is no key {name.decode('utf-8', 'backslashreplace')}")
    return exits.NEGATIVE if missing else exits.DONE


@kv.command("range")
@click.argument("prefix", required=False)
@click.option("--start", metavar="KEY", help="The first key, instead of a PREFIX.")
@click.option("--end", metavar="KEY", help="The key behind the last one, instead of a PREFIX.")
@click.option("--limit", type=click.IntRange(min=1), help="So many keys at most.")
@click.option("--keys-only", is_flag=True, help="Without the values.")
@_stale
@_json
@connection_options
def find(
    prefix: str | None,
    *,
    start: str | None,
    end: str | None,
    limit: int | None,
    keys_only: bool,
    stale: bool,
    json_output: bool,
    settings: RaftSettings,
) -> int:
    """Print the keys that start with PREFIX, or all. Each line is KEY VALUE, in the order of keys, all of one moment.

    A VALUE is printed as it is and may contain line feeds of its own; scripts should use --json.
    """
    first, last, wanted = (None if text is None else argument_bytes(text) for text in (start, end, prefix))
    with _open(settings, stale=stale) as client, ends_with_reader():
        found = client.kv.range(wanted, start=first, end=last, limit=limit, keys_only=keys_only, stale=stale)
        for key, value in found:
            if json_output:
                print_json(as_json("key", key), {} if keys_only else as_json("value", value), _place(found.position))
            else:
                print_line(key, *([] if keys_only else [value]))
    return exits.DONE


def _open(settings: RaftSettings, *, stale: bool) -> Any:
    """A client; for what may be stale it looks for no leader."""
    client = open_client(settings)
    return client.open(wait=False) if stale else client


def _place(position: Position) -> dict[str, Any]:
    return {"index": position.index, "position": str(position)}


# -- reading, and following --------------------------------------------------------------------------------------------

#: How often, in seconds, it is looked how far the mirror is while no key changes.
_LOOK_S: Final = 0.5


@kv.command("mirror", cls=CommandBehindDashes)
@click.argument("words", metavar="[PREFIX] [-- COMMAND...]", nargs=-1)
@click.option("--progress", is_flag=True, help="Also print how far it is while no key changes, and if it may be late.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many keys and changes.")
@click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")
@connection_options
def mirror(
    words: Sequence[str],
    *,
    progress: bool,
    count: int | None,
    json_output: bool,
    command: Sequence[str],
    settings: RaftSettings,
) -> int:
    """Print the keys that start with PREFIX, and then their changes. Each line is set INDEX KEY VALUE, or delete INDEX
    KEY.

    First comes 'snapshot INDEX', then each key as it is at that INDEX, and 'complete INDEX'. What follows leads from
    there to the keys as they are, also over the loss of a leader. When it cannot be told any more what has happened
    meanwhile, as the log was compacted, the keys are read again, and what differs is printed as if it had happened at
    one INDEX. In JSON, "position" names the entry after which the keys are as all lines so far say.

    With --progress, 'progress INDEX' says that nothing else has happened up to there, 'suspended INDEX' that there may
    be changes that are not known yet, as no leader is heard, and 'resumed INDEX' that it is up to date again.

    With -- COMMAND nothing is printed: COMMAND is run for each line that would be, as by zmqraft watch.
    """
    if len(words) > 1:
        raise click.UsageError("give one PREFIX, or none for all keys")
    report = Report(command, json_output, count)
    prefix = argument_bytes("".join(words))
    say_that_prefixes_are_literal([prefix])
    with open_client(settings) as client, client.kv.mirror(prefix) as keys, keys.changes(initial=True) as changes:
        report.run(_lines(changes, keys if progress else None))
    return exits.DONE


def _lines(changes: MirrorChanges, followed: KeyMirror | None) -> Iterator[Line]:
    """All keys, then what changes, and how far ``followed`` is."""
    if (first := changes.get()) is not None:
        yield Line("snapshot", first.index)
        yield from (Line.of(first.index, change) for change in first.changes)
        yield Line("complete", first.index, None, first.position)
    if followed is None:
        for event in changes:
            yield from _changes(event)
    else:
        yield from _progress(changes, followed)


def _progress(changes: MirrorChanges, followed: KeyMirror) -> Iterator[Line]:
    """What changes; and when nothing does, up to where that is certain, and whether it may be late."""
    told, is_suspended = followed.position, False
    while True:
        position = followed.position  # whatever happened up to there waits in ``changes`` already
        event = changes.get(timeout=_LOOK_S)
        if event is not None:
            yield from _changes(event)
            position = event.position
        is_late = followed.state.freshness is not Freshness.FRESH
        stands = event is None and followed.position == position
        if is_late and stands and not is_suspended:
            is_suspended = True
            yield Line("suspended", position.index, None, position)
        elif is_suspended and not is_late:
            is_suspended = False
            yield Line("resumed", position.index, None, position)
        elif event is None and position.index > told.index:
            yield Line("progress", position.index, None, position)
        told = position


def _changes(event: MirrorEvent) -> Iterator[Line]:
    for change in event.changes[:-1]:
        yield Line.of(event.index, change)
    yield Line.of(event.index, event.changes[-1], event.position)


# -- changes -----------------------------------------------------------------------------------------------------------


@kv.command("put")
@click.argument("key")
@click.argument("value")
@click.option(
    "--lease-ttl",
    type=float,
    metavar="SECONDS",
    help="With a lease of so many seconds, which is printed, too, and kept until Ctrl-C or SIGTERM; then KEY is gone.",
)
@request_id_option
@_json
@connection_options
def put(
    key: str,
    value: str,
    *,
    lease_ttl: float | None,
    request_id: str | None,
    json_output: bool,
    settings: RaftSettings,
) -> int:
    """Set KEY to VALUE, and print the index of the entry."""
    name = argument_bytes(key)

    def set_it(client: RaftClient, lease: KeyLease | None) -> None:
        outcome = client.kv.put(name, argument_bytes(value), lease=lease, request_id=request_id)
        if json_output:
            own = {} if lease is None else {"lease": str(lease.id)}
            print_json(as_json("key", name), _place(outcome.position), own)
        else:
            print_line(str(outcome.position.index), *([] if lease is None else [str(lease.id)]))

    with open_client(settings) as client:
        if lease_ttl is None:
            set_it(client, None)
            return exits.DONE
        with _terminated_as_interrupted(), client.kv.lease(lease_ttl) as lease:
            set_it(client, lease)
            lease.wait_lost()
            lease.check()
    return exits.DONE


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does: so what it holds is given back."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@kv.command("lease")
@click.argument("lease", metavar="LEASE")
@click.option("--end", "ends", is_flag=True, help="End it: print the index of the entry and how many keys it had.")
@_json
@connection_options
def look_up_lease(lease: str, *, ends: bool, json_output: bool, settings: RaftSettings) -> int:
    """Print the seconds that LEASE lasts without a word from its owner, and its keys. Exit code 1 if there is none."""
    with open_client(settings) as client:
        if ends:
            try:
                outcome = client.kv.end_lease(lease)
            except LeaseEndedError:
                return exits.NEGATIVE
            _print_deleted(outcome, json_output=json_output)
            return exits.DONE
        found = client.kv.look_up_lease(lease)
    if json_output:
        keys = [] if found is None else [as_json("key", key) for key in found.keys]
        print_json({"lease": lease, "ttl": None if found is None else found.ttl, "keys": keys})
    elif found is not None:
        print_line(f"{found.ttl:g}")
        for key in found.keys:
            print_line(key)
    return exits.NEGATIVE if found is None else exits.DONE


@kv.command("delete")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@request_id_option
@_json
@connection_options
def delete(keys: Sequence[str], *, request_id: str | None, json_output: bool, settings: RaftSettings) -> int:
    """Delete each KEY, all in one entry. Print the index of the entry and how many keys there were. Exit code 1 if
    there were none."""
    with open_client(settings) as client:
        outcome = client.kv.delete(*map(argument_bytes, keys), request_id=request_id)
    _print_deleted(outcome, json_output=json_output)
    return exits.DONE if outcome.deleted else exits.NEGATIVE


def _print_deleted(outcome: WriteOutcome, *, json_output: bool) -> None:
    if json_output:
        print_json(_place(outcome.position), {"deleted": outcome.deleted})
    else:
        print_line(str(outcome.position.index), str(outcome.deleted))


_Pairs = Sequence[tuple[bytes, bytes | None]]


def _to_pairs(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> _Pairs:
    pairs: list[tuple[bytes, bytes | None]] = []
    for each in map(argument_bytes, values):
        key, equals, value = each.partition(b"=")
        if not key or not equals:
            raise click.BadParameter(f"{each.decode('utf-8', 'backslashreplace')!r} is not KEY=VALUE")
        pairs.append((key, value))
    return pairs


def _to_keys(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> _Pairs:
    return [(argument_bytes(key), None) for key in values]


def _pairs(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, multiple=True, metavar="KEY=VALUE", callback=_to_pairs, help=f"{text} May be repeated.")


def _keys(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, multiple=True, metavar="KEY", callback=_to_keys, help=f"{text} May be repeated.")


@kv.command("txn")
@_pairs("--if", "Only if the key has this value.")
@_keys("--if-absent", "Only if there is no such key.")
@_pairs("--set", "Then set the key.")
@_keys("--delete", "Then delete the key.")
@_pairs("--else-set", "Otherwise set the key.")
@_keys("--else-delete", "Otherwise delete the key.")
@request_id_option
@_json
@connection_options
def txn(*, request_id: str | None, json_output: bool, settings: RaftSettings, **parts: _Pairs) -> int:
    """Make several changes at once, if keys have expected values. Print INDEX done, or INDEX else.

    Exit code 1 when a comparison failed. A key ends at the first '='.
    """
    with open_client(settings) as client:
        outcome = client.kv.transaction(
            compare=dict([*parts["if"], *parts["if_absent"]]),
            then=dict([*parts["set"], *parts["delete"]]),
            otherwise=dict([*parts["else_set"], *parts["else_delete"]]),
            request_id=request_id,
        )
    _print_outcome(outcome, json_output=json_output)
    return exits.DONE if outcome.done else exits.NEGATIVE


def _print_outcome(outcome: WriteOutcome, *, json_output: bool) -> None:
    if json_output:
        print_json(_place(outcome.position), {"done": outcome.done, "deleted": outcome.deleted})
    else:
        print_line(str(outcome.position.index), "done" if outcome.done else "else")


kv.add_command(watch)
