"""``statestore kv keys | keyvals | nodes | snoop | set-key | erase-key``: the keys of a site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from raft_client._common.standard_streams import ends_with_reader
from statestore_client.cli import exits
from statestore_client.cli.kv_options import (
    entry_facts,
    filter_of,
    filter_options,
    json_option,
    open_site,
    seconds_left,
    site_options,
)
from statestore_client.cli.option_types import Seconds
from statestore_client.cli.output import as_json, print_json, print_line, value_argument
from statestore_client.kvstore import KeyChange
from statestore_client.wire.kvstore.value import MAX_TTL_MS

__all__ = ["erase_key", "keys", "keyvals", "nodes", "set_key", "snoop"]


@click.command("keys")
@click.option("--ttl", is_flag=True, help="Print the time that is left, too.")
@filter_options
@json_option
@site_options
def keys(*, ttl: bool, json_output: bool, **options: Any) -> int:
    """Print the keys: VERSION ORIGINATOR KEY, with --ttl also the seconds that are left.

    With keys and --originator, both must be so.
    """
    with open_site(options) as site:
        found = site.hashes(**filter_of(options))
    for key, entry in sorted(found.items()):
        if json_output:
            print_json({"key": key}, entry_facts(entry))
        else:
            left = [seconds_left(entry)] if ttl else []
            print_line(str(entry.version), entry.originator, *left, key)
    return exits.DONE


@click.command("keyvals")
@click.argument("wanted", metavar="KEY...", nargs=-1, required=True)
@json_option
@site_options
def keyvals(wanted: Sequence[str], *, json_output: bool, **options: Any) -> int:
    """Print the value of KEY; of several, one after the other. Exit code 1 when there is no such key."""
    with open_site(options) as site:
        found = site.get_many(wanted)
    for key in wanted:
        entry = found.get(key)
        if json_output:
            print_json(
                {"key": key}, as_json("value", entry.value if entry else None), entry_facts(entry) if entry else {}
            )
        elif entry is not None:
            print_line(entry.value or b"")
        else:
            click.echo(f"statestore: there is no key {key!r}", err=True)
    return exits.DONE if len(found) == len(set(wanted)) else exits.NEGATIVE


@click.command("nodes")
@json_option
@site_options
def nodes(*, json_output: bool, **options: Any) -> int:
    """Print the sites that have made entries, and how many each: KEYS SITE."""
    with open_site(options) as site:
        counts = Counter(entry.originator for entry in site.hashes().values())
    for name, count in sorted(counts.items()):
        if json_output:
            print_json({"site": name, "keys": count})
        else:
            print_line(str(count), name)
    return exits.DONE


@click.command("snoop")
@click.option("--ttls", is_flag=True, help="Print also when the time to live of a key begins again.")
@click.option("--initial", is_flag=True, help="Print first what is there.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many changes, besides what --initial prints.")
@filter_options
@json_option
@site_options
def snoop(*, ttls: bool, initial: bool, count: int | None, json_output: bool, **options: Any) -> int:
    """Print the changes of keys as they happen: set VERSION ORIGINATOR KEY VALUE, ttl ... KEY SECONDS, or end KEY."""
    with open_site(options) as site, site.subscribe(**filter_of(options), ttls=ttls) as changes, ends_with_reader():
        if initial:
            for key, entry in sorted(changes.snapshot.items()):
                _print_change(KeyChange(key, entry), json_output)
        for seen, change in enumerate(changes, 1):
            _print_change(change, json_output)
            if seen == count:
                break
    return exits.DONE


def _print_change(change: KeyChange, json_output: bool) -> None:
    entry = change.entry
    what = "end" if entry is None else "ttl" if change.is_ttl_only else "set"
    if json_output:
        value = {} if entry is None or change.is_ttl_only else as_json("value", entry.value)
        facts = entry_facts(entry) if entry else {}
        print_json({"event": what, "key": change.key, "number": change.number}, value, facts)
    elif entry is None:
        print_line(what, change.key)
    else:
        last = seconds_left(entry).encode() if change.is_ttl_only else entry.value or b""
        print_line(what, str(entry.version), entry.originator, change.key, last)


@click.command("set-key")
@click.argument("key")
@click.argument("value", required=False)
@click.option("--value-file", help="Read the value from this file; - is standard input.")
@click.option("--persist", is_flag=True, help="Say it again if another site overrides it.")
@click.option("--version", type=click.IntRange(min=1), help="One above what is stored, if not given.")
@click.option(
    "--ttl", type=Seconds(min=0.001, max=MAX_TTL_MS / 1000), help="Time to live; the site keeps the key alive."
)
@json_option
@site_options
def set_key(
    key: str,
    value: str | None,
    *,
    value_file: str | None,
    persist: bool,
    version: int | None,
    ttl: float | None,
    json_output: bool,
    **options: Any,
) -> int:
    """Have the site say VALUE under KEY, and keep it alive until another site overrides it, `erase-key`, or its end.

    Nothing is on a disk: when the site starts again, say it again, or it ends with its time to live.
    """
    if persist and (version is not None or ttl is not None):
        raise click.UsageError("--persist takes the version and the time to live that it needs")
    data = value_argument(value, value_file)
    with open_site(options) as site:
        if persist:
            site.persist(key, data)
        else:
            site.set(key, data, version=version, ttl_ms=None if ttl is None else round(1000 * ttl))
    if json_output:
        print_json({"key": key, "is_set": True})
    return exits.DONE


@click.command("erase-key")
@click.argument("key")
@json_option
@site_options
def erase_key(key: str, *, json_output: bool, **options: Any) -> int:
    """End what the site has said under KEY, everywhere within 5 s. Exit code 1 if there was nothing to end."""
    with open_site(options) as site:
        is_erased = site.erase(key)
    if json_output:
        print_json({"key": key, "is_erased": is_erased})
    return exits.DONE if is_erased else exits.NEGATIVE
