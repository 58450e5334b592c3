"""How far a pipeline has got, and the order of steps that keeps this true under several drivers. Pure.

The marker says: all rows up to ``index`` are in the state store, none of them twice. It stands in the store itself,
under the fence of the lock that elects the driver. Each function here is a generator of steps; whoever runs it carries
them out and sends back what came of each.

Invariant: before the rows of a batch are written, the marker is written again as it is, with the batch's token: it is
what the driver takes it for, and whoever led before can no longer move it.
Invariant: the marker is written after the rows of its batch, with the same token.
Invariant: each batch has a newer token than all before. So a row that is left over from an earlier batch, of this
driver or of one before, is refused as soon as its key has a later row.

That makes it enough that each key's newest row of a batch is written (docs/decisions/spark-into-the-store.md).
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, Final, TypeAlias

import attrs

from statestore_client.errors import SettingsError, StateStoreError
from statestore_client.wire.hlc import HlcTimestamp

_FORMAT: Final = 1
_GONE: Final = "the store no longer holds the marker that this driver knows: it goes on where the store says"


class OtherSourceError(SettingsError):
    """The marker is that of another source, whose indexes mean something else."""


class MarkerGoneError(StateStoreError):
    """The marker is not what this driver has left there: the store has forgotten it, or somebody has changed it."""


@attrs.frozen
class Marker:
    """How far a pipeline has got."""

    #: The source's index of the last row that is in the store; -1 when none is.
    index: int = -1
    #: So many rows of the source went into the store, each counted once.
    rows: int = 0
    #: Which source the index belongs to, if the pipeline names it.
    source: str | None = None

    def encode(self) -> bytes:
        """As it stands in the store: JSON, the same bytes for the same marker."""
        return json.dumps({"format": _FORMAT, **attrs.asdict(self)}, sort_keys=True).encode()

    @classmethod
    def decode(cls, value: bytes, key: str) -> Marker:
        """Raises :class:`SettingsError` for what is no marker, or one of a later release."""
        try:
            fields = json.loads(value)
            if fields.pop("format") != _FORMAT:
                raise SettingsError(f"the key {key} holds a marker of a later release: use that release")
            marker = cls(fields.pop("index"), fields.pop("rows"), fields.pop("source"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, SettingsError):
                raise
            raise _no_marker(key, value) from None
        if type(marker.index) is not int or type(marker.rows) is not int or marker.index < -1 or marker.rows < 0:
            raise _no_marker(key, value)
        return marker


def _no_marker(key: str, value: bytes) -> SettingsError:
    return SettingsError(f"the key {key} holds no marker of a pipeline, but {value[:60]!r}: choose another pipeline_id")


# -- steps, and what is sent back for each -----------------------------------------------------------------------------


@attrs.frozen
class ReadMarker:
    """-> the value of the marker's key, or None."""


@attrs.frozen
class WriteMarker:
    """-> whether it was written."""

    value: bytes
    token: HlcTimestamp
    #: Only if the key does not exist or holds this very value.
    if_unchanged: bool = False


@attrs.frozen
class NextToken:
    """-> a token of the lock, newer than all before."""


@attrs.frozen
class WriteRows:
    """Each key's newest row above ``after`` -> :class:`Written`."""

    after: int
    token: HlcTimestamp


@attrs.frozen
class Written:
    """What a batch had: its rows, and their lowest and highest index (None without rows)."""

    rows: int
    first: int | None
    last: int | None


MarkerStep: TypeAlias = "ReadMarker | WriteMarker | NextToken | WriteRows"
MarkerSteps: TypeAlias = "Generator[MarkerStep, Any, Marker]"


def take_over(key: str, source: str | None) -> MarkerSteps:
    """The marker from which a new driver goes on; nobody who led before can move it any more.

    Raises :class:`OtherSourceError` when the marker is that of another source.
    """
    token = yield NextToken()
    while True:
        value = yield ReadMarker()
        marker = Marker(source=source) if value is None else Marker.decode(value, key)
        if source != marker.source:
            raise OtherSourceError(
                f"the marker {key} belongs to the source {marker.source!r}, not to {source!r}, whose indexes mean "
                "something else: choose another pipeline_id"
            )
        # A predecessor that has not ended may have moved it since it was read; then it is read again.
        if (yield WriteMarker(marker.encode(), token, if_unchanged=True)):
            return marker


def _hold(marker: Marker, token: HlcTimestamp) -> MarkerSteps:
    """Nobody has moved the marker, and from now on nobody with an older token can.

    It does not rely on clocks: a driver that slept through another one's time may get the lock again without noticing.
    """
    yield from _expect(marker)
    if not (yield WriteMarker(marker.encode(), token, if_unchanged=True)):
        raise MarkerGoneError(_GONE)
    return marker


def _expect(marker: Marker) -> MarkerSteps:
    if (yield ReadMarker()) != marker.encode():
        raise MarkerGoneError(_GONE)
    return marker


def write_batch(marker: Marker) -> MarkerSteps:
    """Write a batch that begins after ``marker``. Returns the marker after it; the same one if there was nothing new.

    Raises :class:`MarkerGoneError` when the store has lost what was there, and the refusals of the store.
    """
    token = yield NextToken()
    yield from _hold(marker, token)
    written: Written = yield WriteRows(marker.index, token)
    if written.last is None or written.last <= marker.index:
        return marker
    yield from _expect(marker)
    following = attrs.evolve(marker, index=written.last, rows=marker.rows + written.rows)
    yield WriteMarker(following.encode(), token)
    return following
