"""The table of properties is the only place that says how one looks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from statestore_client import mqtt
from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import PublishProperties
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets.publish_properties import (
    delivery_properties,
    encode_properties,
    leading_properties,
    property_block,
)

ROOM = Path(mqtt.__file__).parent

#: Of properties of PUBLISH (MQTT 5.0, 2.2.2.2). As figures, the first two have other meanings, too.
AS_BYTES = {0x08, 0x09, 0x0B, 0x23, 0x26}
AS_FIGURES = {0x0B, 0x23, 0x26}


def spelled(source: str) -> bool:
    """Whether a module writes an identifier as a byte, or gives one a name."""
    tree = ast.parse(source)
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    named = [
        node.value.value for node in tree.body if isinstance(node, ast.AnnAssign) and type(node.value) is ast.Constant
    ]
    return any(isinstance(value, bytes) and len(value) == 1 and value[0] in AS_BYTES for value in constants) or any(
        type(value) is int and value in AS_FIGURES for value in named
    )


@pytest.mark.parametrize("module", sorted(ROOM.rglob("*.py")), ids=lambda path: path.relative_to(ROOM).as_posix())
def test_no_other_module_spells_an_identifier(module: Path) -> None:
    """No module of this room but the table writes the identifier of a property as a byte or gives it a name."""
    is_table = module.name == "properties.py"
    assert spelled(module.read_text("utf-8")) == is_table


def test_a_property_block_is_put_together_from_its_parts() -> None:
    """Parts with expiry 10, subscription identifier 300 and topic alias 258 have the bytes of MQTT 5.0, 2.2.2.2."""
    leading, trailing = leading_properties(0, 10, None, "r"), delivery_properties((300,), 258)
    assert leading == bytes.fromhex("01 00 02 0000000A 08 0001 72")
    assert trailing == bytes.fromhex("0B AC02 23 0102")
    assert property_block(leading, b"c", trailing) == bytes.fromhex("15") + leading + b"\x09\x00\x01c" + trailing
    assert property_block(leading, None, trailing) == bytes.fromhex("11") + leading + trailing
    assert property_block(b"", None, b"") == b"\0"


def test_parts_that_mqtt_does_not_allow_are_refused() -> None:
    """Values that MQTT does not allow are refused, and again the second time, although results are remembered."""
    for _ in range(2):
        for given in (
            PublishProperties(payload_format=2),
            PublishProperties(message_expiry=1 << 32),
            PublishProperties(response_topic="a/+"),
            PublishProperties(correlation_data=b"x" * 65_536),
            PublishProperties(subscription_ids=(1, 0)),
            PublishProperties(topic_alias=0),
            PublishProperties(topic_alias=65_536),
            PublishProperties(user_properties=(("a", "\0"),)),
        ):
            with pytest.raises(InvalidArgumentError):
                encode_properties(given)


def test_spans_are_where_the_properties_are() -> None:
    """Each property lies where its span says, and a block without one of them has the length that fits."""
    parts = ["01 01", "02 0000000A", "03 0001 78", "09 0002 0102", "0B AC02", "23 0102", "26 0001 61 0002 6263"]
    block = bytes.fromhex("".join(parts))
    assert [block[start:stop] for _, start, stop in layouts.spans(block, 0, len(block))] == [
        bytes.fromhex(part) for part in parts
    ]
    for part in parts:
        rest = bytes.fromhex("".join(other for other in parts if other != part))
        whole = bytes((len(block),)) + block
        assert layouts.without(whole, bytes.fromhex(part)[0]) == bytes((len(rest),)) + rest
