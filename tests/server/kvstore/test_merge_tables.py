"""The two decision tables of the merge, row by row."""

from __future__ import annotations

import pytest

from statestore_client.server.kvstore.merge import Decision, Update, decide
from statestore_client.wire.kvstore.value import NoMergeReason, Value

REPLACE, UPDATE_TTL = Update.REPLACE, Update.UPDATE_TTL
OLD, NO_NEED = NoMergeReason.OLD_VERSION, NoMergeReason.NO_NEED_TO_UPDATE
RESYNC = NoMergeReason.INCONSISTENCY_DETECTED

CURRENT = Value(5, "node5", b"dummy", ttl_ms=1000, ttl_version=3)


@pytest.mark.parametrize(
    ("entry", "current", "expected"),
    [
        pytest.param(Value(0, "zoe", b"x"), None, OLD, id="A1 version 0"),
        pytest.param(Value(-1, "zoe", b"x"), CURRENT, OLD, id="A1 version below 0"),
        pytest.param(Value(4, "zoe", b"zzz", ttl_version=9), CURRENT, OLD, id="A2"),
        pytest.param(Value(1, "a", b""), None, REPLACE, id="A3 nothing stored"),
        pytest.param(Value(6, "a", b"a", ttl_version=0), CURRENT, REPLACE, id="A3"),
        pytest.param(Value(5, "node55", b"a", ttl_version=0), CURRENT, REPLACE, id="A4 a longer name"),
        pytest.param(Value(5, "node6", b"a"), CURRENT, REPLACE, id="A4"),
        pytest.param(Value(5, "node", b"zzz", ttl_version=9), CURRENT, NO_NEED, id="A5"),
        pytest.param(Value(5, "node5", b"dummyValue", ttl_version=0), CURRENT, REPLACE, id="A6 a longer value"),
        pytest.param(Value(5, "node5", b"\xff", ttl_version=2), CURRENT, REPLACE, id="A6 bytes have no sign"),
        pytest.param(Value(5, "node5", b"dumm", ttl_version=9), CURRENT, NO_NEED, id="A7"),
        pytest.param(Value(5, "node5", b"", ttl_version=9), CURRENT, NO_NEED, id="A7 an empty value is one"),
        pytest.param(Value(5, "node5", b"dummy", ttl_version=4), CURRENT, UPDATE_TTL, id="A8"),
        pytest.param(Value(5, "node5", b"dummy", ttl_ms=9, ttl_version=3), CURRENT, NO_NEED, id="A9 another TTL alone"),
        pytest.param(Value(5, "node5", b"dummy", ttl_version=2), CURRENT, NO_NEED, id="A9"),
    ],
)
@pytest.mark.parametrize("sender", [None, "node5", "zoe"])
def test_an_entry_with_a_value(entry: Value, current: Value | None, expected: Decision, sender: str | None) -> None:
    """Table A decides about an entry that carries a value, whoever has sent it."""
    assert decide(entry, current, sender) is expected


@pytest.mark.parametrize(
    ("entry", "current", "from_originator", "otherwise"),
    [
        pytest.param(Value(5, "node5", None, ttl_version=4), None, RESYNC, NO_NEED, id="B1"),
        pytest.param(Value(6, "node5", None, ttl_version=4), CURRENT, RESYNC, NO_NEED, id="B2 higher"),
        pytest.param(Value(4, "node5", None, ttl_version=4), CURRENT, RESYNC, NO_NEED, id="B2 lower"),
        pytest.param(
            Value(0, "node5", None, ttl_version=4), CURRENT, RESYNC, NO_NEED, id="B2 the version is not checked"
        ),
        pytest.param(Value(5, "node6", None, ttl_version=4), CURRENT, RESYNC, NO_NEED, id="B3"),
        pytest.param(Value(5, "node5", None, ttl_version=4), CURRENT, UPDATE_TTL, UPDATE_TTL, id="B4"),
        pytest.param(Value(5, "node5", None, ttl_version=3), CURRENT, NO_NEED, NO_NEED, id="B5 equal"),
        pytest.param(Value(5, "node5", None, ttl_version=2), CURRENT, NO_NEED, NO_NEED, id="B5 lower"),
    ],
)
def test_an_entry_without_a_value(
    entry: Value, current: Value | None, from_originator: Decision, otherwise: Decision
) -> None:
    """Table B decides about an entry without a value: its originator is told to sync, nobody else is."""
    assert decide(entry, current, entry.originator) is from_originator
    assert decide(entry, current, "another") is otherwise
    assert decide(entry, current, None) is otherwise
