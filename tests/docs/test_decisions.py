"""The decisions that compare source documents with the code name files and tests that exist, and say what holds."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest
from support.broker_driver import World

import statestore_client
from statestore_client.mqtt.packets import Pubcomp, Pubrec, Pubrel
from statestore_client.server.broker.message import Message
from statestore_client.server.broker.persistence.records import MessageRecord

PACKAGE = Path(statestore_client.__file__).parent
TESTS = Path(__file__).parents[1]
DECISIONS = TESTS.parent / "docs" / "decisions"

DOCUMENT = DECISIONS / "0029-otherwise-than-the-stream-document.md"
NEWCOMER = DECISIONS / "0030-a-newcomers-test.md"


@pytest.mark.parametrize("page", [DOCUMENT, NEWCOMER], ids=["document", "newcomer"])
def test_the_files_that_a_decision_names_exist(page: Path) -> None:
    """The files that a decision record names exist."""
    named = re.findall(r"`([\w/]+\.py)`", page.read_text("utf-8"))
    assert len(named) >= 10
    for file in named:
        assert (PACKAGE / file).is_file() or (PACKAGE.parent / file).is_file(), file


def test_every_deviation_has_a_test_that_exists() -> None:
    """Each row of the table of deviations names at least one test, and all of them exist."""
    rows = re.findall(r"^\| (?!The document|-).*$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 8
    sources = {path.stem: path.read_text("utf-8") for path in TESTS.rglob("test_*.py")}
    for row in rows:
        named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
        assert named, row
        assert [(file, test) for file, test in named if f"def {test}(" not in sources.get(file, "")] == [], row


def test_the_newcomer_counts_right() -> None:
    """The newcomer's record has as many rows with "yes" as it claims of its sentences."""
    page = NEWCOMER.read_text("utf-8")
    rows = re.findall(r"^\| \d+ \|.*\| (yes|no|) ?\|$", page, re.MULTILINE)
    assert (rows.count("yes"), rows.count("no"), rows.count("")) == (5, 5, 2)
    assert "Five of ten" in page
    again = re.findall(r"^\| [a-j] \|.*\| (yes|no) \|$", page, re.MULTILINE)
    assert (again.count("yes"), again.count("no")) == (8, 2)
    assert "eight of ten" in page


def test_the_record_of_a_message_has_no_user() -> None:
    """A retained message and its record hold the client identifier of the publisher and no user."""
    names = {field.name for field in attrs.fields(Message)} | {field.name for field in attrs.fields(MessageRecord)}
    assert "publisher" in names
    assert not any("user" in name for name in names)


def test_a_qos_2_message_is_delivered_before_its_pubrel() -> None:
    """A QoS 2 message is delivered when its PUBLISH comes in, and PUBREL only frees its packet identifier."""
    world = World()
    reader, writer = world.client("r"), world.client("w")
    reader.subscribe("t", qos=2)
    packet_id = writer.publish("t", b"x", 2)
    assert [type(packet) for packet in writer.received()] == [Pubrec]
    assert [message.payload for message in reader.messages()] == [b"x"]
    writer.send(Pubrel(packet_id))
    assert [type(packet) for packet in writer.received()] == [Pubcomp]
    assert reader.messages() == []


def test_no_filter_is_reserved() -> None:
    """A filter that the document reserves for itself can be subscribed to like any other."""
    world = World()
    reader, writer = world.client("r"), world.client("w")
    reader.subscribe("$MQTT.sub.x")
    writer.publish("$MQTT.sub.x", b"x")
    assert [message.payload for message in reader.messages()] == [b"x"]
