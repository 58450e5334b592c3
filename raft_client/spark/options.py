"""The options of a read: checked once, at planning; frozen from then on. Both ways: Spark has them as texts.

Those of a stream are in :mod:`raft_client.spark.stream_options`; both kinds come through the same door.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs

from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import InvalidArgumentError, SettingsError
from raft_client.settings import RaftSettings
from raft_client.spark.unknown_options import unknown_options
from raft_client.wire.frames import MAX_UINT
from raft_client.wire.log_entry import Position

#: More tasks than any cluster of Spark runs for one log, which a single peer serves.
MAX_PARTITIONS: Final = 10_000
_START: Final = Position(0)


Options = TypeVar("Options", bound=attrs.AttrsInstance)


def whole_number(low: int, high: int) -> Any:
    """A validator for fields of options; None passes where it is the default."""

    def check(_instance: object, attribute: attrs.Attribute[int | None], value: int | None) -> None:
        if value is None and attribute.default is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise SettingsError(
                f"{option_name(attribute.name)} must be a whole number from {low} to {high}, not {value!r}"
            )

    return check


def to_policy(value: SnapshotPolicy | str) -> SnapshotPolicy:
    """Raises SettingsError for another word."""
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
    until: int | None = attrs.field(default=None, validator=whole_number(0, MAX_UINT))
    #: How many tasks read; None: one for every 100,000 entries, eight at most. Never more than there are entries.
    partitions: int | None = attrs.field(default=None, validator=whole_number(1, MAX_PARTITIONS))
    #: When the log was compacted beyond ``after``: ``refuse`` ends with :class:`~raft_client.HistoryOutrunError`,
    #: ``skip`` begins after the snapshot, ``deliver`` has the snapshot as the row before the entries.
    snapshot: SnapshotPolicy = attrs.field(default=SnapshotPolicy.REFUSE, converter=to_policy)
    #: Whether the markers of pipelines that write into the log are rows, too.
    markers: bool = False

    def __attrs_post_init__(self) -> None:
        if self.until is not None and self.until < self.after.index:
            raise SettingsError(f"until must not be before after: {self.until} < {self.after.index}")


def connection(settings: RaftSettings | str | Iterable[str]) -> RaftSettings:
    """Settings, given as such or as URLs of peers."""
    return settings if isinstance(settings, RaftSettings) else RaftSettings(seeds=settings)


# -- Spark's texts -----------------------------------------------------------------------------------------------------


def option_name(field: str) -> str:
    """``request_timeout`` -> ``requestTimeout``."""
    head, *rest = field.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _table(cls: type[attrs.AttrsInstance]) -> dict[str, attrs.Attribute[Any]]:
    """Lower-cased option -> field. Spark hands options over in lower case. A field may have a second name."""
    fields = attrs.fields(cls)
    aliases = {a.metadata["alias"].lower(): a for a in fields if "alias" in a.metadata}
    return {option_name(a.name).lower(): a for a in fields} | aliases


#: Settings of what a read does not do: it waits for nothing, and follows nothing.
OF_NO_USE: Final = frozenset({"heartbeat", "broadcast_timeout", "progress_interval", "watch_bytes"})
_SETTINGS: Final[Mapping[str, attrs.Attribute[Any]]] = {
    name: field for name, field in _table(RaftSettings).items() if field.name not in OF_NO_USE
}


def parse_options(
    options: Mapping[str, str], env: Mapping[str, str] | None = None, *, kind: type[Options]
) -> tuple[RaftSettings, Options]:
    """The settings and the options of one ``kind`` in Spark's options, whose names' case does not matter.

    Settings that are not given are taken from the ``ZMQRAFT_*`` environment variables of the driver. Raises
    :class:`SettingsError` for an unknown or unusable option; the message names it and what it takes.
    """
    table = _table(kind)
    remaining = {name.lower(): text for name, text in options.items()}
    settings, own = _take(remaining, _SETTINGS), _take(remaining, table)
    if remaining:
        known = {name: option_name(a.name) for own in (_SETTINGS, table) for name, a in own.items()}
        raise unknown_options(remaining, known)
    try:
        return RaftSettings.from_env(env, **settings), kind(**own)
    except SettingsError as error:
        if "seeds" in settings or "ZMQRAFT_SEEDS" not in error.message:
            raise
        raise SettingsError(f"the option seeds is missing, and {error}") from None


def refuse_useless(options: Mapping[str, str], kinds: Sequence[type[attrs.AttrsInstance]]) -> None:
    """Raises :class:`SettingsError` when none of the ``kinds`` of read can have these options.

    Of the errors it is that of the kind which knows most of the names; of those that know as many, all.
    """
    errors: dict[str, int] = {}
    for kind in kinds:
        try:
            parse_options(options, kind=kind)
        except SettingsError as error:
            errors[error.message] = len({*map(str.lower, options)} & {*_SETTINGS, *_table(kind)})
        else:
            return
    most = max(errors.values())
    raise SettingsError("\n".join(message for message, known in errors.items() if known == most))


def to_options(settings: RaftSettings, read: ReadOptions) -> dict[str, str]:
    """What :func:`parse_options` reads back. Options that are None are left out."""
    values = attrs.asdict(settings, recurse=False) | attrs.asdict(read, recurse=False)
    values["seeds"] = ",".join(settings.seeds)
    values["curve_peer_keys"] = ",".join(f"{url}={key}" for url, key in settings.curve_peer_keys) or None
    used = {name: value for name, value in values.items() if name not in OF_NO_USE and value is not None}
    return {option_name(name): str(value) for name, value in used.items()}


def _take(remaining: dict[str, str], known: Mapping[str, attrs.Attribute[Any]]) -> dict[str, Any]:
    given = [name for name in list(remaining) if name in known]
    taken = {known[name].name: _from_text(known[name], name, remaining.pop(name)) for name in given}
    if len(taken) < len(given):
        twice = next(known[name] for name in given if "alias" in known[name].metadata)
        raise SettingsError(f"{option_name(twice.name)} and {twice.metadata['alias']} are the same: give one of them")
    return taken


def _from_text(field: attrs.Attribute[Any], lowered: str, text: str) -> Any:
    kind = str(field.type).partition(" ")[0]
    names = (option_name(field.name), field.metadata.get("alias", ""))
    called = next(name for name in names if name.lower() == lowered)
    if kind == "bool":
        return _to_flag(called, text)
    try:
        return {"int": int, "float": float}.get(kind, str)(text)
    except ValueError:
        what = "a whole number" if kind == "int" else "a number of seconds"
        raise SettingsError(f"the option {called} must be {what}, not {text!r}") from None


def _to_flag(called: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SettingsError(f"the option {called} must be true or false, not {text!r}")
    return text.lower() == "true"
