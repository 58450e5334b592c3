"""What the commands of ``statestore kv`` have in common: where the site is, which keys, and entries in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from statestore_client.cli.option_types import Seconds
from statestore_client.kvstore import INFINITE_TTL_MS, SiteClient, Value
from statestore_client.kvstore.calls import identity

__all__ = [
    "entry_facts", "filter_of", "filter_options", "json_option", "open_site", "prefix_option", "seconds_left",
    "site_options",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

json_option: Final = click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")
prefix_option: Final = click.option("--prefix", help="Keys that begin with this text.")

_SITE: Final = (
    click.option(
        "--url",
        envvar="STATESTORE_SITE_URL",
        show_envvar=True,
        required=True,
        help="Where the site listens: tcp://HOST:PORT or ipc://PATH.",
    ),
    click.option("--area", default="default", show_default=True, help="Of the site."),
    click.option(
        "--timeout", type=Seconds(min=0, min_open=True), default=2.5, show_default=True, help="Wait for an answer."
    ),
)
_FILTER: Final = (
    prefix_option,
    click.option("--pattern", multiple=True, help="Keys that begin with a match of this pattern. Can be repeated."),
    click.option("--originator", multiple=True, metavar="SITE", help="Entries made by this site. Can be repeated."),
)


def site_options(command: F) -> F:
    """Where the site is: see :func:`open_site`."""
    for option in reversed(_SITE):
        command = option(command)
    return command


def filter_options(command: F) -> F:
    """Which keys: see :func:`filter_of`."""
    for option in reversed(_FILTER):
        command = option(command)
    return command


@contextmanager
def open_site(options: Mapping[str, Any]) -> Iterator[SiteClient]:
    """A client of the site that the options name."""
    with SiteClient(options["url"], area=options["area"], timeout_s=options["timeout"]) as client:
        yield client


def filter_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and originators must both be wanted, if both are given."""
    return {
        "prefix": options["prefix"],
        "patterns": options["pattern"],
        "originators": options["originator"],
        "match_all": True,
    }


def entry_facts(entry: Value) -> dict[str, Any]:
    """What is known of an entry besides its value."""
    return {
        "version": entry.version,
        "originator": entry.originator,
        "ttl_ms": None if entry.ttl_ms == INFINITE_TTL_MS else entry.ttl_ms,
        "ttl_version": entry.ttl_version,
        "hash": identity(entry)[2],
    }


def seconds_left(entry: Value) -> str:
    """For people."""
    return "never" if entry.ttl_ms == INFINITE_TTL_MS else f"{entry.ttl_ms / 1000:.1f}"
