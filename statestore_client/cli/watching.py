"""``statestore watch``."""

from __future__ import annotations

import click

from statestore_client.cli import exits
from statestore_client.cli.connection import connection_options, open_client
from statestore_client.cli.output import argument_bytes, as_json, print_json, print_line
from statestore_client.core.actions import WatchEvent
from statestore_client.settings import ConnectionSettings

__all__ = ["watch_key"]


@click.command("watch")
@click.argument("key")
@click.option("--initial", is_flag=True, help="Print the current value first.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many changes.")
@click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")
@connection_options
def watch_key(key: str, *, initial: bool, count: int | None, json_output: bool, settings: ConnectionSettings) -> int:
    """Print the changes of KEY as they happen: set VERSION VALUE, or delete VERSION, and a line feed.

    A star behind the version marks that changes before this one were not seen (a reconnect). A VALUE is printed as it
    is and may contain line feeds of its own; scripts should use --json.
    """
    name = argument_bytes(key)
    seen = 0
    with open_client(settings) as store, store.watch(name, initial=initial) as events:
        for event in events:
            _print_event(event, json_output)
            seen += 1
            if seen == count:
                break
    return exits.DONE


def _print_event(event: WatchEvent, json_output: bool) -> None:
    if json_output:
        print_json(
            {"event": event.kind.value},
            as_json("key", event.key),
            as_json("value", event.value),
            {"missed": event.missed},
            version=event.version,
        )
        return
    version = f"{event.version or '-'}{'*' if event.missed else ''}"
    words: list[bytes | str] = [event.kind.value, version]
    if event.value is not None:
        words.append(event.value)
    print_line(*words)
