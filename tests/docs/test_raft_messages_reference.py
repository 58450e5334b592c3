"""docs/reference/raft-messages.md shows the frames that the messages declare."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from raft_client.wire import client_requests, key_value_messages, peer_messages, streams, watch_messages
from raft_client.wire.fields import Column, FieldMessage

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "raft-messages.md"
MESSAGES: Final = {
    kind
    for module in (client_requests, key_value_messages, peer_messages, streams, watch_messages)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, FieldMessage) and kind is not FieldMessage
}


def cell(column: Column) -> str:
    """A frame: its name in words, its type, and a question mark if it may be missing."""
    name = column.path.translate(str.maketrans("_.", "  "))
    kind, _, more = column.type.name.partition(" ")
    words = [name, *([f"`{kind}`"] if kind else []), *([more] if more else [])]
    return " ".join(words) + "?" * column.is_optional


def row(kind: type[FieldMessage]) -> str:
    """The cells of a message, as the page writes them."""
    layout = kind._layout
    head = [] if layout.head is None else [f"`{layout.head.hex(' ')}`"]
    return ", ".join([*head, *map(cell, layout.columns)])


@pytest.mark.parametrize("kind", sorted(MESSAGES, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_the_page_has_the_frames_of_each_message(kind: type[FieldMessage]) -> None:
    """Each message whose frames are its fields stands on the page, frame for frame."""
    assert f"| {row(kind)} |" in PAGE.read_text("utf-8")
