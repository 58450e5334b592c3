"""The options that say which cluster, shared by all commands."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final

import click

from raft_client.cli.option_types import Seconds
from raft_client.errors import SettingsError
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient

__all__ = ["connection_options", "connection_settings", "open_client"]

_SEEDS: Final = "ZMQRAFT_SEEDS"


def connection_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add ``--url``, ``--cluster`` and ``--timeout``; the command receives one ``settings``."""

    @click.option(
        "--url",
        "urls",
        multiple=True,
        metavar="URL",
        help=f"tcp://host:port of a peer; may be repeated. One that is up is enough. Default: {_SEEDS}.",
    )
    @click.option("--cluster", help="The cluster ident ('secret' of Node peers). Default: ZMQRAFT_CLUSTER, or empty.")
    @click.option(
        "--timeout",
        type=Seconds(min=0.001),
        help="For each request. Default: ZMQRAFT_REQUEST_TIMEOUT, or 10.",
    )
    @functools.wraps(function)
    def with_settings(
        *args: Any, urls: tuple[str, ...], cluster: str | None, timeout: float | None, **options: Any
    ) -> int:
        return function(*args, settings=connection_settings(urls, cluster, timeout), **options)

    return with_settings


def connection_settings(urls: tuple[str, ...], cluster: str | None, timeout: float | None) -> RaftSettings:
    """Settings from the options and, for what they leave open, the environment."""
    if not urls and not os.environ.get(_SEEDS):
        raise SettingsError(f"no peer is named: give --url tcp://host:port, or set {_SEEDS}")
    overrides: dict[str, Any] = {"seeds": ",".join(urls)} if urls else {}
    if cluster is not None:
        overrides["cluster"] = cluster
    if timeout is not None:
        overrides["request_timeout"] = timeout
    try:
        return RaftSettings.from_env(**overrides)
    except SettingsError as error:
        if not urls and "seed" in error.message:
            raise SettingsError(f"{_SEEDS}: {error.message}") from None
        raise


def open_client(settings: RaftSettings) -> RaftClient:
    """A client to be used as a context manager."""
    return RaftClient(settings)
