"""The options of a read: checked once, at planning; frozen from then on. Both ways: Spark has them as texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import InvalidArgumentError, SettingsError
from raft_client.settings import RaftSettings
from raft_client.wire.frames import MAX_UINT
from raft_client.wire.positions import Position

__all__ = ["MAX_PARTITIONS", "OF_NO_USE", "ReadOptions", "connection", "parse_options", "to_options"]

#: More tasks than any cluster of Spark runs for one log, which a single peer serves.
MAX_PARTITIONS: Final = 10_000
_START: Final = Position(0)


def _whole_number(low: int, high: int) -> Any:
    def check(_instance: ReadOptions, attribute: attrs.Attribute[int | None], value: int | None) -> None:
        if value is None and attribute.default is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise SettingsError(f"{attribute.name} must be a whole number from {low} to {high}, not {value!r}")

    return check


def _to_policy(value: SnapshotPolicy | str) -> SnapshotPolicy:
    try:
        return SnapshotPolicy(value)
    except ValueError:
        raise SettingsError(f"snapshot must be deliver, refuse or skip, not {value!r}") from None


def _to_position(value: Position | int | str) -> Position:
    try:
        return Position.parse(value) if isinstance(value, str) else Position.of(value)
    except InvalidArgumentError:
        raise SettingsError(f"after must be a log index or INDEX@TERM, not {value!r}") from None


@attrs.frozen(kw_only=True)
class ReadOptions:
    """Which entries to read; where they are is in :class:`~raft_client.RaftSettings`. Raises :class:`SettingsError`."""

    #: The log index before the first entry, 0 being the start of the log; or a position, whose term is checked.
    after: Position = attrs.field(default=_START, converter=_to_position)
    #: The log index of the last entry; None: what the leader has applied when the read is planned.
    until: int | None = attrs.field(default=None, validator=_whole_number(0, MAX_UINT))
    #: How many tasks read; None: one for every 100,000 entries, eight at most. Never more than there are entries.
    partitions: int | None = attrs.field(default=None, validator=_whole_number(1, MAX_PARTITIONS))
    #: When the log was compacted beyond ``after``: ``refuse`` ends with :class:`~raft_client.HistoryOutrunError`,
    #: ``skip`` begins after the snapshot, ``deliver`` has the snapshot as the row before the entries.
    snapshot: SnapshotPolicy = attrs.field(default=SnapshotPolicy.REFUSE, converter=_to_policy)

    def __attrs_post_init__(self) -> None:
        if self.until is not None and self.until < self.after.index:
            raise SettingsError(f"until must not be before after: {self.until} < {self.after.index}")


def connection(settings: RaftSettings | str | Iterable[str]) -> RaftSettings:
    """Settings, given as such or as URLs of peers."""
    return settings if isinstance(settings, RaftSettings) else RaftSettings(seeds=settings)


# -- Spark's texts -----------------------------------------------------------------------------------------------------


def _option_name(field: str) -> str:
    """``request_timeout`` -> ``requestTimeout``."""
    head, *rest = field.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _table(cls: type[attrs.AttrsInstance]) -> dict[str, attrs.Attribute[Any]]:
    """Lower-cased option -> field. Spark hands options over in lower case."""
    return {_option_name(a.name).lower(): a for a in attrs.fields(cls)}


#: Settings of what a read does not do: it waits for nothing, and follows nothing.
OF_NO_USE: Final = frozenset({"heartbeat", "broadcast_timeout", "progress_interval", "watch_bytes"})
_SETTINGS: Final[Mapping[str, attrs.Attribute[Any]]] = {
    name: field for name, field in _table(RaftSettings).items() if field.name not in OF_NO_USE
}
_READ: Final[Mapping[str, attrs.Attribute[Any]]] = _table(ReadOptions)


def parse_options(options: Mapping[str, str], env: Mapping[str, str] | None = None) -> tuple[RaftSettings, ReadOptions]:
    """The settings and the read options in Spark's options, whose names' case does not matter.

    Settings that are not given are taken from the ``ZMQRAFT_*`` environment variables of the driver. Raises
    :class:`SettingsError` for an unknown or unusable option; the message names it and what it takes.
    """
    remaining = {name.lower(): text for name, text in options.items()}
    settings, read = _take(remaining, _SETTINGS), _take(remaining, _READ)
    if remaining:
        raise _unknown_option(min(remaining))
    try:
        return RaftSettings.from_env(env, **settings), ReadOptions(**read)
    except SettingsError as error:
        if "seeds" in settings or "ZMQRAFT_SEEDS" not in error.message:
            raise
        raise SettingsError(f"the option seeds is missing, and {error}") from None


def to_options(settings: RaftSettings, read: ReadOptions) -> dict[str, str]:
    """What :func:`parse_options` reads back. Options that are None are left out."""
    values = attrs.asdict(settings, recurse=False) | attrs.asdict(read, recurse=False)
    values["seeds"] = ",".join(settings.seeds)
    values["curve_peer_keys"] = ",".join(f"{url}={key}" for url, key in settings.curve_peer_keys) or None
    used = {name: value for name, value in values.items() if name not in OF_NO_USE and value is not None}
    return {_option_name(name): str(value) for name, value in used.items()}


def _take(remaining: dict[str, str], known: Mapping[str, attrs.Attribute[Any]]) -> dict[str, Any]:
    return {known[name].name: _from_text(known[name], remaining.pop(name)) for name in list(remaining) if name in known}


def _from_text(field: attrs.Attribute[Any], text: str) -> Any:
    kind = str(field.type).partition(" ")[0]
    try:
        return {"int": int, "float": float}.get(kind, str)(text)
    except ValueError:
        what = "a whole number" if kind == "int" else "a number of seconds"
        raise SettingsError(f"the option {_option_name(field.name)} must be {what}, not {text!r}") from None


def _unknown_option(lowered: str) -> SettingsError:
    known = {name: _option_name(a.name) for table in (_SETTINGS, _READ) for name, a in table.items()}
    near = ["seeds"] if lowered in ("url", "urls", "peers") else difflib.get_close_matches(lowered, known, n=1)
    hint = f"; did you mean {known[near[0]]}?" if near else "."
    names = ", ".join(sorted(known.values(), key=str.lower))
    return SettingsError(f"unknown option {lowered}{hint} Known options: {names}")
