"""The reference of the KvStore agrees with the code: its limits, its reasons, its rows."""

from __future__ import annotations

import re
from inspect import getsource
from pathlib import Path

from statestore_client.server.kvstore import area, area_store, own_keys, patterns, requests
from statestore_client.wire.kvstore import codec, messages, value
from statestore_client.wire.kvstore.value import NoMergeReason

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = "".join((REFERENCE / name).read_text("utf-8") for name in ("kvstore.md", "kvstore-wire.md"))
MODULES = (requests, messages, own_keys, patterns, area_store, area, value)


def test_every_limit_has_the_value_of_the_code() -> None:
    """Each row of limits names a constant and has its value."""
    rows = re.findall(r"^\| [^|]+ \| ([\d,]+) \| `(\w+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 16
    for shown, name in rows:
        (found,) = {getattr(module, name) for module in MODULES if hasattr(module, name)}
        assert int(shown.replace(",", "")) == found, name


def test_every_reason_has_its_number() -> None:
    """The table has each reason that this store gives, with the number that it has on the wire."""
    rows = {name: int(number) for name, number in re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", PAGE, re.MULTILINE)}
    given = set(NoMergeReason) - {NoMergeReason.UNKNOWN, NoMergeReason.NO_MATCHED_KEY}
    assert rows == {reason.name: int(reason) for reason in given}


def test_every_message_has_its_bytes() -> None:
    """The bytes of each row are those of a message with the row's code, and no code is left out."""
    rows = re.findall(r"^\| [a-z ]+ \| (\d+) \|[^|]*\| `([0-9a-f ]+)` \|$", PAGE, re.MULTILINE)
    for code, shown in rows:
        data = bytes.fromhex(shown)
        assert data[1] == int(code) or data[1:3] == bytes((0xCC, int(code)))
        assert codec.encode(codec.decode(data)) == data
    assert sorted(int(code) for code, _ in rows) == sorted(codec._CODES.values())


def test_every_row_of_the_tables_is_there() -> None:
    """The page has the rows that the module lists, in its order."""
    in_code = re.findall(r"^# ([AB]\d) ", getsource(area_store), re.MULTILINE)
    assert (
        re.findall(r"^\| ([AB]\d) \|", PAGE, re.MULTILINE)
        == in_code
        == [*(f"A{n}" for n in range(1, 10)), *(f"B{n}" for n in range(1, 6))]
    )
