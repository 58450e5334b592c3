"""What the commands of ``statestore kv`` have in common: where the site is, which keys, and entries in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from statestore_client.cli.option_types import Seconds
from statestore_client.kvstore import INFINITE_TTL_MS, ClientKeys, SiteClient, Value
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
        help="Where the site listens: tcp://HOST:PORT or ipc://PATH; with --curve-keys NAME=tcp://HOST:PORT.",
    ),
    click.option(
        "--curve-keys",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="For sites with keys: NAME.key in it is the public key of the site NAME.",
    ),
    click.option(
        "--curve-secret-key-file",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="This client's own pair, NAME.key_secret, which the site must know.",
    ),
    click.option("--area", default="default", show_default=True, help="Of keys and peers."),
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
    url, keys = _way(options["url"], options["curve_keys"], options["curve_secret_key_file"])
    with SiteClient(url, area=options["area"], timeout_s=options["timeout"], keys=keys) as client:
        yield client


def _way(url: str, folder: Path | None, own: Path | None) -> tuple[str, ClientKeys | None]:
    """The address, and the keys that are needed there. NAME=URL is what a site with keys calls its peers."""
    if (folder is None) != (own is None):
        raise click.UsageError("--curve-keys and --curve-secret-key-file belong together; give both or neither")
    name, is_named, _ = url.partition("://")[0].rpartition("=")
    address = url[len(name) + 1 :] if is_named else url
    if folder is None or own is None:
        return address, None
    if not name:
        raise click.UsageError(f"with --curve-keys say whose key is expected: NAME={address}")
    return address, ClientKeys.read(own, folder / f"{name}.key")


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
