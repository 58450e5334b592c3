"""``statestore watch``."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import click
from click.core import ParameterSource

from raft_client._common import exits
from raft_client._common.command_line import (
    CommandBehindDashes,
    Seconds,
    argument_bytes,
    as_json,
    key_variable,
    print_json,
    print_line,
    run_command,
)
from raft_client._common.standard_streams import ends_with_reader
from statestore_client.cli.options import as_version, connection_options, open_client
from statestore_client.core.actions import WatchEvent
from statestore_client.core.arguments import DEFAULT_MAX_KEYS, DEFAULT_RESCAN_S
from statestore_client.errors import ClosedError, StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.watch import Watch

#: Changes of several keys that wait to be printed; more wait in their watches, which leave out what is out of date.
_WAITING: Final = 64


@click.command("watch", cls=CommandBehindDashes)
@click.argument("keys", metavar="KEY... [-- COMMAND...]", nargs=-1, required=True)
@click.option("--initial", is_flag=True, help="Print the current value first.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many changes.")
@click.option("--prefix", "by_prefix", is_flag=True, help="Watch every key that begins with a KEY.")
@click.option(
    "--rescan",
    type=Seconds(min=0, min_open=True),
    default=DEFAULT_RESCAN_S,
    show_default=True,
    help="With --prefix: look for new keys this often.",
)
@click.option(
    "--max-keys",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_KEYS,
    show_default=True,
    help="With --prefix: end if more keys begin with a KEY.",
)
@click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")
@connection_options
def watch_key(
    keys: Sequence[str],
    *,
    initial: bool,
    count: int | None,
    by_prefix: bool,
    rescan: float,
    max_keys: int,
    json_output: bool,
    command: Sequence[str],
    settings: ConnectionSettings,
) -> int:
    """Print the changes of KEY as they happen. Each line is set VERSION VALUE, or delete VERSION.

    Of several keys: set VERSION KEY VALUE, or delete VERSION KEY. A star after the version marks that changes before
    this one were not seen (a reconnect, or a new key with --prefix). A VALUE is printed as it is and may contain line
    feeds of its own; scripts should use --json.

    A KEY is literal, also with * or ? in it. With --prefix it stands for all keys that begin with it. The keys are
    listed and each is watched: a new one is seen with the next listing (--rescan), or never if it is gone by then.

    With -- COMMAND nothing is printed: COMMAND is run for each change, one after the other. It finds the value on its
    standard input, and STATESTORE_EVENT (set or delete), STATESTORE_KEY and STATESTORE_VERSION in its environment.
    """
    if command and json_output:
        raise click.UsageError("--json is for lines that are printed, and with a COMMAND none are")
    source = click.get_current_context().get_parameter_source
    if not by_prefix and {source("rescan"), source("max_keys")} != {ParameterSource.DEFAULT}:
        raise click.UsageError("--rescan and --max-keys are for --prefix")
    names = list(dict.fromkeys(argument_bytes(key) for key in keys))
    _say_that_keys_are_literal(names, by_prefix)
    if by_prefix:  # no change is printed twice
        names = [name for name in names if not any(name != other and name.startswith(other) for other in names)]
    with open_client(settings) as store, ExitStack() as stack:
        watches = [
            store.watch_prefix(name, initial=initial, rescan=rescan, max_keys=max_keys)
            if by_prefix
            else store.watch(name, initial=initial)
            for name in names
        ]
        events = _merged([stack.enter_context(watch) for watch in watches])
        if not command:
            stack.enter_context(ends_with_reader())
        for seen, event in enumerate(events, 1):
            if command:
                _run(command, event)
            else:
                _print_event(event, json_output, with_key=by_prefix or len(names) > 1)
            if seen == count:
                break
    return exits.DONE


def _say_that_keys_are_literal(names: Sequence[bytes], by_prefix: bool) -> None:
    """Say on standard error, in one line, if a key looks like a pattern of other tools."""
    name = next((name for name in names if b"*" in name or b"?" in name), None)
    if name is None:
        return
    what, instead = ("prefix", "") if by_prefix else ("key", "; --prefix watches all keys that begin with a KEY")
    click.echo(f"statestore: {os.fsdecode(name)!r} is taken as a {what} with these very characters{instead}", err=True)


def _merged(watches: Sequence[Watch]) -> Iterator[WatchEvent]:
    """The events of all, as they come; those of one key in their order. Raises what ends one of them."""
    if len(watches) == 1:
        yield from watches[0]
        return
    arrived: queue.Queue[WatchEvent | StateStoreError] = queue.Queue(_WAITING)

    def pass_on(events: Watch) -> None:
        try:
            for event in events:
                arrived.put(event)
            arrived.put(ClosedError("the watch was closed"))
        except StateStoreError as error:
            arrived.put(error)

    for watch in watches:
        threading.Thread(target=pass_on, args=(watch,), name="statestore watch", daemon=True).start()
    while True:
        if isinstance(found := arrived.get(), StateStoreError):
            raise found
        yield found


def _run(command: Sequence[str], event: WatchEvent) -> None:
    """A command that fails is reported, and the next change is still handled."""
    environment = os.environ | {
        "STATESTORE_EVENT": event.kind.value,
        "STATESTORE_VERSION": str(event.version or ""),
        **key_variable("STATESTORE_KEY", event.key),
    }
    run_command(command, environment, event.value or b"")


def _print_event(event: WatchEvent, json_output: bool, *, with_key: bool) -> None:
    if json_output:
        print_json(
            {"event": event.kind.value},
            as_json("key", event.key),
            as_json("value", event.value),
            {"missed": event.missed},
            as_version(event.version),
        )
        return
    version = f"{event.version or '-'}{'*' if event.missed else ''}"
    words: list[bytes | str] = [event.kind.value, version, *([event.key] if with_key else [])]
    if event.value is not None:
        words.append(event.value)
    print_line(*words)
