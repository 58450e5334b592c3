"""The options that say which broker, shared by all commands that are clients."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from statestore_client.cli.option_types import Seconds
from statestore_client.errors import SettingsError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient

__all__ = ["connection_options", "connection_settings", "open_client"]

F = TypeVar("F", bound=Callable[..., Any])


def connection_options(function: F) -> F:
    """Add ``--url``, ``--client-id`` and ``--timeout``; the command receives one ``settings``."""

    @click.option(
        "--url",
        envvar="STATESTORE_URL",
        help="mqtt://host:port, or mqtts, ws, wss. Default: STATESTORE_URL, or AIO_* variables.",
    )
    @click.option("--client-id", help="MQTT client id. Default: a random one.")
    @click.option("--timeout", type=Seconds(min=0.001), default=10.0, show_default=True, help="For each request.")
    @functools.wraps(function)
    def with_settings(*args: Any, url: str | None, client_id: str | None, timeout: float, **options: Any) -> Any:
        return function(*args, settings=connection_settings(url, client_id, timeout), **options)

    return with_settings  # type: ignore[return-value]  # click's decorators keep the callable, not its type


def connection_settings(url: str | None, client_id: str | None, timeout: float) -> ConnectionSettings:
    """Settings from ``--url`` or the environment."""
    overrides: dict[str, Any] = {"request_timeout": timeout, "connect_timeout": min(timeout, 3600.0)}
    if client_id is not None:
        overrides["client_id"] = client_id
    if url is not None:
        return ConnectionSettings.from_url(url, **overrides)
    if "AIO_BROKER_HOSTNAME" not in os.environ:
        raise SettingsError(
            "no broker is named: give --url mqtt://host:port, or set STATESTORE_URL or AIO_BROKER_HOSTNAME"
        )
    return ConnectionSettings.from_env(**overrides)


def open_client(settings: ConnectionSettings) -> StateStoreClient:
    """A client to be used as a context manager."""
    return StateStoreClient(settings)
