"""The options of ``statestore serve`` that make the server a site of the KvStore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from raft_client._common.hosts import is_local
from statestore_client.cli.option_types import Seconds
from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.area_store import DEFAULT_LIMITS
from statestore_client.server.runtime.site_endpoints import DEFAULT_AREA, SiteEndpoints

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["site_of", "site_options"]

_OPTIONS: Final = (
    click.option(
        "--site", metavar="NAME", help="Be a site of the KvStore, with this name: every site has another one."
    ),
    click.option(
        "--site-listen",
        metavar="URL",
        help="Other sites come in here: tcp://HOST:PORT, * for a free port, or ipc://PATH. Nobody is asked who he is, "
        "unless there are --curve-keys.",
    ),
    click.option(
        "--peer",
        multiple=True,
        metavar="[NAME=]URL",
        help="A site to dial; with --curve-keys also its name, whose key is expected there. Can be repeated.",
    ),
    click.option(
        "--area",
        multiple=True,
        metavar="NAME",
        help=f"What is exchanged with sites that have it, too. Can be repeated. Default: {DEFAULT_AREA}.",
    ),
    click.option(
        "--curve-keys",
        type=click.Path(path_type=Path),
        metavar="DIRECTORY",
        help="Encrypt, and let nobody in whose key is not here: NAME.key_secret of this site, NAME.key of the others, "
        "clients/*.key.",
    ),
    click.option(
        "--site-export",
        multiple=True,
        metavar="PREFIX",
        help="Keys of the state store that begin so can be read at other sites, as sites/NAME/KEY. Can be repeated.",
    ),
    click.option(
        "--site-import",
        is_flag=True,
        help="What other sites export can be read here.",
    ),
    click.option(
        "--site-key-ttl",
        type=Seconds(min=2),
        help="How long other sites have what this one has said after it died or was cut off. Default: 300.",
    ),
    click.option(
        "--site-flood-rate",
        type=int,
        metavar="N",
        help="Updates in a second that leave each area; more of them are merged. Default: no limit.",
    ),
    click.option(
        "--site-max-keys",
        type=int,
        metavar="N",
        help=f"Keys of each area; what is said under more of them is refused. Default: {DEFAULT_LIMITS.max_keys:,}.",
    ),
    click.option(
        "--site-max-bytes",
        type=int,
        metavar="N",
        help=f"The same for the bytes of keys, originators and values together. Default: {DEFAULT_LIMITS.max_bytes:,}.",
    ),
)


#: Options that have a default elsewhere, and what they are called there.
_LIMITS: Final = {
    "site_key_ttl": "key_ttl_s",
    "site_flood_rate": "flood_rate",
    "site_max_keys": "max_keys",
    "site_max_bytes": "max_bytes",
}


def site_options(command: Callable[..., int]) -> Callable[..., int]:
    """See :func:`site_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def site_of(options: dict[str, Any]) -> SiteEndpoints | None:
    """None for a server that is not a site. Raises click's UsageError."""
    name, listen = options["site"], options["site_listen"]
    if name is None:
        for option in ("site_listen", "peer", "area", "curve_keys", "site_export", "site_import", *_LIMITS):
            if options[option]:
                raise click.UsageError(f"--{option.replace('_', '-')} needs --site NAME")
        return None
    is_open = options["curve_keys"] is None and not options["insecure"]
    if listen is not None and is_open and not _is_local(listen):
        raise click.UsageError(
            f"everybody who can reach {listen} could write to the KvStore: give keys to those who may with "
            "--curve-keys, or say --insecure if that is meant"
        )
    try:
        return SiteEndpoints(
            name=name,
            listen=listen,
            peers=options["peer"],
            areas=options["area"] or (DEFAULT_AREA,),
            exports=options["site_export"],
            imports=options["site_import"],
            curve_keys=options["curve_keys"],
            **{name: options[option] for option, name in _LIMITS.items() if options[option] is not None},
        )
    except InvalidArgumentError as error:
        named = next((option for option, name in _LIMITS.items() if str(error).startswith(f"{name} ")), "site")
        raise click.UsageError(f"--{named.replace('_', '-')}: {error}") from None


def _is_local(url: str) -> bool:
    """Whether only this machine reaches it. What is not an address is refused later, with the reason."""
    scheme, _, address = url.partition("://")
    host = address.rpartition(":")[0]
    return scheme != "tcp" or not host or is_local(host)
