"""``statestore get | set | del | vdel | scan``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import click

from raft_client._common import exits
from raft_client._common.command_line import Seconds, argument_bytes, as_json, print_json, print_line, write
from raft_client._common.standard_streams import shown
from statestore_client.cli.options import (
    as_version,
    connection_options,
    fencing_token_option,
    open_client,
    value_argument,
)
from statestore_client.core.arguments import token_of
from statestore_client.core.results import DeleteResult
from statestore_client.errors import BatchError
from statestore_client.settings import ConnectionSettings

T = TypeVar("T")

_json = click.option("--json", "json_output", is_flag=True, help="One JSON object on one line.")
_value_file = click.option("--value-file", help="Read the value from this file; - is standard input.")


@click.command("get")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--raw", is_flag=True, help="The bytes of the value and nothing else, no line feed at the end.")
@_json
@connection_options
def get_key(keys: Sequence[str], *, raw: bool, json_output: bool, settings: ConnectionSettings) -> int:
    """Print the value of each KEY. Exit code 1 if a key does not exist.

    Keys that do not exist are named on standard error.
    """
    if raw and json_output:
        raise click.UsageError("give either --raw or --json")
    names = [argument_bytes(key) for key in keys]
    with open_client(settings) as store:
        items = _first_failure(lambda: store.get_many(names))
    for name, item in zip(names, items, strict=True):
        if json_output:
            print_json(
                as_json("key", name),
                as_json("value", None if item is None else item.value),
                as_version(None if item is None else item.version),
            )
        elif item is not None:
            write(item.value if raw else shown(item.value + b"\n", lines=True))
        elif len(names) > 1:
            _say_missing(name)
    return exits.NEGATIVE if None in items else exits.DONE


@click.command("set")
@click.argument("key")
@click.argument("value", required=False)
@_value_file
@click.option("--nx", is_flag=True, help="Only if the key does not exist.")
@click.option("--nex", is_flag=True, help="Only if the key does not exist or holds this value.")
@click.option("--expected", help="With --nex: or holds this other value. The official service refuses that.")
@click.option("--expiry", type=Seconds(min=0.001), help="Until the key expires.")
@fencing_token_option
@click.option("--persist", is_flag=True, help="Mark the value as one that must be on the broker's disk.")
@_json
@connection_options
def set_key(
    key: str,
    value: str | None,
    *,
    value_file: str | None,
    nx: bool,
    nex: bool,
    expected: str | None,
    expiry: float | None,
    fencing_token: str | None,
    persist: bool,
    json_output: bool,
    settings: ConnectionSettings,
) -> int:
    """Store VALUE under KEY and print the new version. Exit code 1 if the condition is not met."""
    if nx and nex:
        raise click.UsageError("--nx and --nex are two different conditions; give one of them")
    if expected is not None and not nex:
        raise click.UsageError("--expected is what --nex compares with; give both")
    condition: Literal["NX", "NEX"] | None = "NX" if nx else "NEX" if nex else None
    name, data = argument_bytes(key), value_argument(value, value_file)
    with open_client(settings) as store:
        done = store.set(
            name,
            data,
            condition=condition,
            expected=None if expected is None else argument_bytes(expected),
            expiry=expiry,
            fencing_token=fencing_token,
            persist=persist,
        )
    if json_output:
        print_json(as_json("key", name), {"applied": done.applied}, as_version(done.version))
    elif done.applied:
        print_line(str(done.version))
    return exits.DONE if done.applied else exits.NEGATIVE


@click.command("del")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--prefix", help="In place of KEY: all keys that begin with this, text or not.")
@click.option("--dry-run", is_flag=True, help="With --prefix: print the keys, and delete nothing.")
@click.option("--fenced", is_flag=True, help="With --prefix: also keys that a fencing token protects.")
@click.option("--yes", is_flag=True, help="With --prefix: do not ask.")
@fencing_token_option
@_json
@connection_options
def delete_key(
    keys: Sequence[str],
    *,
    prefix: str | None,
    dry_run: bool,
    fenced: bool,
    yes: bool,
    fencing_token: str | None,
    json_output: bool,
    settings: ConnectionSettings,
) -> int:
    """Delete each KEY. Exit code 1 if a key does not exist.

    Of several, those that were not there are named on standard error, and the others are deleted. With --prefix, keys
    are counted and it asks first; those that stay are named (exit code 8).
    """
    if prefix is not None:
        if keys or (fenced and fencing_token is not None):
            raise click.UsageError("give either KEY or --prefix, and either --fenced or --fencing-token")
        return _delete_below(argument_bytes(prefix), dry_run, fenced, yes, fencing_token, json_output, settings)
    if not keys or dry_run or fenced or yes:
        raise click.UsageError("give KEY, or --prefix, which --dry-run, --fenced and --yes are for")
    names = [argument_bytes(key) for key in keys]
    with open_client(settings) as store:
        results = _first_failure(lambda: store.delete_many(names, fencing_token=fencing_token))
    for name, done in zip(names, results, strict=True):
        if not done.count and len(names) > 1 and not json_output:
            _say_missing(name)
    codes = [_report_deletion(name, done, json_output) for name, done in zip(names, results, strict=True)]
    return max(codes)


def _delete_below(
    prefix: bytes,
    dry_run: bool,
    fenced: bool,
    yes: bool,
    fencing_token: str | None,
    json_output: bool,
    settings: ConnectionSettings,
) -> int:
    from statestore_client.cli.delete_prefix import PrefixDeletion  # get and set do without

    if not prefix:
        raise click.UsageError("--prefix is empty, mostly a variable that is not set: that would be all keys")
    token = token_of(fencing_token)
    with open_client(settings) as store:
        deletion = PrefixDeletion(store, prefix, token, fenced)
        deletion.list_keys()
        if dry_run:
            deletion.print_keys(json_output=json_output)
            return deletion.exit_code
        deletion.delete_keys(yes=yes)
    return deletion.report(json_output=json_output)


@click.command("vdel")
@click.argument("key")
@click.argument("value", required=False)
@_value_file
@fencing_token_option
@_json
@connection_options
def vdelete_key(
    key: str,
    value: str | None,
    *,
    value_file: str | None,
    fencing_token: str | None,
    json_output: bool,
    settings: ConnectionSettings,
) -> int:
    """Delete KEY if it holds VALUE. Exit code 1 if it does not."""
    name, data = argument_bytes(key), value_argument(value, value_file)
    with open_client(settings) as store:
        done = store.vdelete(name, data, fencing_token=fencing_token)
    return _report_deletion(name, done, json_output)


@click.command("scan")
@click.argument("pattern", default="*")
@_json
@connection_options
def scan_keys(pattern: str, *, json_output: bool, settings: ConnectionSettings) -> int:
    """Print the keys that match the glob PATTERN, or all keys.

    * stands for any text, ? for one character, [abc], [a-z] and [!abc] for one out of a set or not in it, and [*] for a
    star. The shell must not expand it: put it in quotes.
    """
    with open_client(settings) as store:
        for key in store.scan(argument_bytes(pattern)):
            if json_output:
                print_json(as_json("key", key))
            else:
                print_line(key)
    return exits.DONE


def _first_failure(batch: Callable[[], list[T]]) -> list[T]:
    """The results; the errors of a batch are usually all the same."""
    try:
        return batch()
    except BatchError as error:
        raise next(iter(error.failures.values())) from None


def _say_missing(key: bytes) -> None:
    """On standard error, as values go to standard output."""
    click.echo(f"statestore: there is no key {key.decode('utf-8', 'backslashreplace')}", err=True)


def _report_deletion(key: bytes, done: DeleteResult, json_output: bool) -> int:
    if json_output:
        counted: dict[str, Any] = {"count": done.count, "matched": done.matched}
        print_json(as_json("key", key), counted, as_version(done.version))
    return exits.DONE if done.count else exits.NEGATIVE
