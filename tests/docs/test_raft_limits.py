"""docs/reference/raft-limits.md has the numbers of the code, and all settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import attrs

from raft_client.server.machines import broadcast
from raft_client.server.node import applying, entries_streams, log, outbox, reads, transfer, updates
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime import curve_keys, handshakes, long_answers, machine_runner, peer, sockets
from raft_client.wire import frames, requests, update_requests

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "raft-limits.md"
DEFAULTS: Final = NodeSettings(peer_id="1")

#: Rows without a setting.
FIXED: Final[dict[str, Any]] = {
    "heartbeat of broadcasts": broadcast.HEARTBEAT_S,
    "the directory of keys": curve_keys._READ_AGAIN_S,
    "a lost connection to a peer": sockets._RECONNECT_MS / 1000,
    "a frame": sockets._MAX_FRAME_BYTES,
    "a subscription": sockets._MAX_SUBSCRIPTION_BYTES,
    "frames of a message": sockets._MAX_FRAMES,
    "a request id": requests._MAX_ID_BYTES,
    "a list of peers in a ConfigUpdate": update_requests._MAX_PEERS_BYTES,
    "nesting of JSON": frames._MAX_DEPTH,
    "answers of 16 KiB and more that one client does not read": long_answers._MOST_BYTES_OF_ONE,
    "the same, of all clients": long_answers._MOST_BYTES,
    "what is read for streams in one turn": entries_streams._TICK_BYTES,
    "newest entries in memory": log._CACHE_BYTES,
    "entries handed to the state machine at once": applying._BATCH_BYTES,
    "entries in a message of a stream": entries_streams._MAX_ENTRIES,
    "updates that are not committed": updates._MAX_UPDATES,
    "reads that wait": reads._MAX_READS,
    "questions for the state machine that wait": machine_runner._MOST_QUESTIONS,
    "questions for the state machine that wait, in all": machine_runner._MOST_QUESTION_BYTES,
    "messages that wait for one client or peer that does not read": sockets._SEND_QUEUE,
    "broadcasts that wait for one subscriber that does not read": sockets._BROADCAST_QUEUE,
    "messages that wait to be taken, for one connection": sockets._RECEIVE_QUEUE,
    "requests in one turn": peer._TURN,
    "addresses whose refusal was logged": handshakes._MOST_ADDRESSES,
    "answers that wait for the disk": outbox._MAX_WAITING,
    "clients that wait for the end of a transfer": transfer._MAX_ASKED,
}

#: Settings beside the limits.
OTHERS: Final = {"peer_id", "ident", "pre_vote", "check_quorum"}


def test_the_page_has_the_numbers_of_the_code() -> None:
    """Each row has the value of its setting or constant, and each setting has a row."""
    settings = set()
    fixed = set()
    for what, value, setting in re.findall(
        r"^\| ([^|]+) \| ([\d,.]+)[^|]* \| (?:`(\w+)`)? ?\| ", PAGE.read_text(), re.M
    ):
        number = float(value.replace(",", ""))
        if setting:
            assert getattr(DEFAULTS, setting) == number, what
            settings.add(setting)
        else:
            assert FIXED[what] == number, what
            fixed.add(what)
    assert settings == {field.name for field in attrs.fields(NodeSettings)} - OTHERS
    assert fixed == FIXED.keys()
