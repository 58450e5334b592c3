"""docs/reference/raft-limits.md has the numbers of the code, and all settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import attrs

import raft_client
from raft_client._common import http_server
from raft_client.server import embedded_cluster
from raft_client.server.machines import broadcast, key_value, watch_server
from raft_client.server.machines import leases as machine_leases
from raft_client.server.machines.watch_server import WatchServerLimits
from raft_client.server.node import (
    apply_queue,
    entries_streams,
    follower,
    learner,
    node,
    peer_requests,
    reads,
    state,
    timing,
    transfer,
    updates,
)
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime import (
    compaction,
    curve_keys,
    machine_runner,
    metrics,
    peer,
    sockets,
)
from raft_client.server.runtime.storage import read_ahead, recovery
from raft_client.server.runtime.storage.disk_log import StorageLimits
from raft_client.wire import client_requests, frames, leases, peer_messages, request_id

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "raft-limits.md"
SERVER: Final = Path(raft_client.__file__).parent / "server"
DEFAULTS: Final = NodeSettings(peer_id="1")
WATCHES: Final = WatchServerLimits()

#: Rows without a setting.
FIXED: Final[dict[str, Any]] = {
    "heartbeat of broadcasts": broadcast.HEARTBEAT_S,
    "the directory of keys": curve_keys._READ_AGAIN_S,
    "a lost connection to a peer": sockets._RECONNECT_MS / 1000,
    "a frame": sockets._MAX_FRAME_BYTES,
    "a subscription": sockets._MAX_SUBSCRIPTION_BYTES,
    "frames of a message": sockets._MAX_FRAMES,
    "a request id": peer_messages._MAX_ID_BYTES,
    "a list of peers in a ConfigUpdate": client_requests._MAX_PEERS_BYTES,
    "nesting of JSON": frames._MAX_DEPTH,
    "answers of 16 KiB and more that one client does not read": sockets._MOST_BYTES_OF_ONE,
    "the same, of all clients": sockets._MOST_BYTES,
    "what is read for streams in one turn": entries_streams._TICK_BYTES,
    "newest entries in memory": StorageLimits().recent_bytes,
    "entries handed to the state machine at once": apply_queue._BATCH_BYTES,
    "entries in a message of a stream": entries_streams._MAX_ENTRIES,
    "updates that are not committed": updates._MAX_UPDATES,
    "a client that waits for its append": updates._ACCEPT_S,
    "reads that wait": reads._MAX_READS,
    "questions for the state machine that wait": machine_runner._MOST_QUESTIONS,
    "questions for the state machine that wait, in all": machine_runner._MOST_QUESTION_BYTES,
    "messages that wait for one client or peer that does not read": sockets._SEND_QUEUE,
    "broadcasts that wait for one subscriber that does not read": sockets._BROADCAST_QUEUE,
    "messages that wait to be taken, for one connection": sockets._RECEIVE_QUEUE,
    "requests in one turn": peer._TURN,
    "requests of one connection, at once": sockets._BURST,
    "the same, in a second": sockets._MAX_PER_SECOND,
    "addresses whose refusal was logged": sockets._MOST_ADDRESSES,
    "answers that wait for the disk": state._MAX_WAITING,
    "clients that wait for a snapshot": compaction._MOST_ASKED,
    "clients that wait for the end of a transfer": transfer._MAX_ASKED,
    "clocks of clients that differ": request_id.CLOCK_TOLERANCE_S,
    "a lease, in such promises": reads._LEASE_SHARE,
    "the promise of a voter that has heard a leader": timing.QUIET_S,
    "the longest that slow disks and processes put elections off": timing.LONGEST_S,
    "silence of a connection that owes an answer": peer_requests._SILENT_S,
    "applying entries in one turn": peer._CARRYING_OUT_S,
    "silence of whom a newcomer copies from": learner._SILENCE_S,
    "an answer that does not help a newcomer": learner._GRACE_S,
    "a snapshot that waits for request ids to expire": compaction._ASK_S,
    "a request for the page of figures": http_server._TIMEOUT_S,
    "what is taken from one socket at once": sockets._MOST_AT_ONCE_BYTES,
    "a segment of the log": StorageLimits().segment_bytes,
    "a piece of a snapshot of the own state machine": compaction._PIECE_BYTES,
    "a page of `kv.range` or `kv.read`": key_value._PAGE_BYTES,
    "what keys were before they changed, in memory": key_value._PAST_BYTES,
    "a request for the page of figures, in bytes": http_server._MAX_REQUEST,
    "entries of a segment": StorageLimits().segment_entries,
    "files of old segments that are open": recovery._OPEN_FILES,
    "parts of files that were read ahead and not asked for again": read_ahead._MAX_KEPT,
    "old segments whose offsets are in memory": recovery._LOADED_OFFSETS,
    "growth of the log between two snapshots, in sizes of the last": compaction._FACTOR,
    "keys in a page of `kv.range` or `kv.read`": key_value._MAX_PAGE,
    "keys that are looked at for a page of `kv.read`": key_value._MOST_LOOKED_AT,
    "results of transactions that compare, delete or have a lease": key_value._REMEMBERED,
    "leases of a cluster": leases.MOST_LEASES,
    "keys of a lease": leases.MOST_KEYS_OF_A_LEASE,
    "keys of all leases": leases.MOST_LEASED_KEYS,
    "leases that a leader ends in one turn": machine_leases._MOST_ENDS,
    "entries in which a follower looks for the start of a term": follower._MAX_BACK,
    "requests to one peer whose late answers are understood": peer.REMEMBERED,
    "terms and indexes": node._MAX_NUMBER,
    "readers of the page of figures": metrics._CONNECTIONS,
    "peers of an embedded cluster": embedded_cluster._MOST_PEERS,
    "silence of a client that watches": WATCHES.silence_s,
    "changes that are remembered for watches": WATCHES.history_bytes,
    "events on their way to one client that watches": WATCHES.window_bytes,
    "events on their way to all clients that watch": WATCHES.window_bytes_of_all,
    "keys of the watches of one client, with request ids": WATCHES.key_bytes_of_a_session,
    "keys of all watches, with request ids": WATCHES.key_bytes,
    "clients that watch": WATCHES.sessions,
    "watches": WATCHES.watches,
    "watches of one client": WATCHES.watches_of_a_session,
    "messages with events on their way to one client": WATCHES.window_messages,
    "steps that watches take in one turn": watch_server._TURN_STEPS,
    "ways through the remembered changes at once": watch_server._MOST_CURSORS,
}

#: Constants that are called limits and have no row.
NO_LIMITS: Final = {
    "membership._MAX_PORT",  # what a port is
    "learner._MAX_TERM",  # the same as that of other messages
    "log_import._MAX_CAPACITY",  # what a file of a Node peer can be
    "recovery._MAX_READ",  # how a file is read, not how much of it
}

#: Settings beside the limits.
OTHERS: Final = {"peer_id", "ident", "trim_forgets_ids"}


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


def test_every_limit_of_a_peer_has_a_row() -> None:
    """What the modules of a peer call the most of something is compared with the page, or stands here with a reason."""
    limits = {
        f"{path.stem}.{name}"
        for path in SERVER.rglob("*.py")
        for name in re.findall(r"^(_(?:MAX|MOST)_\w+): Final", path.read_text("utf-8"), re.M)
    }
    here = Path(__file__).read_text("utf-8").replace("machine_leases.", "leases.")
    compared = set(re.findall(r": (\w+\._(?:MAX|MOST)_\w+),$", here, re.M))
    assert limits >= NO_LIMITS
    assert limits - NO_LIMITS <= compared
