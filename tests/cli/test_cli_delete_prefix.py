"""``statestore del --prefix``: all keys that begin with some bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from statestore_client import StateStoreClient
from statestore_client.cli.entries import entries
from statestore_client.core.arguments import SetItem
from statestore_client.server import EmbeddedServer
from statestore_client.server.service import service

Here = Callable[..., tuple[int, str, str]]

TOKEN = "001696374425001:00000:A"
BETWEEN = "001696374425005:00000:A"
LATER = "001696374425009:00000:A"


def names(store: StateStoreClient) -> list[bytes]:
    """Of all keys, text or not."""
    return [entry.key for entry in entries(store, b"*")]


def test_what_begins_with_a_prefix_is_deleted(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """Keys that begin with it go, text or not, blanks, stars and line feeds included; nothing goes with --dry-run, or
    without --yes where nobody can be asked.
    """
    below = [b"a/", b"a/ b", b"a/*", b"a/\n", b"a/\xff", "a/é".encode()]
    statestore_sync_client.set_many((key, b"1") for key in [*below, b"a", b"a0", b"b/1", b"[a]/1", b"[a]/2", b"\xfe1"])
    delete = ("del", "--url", statestore_server.url, "--prefix")
    code, out, _ = here(*delete, "a/", "--dry-run", "--json")
    assert code == 0
    listed = [json.loads(line) for line in out.splitlines()]
    assert listed == [*({"key": key.decode()} for key in sorted(below[:-2])), {"key": "a/é"}, {"key_base64": "YS//"}]
    assert here(*delete, "[a]/", "--dry-run") == (0, "[a]/1\n[a]/2\n", "")
    assert here(*delete, "a/")[:2] == (2, "")
    assert len(names(statestore_sync_client)) == 12
    assert here(*delete, "a/", "--yes") == (0, "deleted 6 keys\n", "")
    assert here(*delete, os.fsdecode(b"\xfe"), "--yes") == (0, "deleted 1 key\n", "")
    assert names(statestore_sync_client) == [b"[a]/1", b"[a]/2", b"a", b"a0", b"b/1"]
    assert here(*delete, "a/", "--yes") == (1, "deleted 0 keys\n", "")


def test_fenced_keys_stay_unless_they_are_asked_for(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """Keys that a token protects are named and stay, with exit code 8; --fenced deletes each under its own token, and
    --fencing-token what that token may.
    """
    store = statestore_sync_client

    def fill() -> None:
        store.set_many([SetItem("a/1", "x"), SetItem("a/2", "x", None, TOKEN), SetItem("a/3", "x", None, LATER)])

    fill()
    delete = ("del", "--url", statestore_server.url, "--prefix", "a/", "--yes")
    text = "stays: a fencing token protects it; --fenced deletes such keys, too\n"
    stay = f"statestore: a/2 {text}statestore: a/3 {text}"
    assert here(*delete, "--dry-run") == (8, "a/1\n", stay)
    assert here(*delete) == (8, "deleted 1 key; 2 stay\n", stay)
    assert here(*delete, "--fenced", "--json")[:2] == (0, '{"found": 2, "deleted": 2, "fenced": 0, "refused": 0}\n')
    fill()
    code, out, complaint = here(*delete, "--fencing-token", BETWEEN)
    assert (code, out) == (8, "deleted 2 keys; 1 stay\n")
    assert complaint.startswith("statestore: a/3 was not deleted: the request fencing token is a lower version")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--prefix", ""),
        ("--prefix", "a", "b"),
        ("--prefix", "a", "--fenced", "--fencing-token", TOKEN),
        ("a", "--dry-run"),
        ("a", "--fenced"),
        ("a", "--yes"),
        ("--prefix", "a", "--fencing-token", "new"),
    ],
)
def test_what_is_not_clear_deletes_nothing(
    here: Here,
    statestore_server: EmbeddedServer,
    statestore_sync_client: StateStoreClient,
    arguments: tuple[str, ...],
) -> None:
    """An empty prefix, as of a variable that is not set, and options that do not fit are refused with exit code 2."""
    statestore_sync_client.set("a", "1")
    assert here("del", "--url", statestore_server.url, *arguments)[:2] == (2, "")
    assert names(statestore_sync_client) == [b"a"]


def test_a_store_of_another_make_lists_text(
    here: Here,
    statestore_server: EmbeddedServer,
    statestore_sync_client: StateStoreClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a store that tells no entries, keys that are text are deleted, and it says that there may be others."""
    statestore_sync_client.set_many([(b"a/1", b"x"), (b"a/\xff", b"x")])
    monkeypatch.setattr(service, "SCAN_ENTRIES", ("what this server", "is not asked"))
    code, out, complaint = here("del", "--url", statestore_server.url, "--prefix", "a/", "--yes")
    assert (code, out) == (0, "deleted 1 key\n")
    assert "does not list keys that are not text" in complaint
