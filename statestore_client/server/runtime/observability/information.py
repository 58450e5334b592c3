"""What a server is, at ``/info``: which version, directory and settings, for people who did not start it.

Invariant: no secret is in it. What is shown is chosen by its type: texts, numbers, paths and lists of them. Passwords,
keys, functions and contexts of TLS are only said to be there, and so is what a later release adds of another type.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import attrs

from statestore_client.server.runtime.process import package_version
from statestore_client.server.runtime.storage.files import FORMAT_VERSION

if TYPE_CHECKING:
    from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer
    from statestore_client.server.runtime.settings import ServerSettings

#: In place of a value.
NOT_SHOWN: Final = "(not shown)"
#: Settings that are made of settings. Others that have parts, such as keys, are not taken apart.
_PARTS: Final = frozenset(
    {"endpoints", "broker_limits", "store_limits", "scan", "tls", "site", "log", "peer", "connection"}
)
#: Not in a representation, because it may hold passwords; where it names a file, the name is none.
_MAYBE_FILE: Final = "passwords"
#: Of a server that shares a log: what of its status stays the same for a while.
_OF_LOG: Final = ("id", "internal", "role", "epoch", "active", "index", "format")


def information(
    settings: Any,
    *,
    kind: str,
    role: str,
    directory: str | os.PathLike[str] | None,
    urls: Collection[str],
    uptime_s: float,
    log: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """For JSON. ``directory`` is that of the server's own data, ``kind`` says what keeps the data."""
    values = {name: value for name, value, _ in _settings(settings)}
    return {
        "version": package_version(),
        "python": platform.python_version(),
        "host": platform.node(),
        "pid": os.getpid(),
        "started_at": datetime.fromtimestamp(time.time() - uptime_s, UTC).isoformat(timespec="seconds"),
        "uptime_s": round(uptime_s, 1),
        "kind": kind,
        "role": role,
        "directory": None if directory is None else os.path.abspath(directory),
        "format": None if directory is None or log is not None else FORMAT_VERSION,
        "log": log,
        "urls": list(urls),
        "settings": values,
        "changed": [name for name, _, is_changed in _settings(settings) if is_changed],
    }


def server_information(
    settings: ServerSettings, replication: ReplicatedServer[Any] | None, urls: Collection[str], uptime_s: float
) -> dict[str, Any]:
    """Of a server with a broker of its own, alone or with others."""
    if replication is None:
        kind, role, log, directory = "in memory" if settings.data is None else "durable", "alone", None, settings.data
    else:
        kind, role, log = "replicated", replication.role.value, log_information(replication)
        peer = None if settings.log is None else settings.log.peer
        directory = None if peer is None else peer.data
    return information(settings, kind=kind, role=role, directory=directory, urls=urls, uptime_s=uptime_s, log=log)


def log_information(replication: ReplicatedServer[Any]) -> dict[str, Any]:
    """What it is among those of its log."""
    status = replication.commands.status()
    return {name: status[name] for name in _OF_LOG}


def _settings(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Name, value for JSON, and whether it is not the default."""
    for field in attrs.fields(type(settings)):
        if not field.init:
            continue
        name, value = prefix + field.name, getattr(settings, field.name)
        if field.name in _PARTS and attrs.has(type(value)):
            yield from _settings(value, f"{name}.")
            continue
        is_path = field.name == _MAYBE_FILE and isinstance(value, (str, os.PathLike))
        yield name, _plain(value) if field.repr or is_path else _is_there(value), value != _default(field)


def _default(field: attrs.Attribute[Any]) -> object:
    default = field.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type, union-attr]


def _plain(value: object) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, (tuple, list, frozenset, set)):
        return [_plain(each) for each in value]
    return _is_there(value)


def _is_there(value: object) -> str | None:
    return NOT_SHOWN if value else None
