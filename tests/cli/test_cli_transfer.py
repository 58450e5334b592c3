"""``statestore export`` and ``import``: all keys of a store into a file, and back, in every field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from statestore_client import StateStoreClient
from statestore_client.cli.entries import entries
from statestore_client.core.arguments import SetItem
from statestore_client.server import EmbeddedServer
from statestore_client.server.service import service
from statestore_client.server.store import StoreLimits
from statestore_client.wire.replies import KeyEntry

Here = Callable[..., tuple[int, str, str]]

TOKEN = "001696374425001:00000:A"
LONG_S = 1_000_000


def fill(store: StateStoreClient, count: int) -> None:
    """Keys of which half are no text, a third expires, and a fifth is fenced, each in its own way."""
    store.set_many(
        SetItem(
            b"k%06d" % n + (b"\xff\n\x00" if n % 2 else "é".encode()),
            bytes([n % 256]) * (n % 50),
            LONG_S + 1000 * n if n % 3 == 0 else None,
            f"0016963744{n % 100_000:05d}:00000:A" if n % 5 == 0 else None,
        )
        for n in range(count)
    )


def all_of(url: str) -> list[KeyEntry]:
    """Every entry."""
    with StateStoreClient(url) as store:
        return list(entries(store, b"*"))


def assert_equal(found: list[KeyEntry], wanted: list[KeyEntry]) -> None:
    """In every field but the version, which each store gives itself; some time may have passed."""
    assert [(e.key, e.value, e.fence) for e in found] == [(e.key, e.value, e.fence) for e in wanted]
    for one, other in zip(found, wanted, strict=True):
        if one.expiry_ms is None or other.expiry_ms is None:
            assert one.expiry_ms is other.expiry_ms
        else:
            assert abs(other.expiry_ms - one.expiry_ms) < 300_000


def exported(here: Here, server: EmbeddedServer, file: Path, *arguments: str) -> bytes:
    """The file, after an export that went well."""
    code, out, complaint = here("export", "--url", server.url, *arguments)
    assert (code, complaint) == (0, "")
    file.write_bytes(out.encode())
    return out.encode()


def signed(*lines: dict[str, object]) -> bytes:
    """A file whose checksum is right, whatever the lines are."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    end = {"keys": len(lines) - 1, "sha256": hashlib.sha256(data).hexdigest()}
    return data + json.dumps(end).encode() + b"\n"


HEAD: dict[str, object] = {"statestore_export": 1, "pattern": "*"}


def test_all_keys_are_the_same_after_export_and_import(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, tmp_path: Path
) -> None:
    """2000 keys, also those that are no text, have their values, expiries and fences in the other store; other keys
    there stay, and a second import writes only what expires.
    """
    fill(statestore_sync_client, 2000)
    exported(here, statestore_server, tmp_path / "file")
    with EmbeddedServer() as other:
        with StateStoreClient(other.url) as store:
            store.set("k000001", "another one")
            store.set("k000004é", "replaced")
        load = ("import", "--url", other.url, tmp_path / "file")
        assert here(*load) == (0, "stored 2000 keys; all are as in the file\n", "")
        found = all_of(other.url)
        assert found.pop(1).key == b"k000001"
        assert_equal(found, all_of(statestore_server.url))
        code, out, _ = here(*load, "--json")
    assert code == 0
    assert json.loads(out) == {"keys": 2000, "stored": 667, "unchanged": 1333, "refused": 0, "different": 0}


def test_a_pattern_chooses_and_options_leave_out(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, tmp_path: Path
) -> None:
    """What is left of an expiry is exported, only values with --values-only, and fences are left with --without-fences;
    no time at all is left of a key that is about to expire.
    """
    file = tmp_path / "file"
    statestore_sync_client.set_many([SetItem("a/1", "x", 100, TOKEN), SetItem("b/1", "y")])
    statestore_server.clock.advance(40)
    lines = [json.loads(line) for line in exported(here, statestore_server, file, "a/*").splitlines()]
    assert lines[0]["pattern"] == "a/*"
    assert [(line["key"], line["value"], line["fence"]) for line in lines[1:-1]] == [("a/1", "x", TOKEN)]
    assert 50 < lines[1]["expiry"] <= 60
    with EmbeddedServer() as other:
        load = ("import", "--url", other.url, file)
        assert here(*load, "--without-fences")[0] == 0
        (entry,) = all_of(other.url)
        assert (entry.key, entry.fence) == (b"a/1", None)
        assert entry.expiry_ms is not None
        exported(here, statestore_server, file, "--values-only")
        assert here(*load)[:2] == (0, "stored 1 key; 1 unchanged; all are as in the file\n")
        file.write_bytes(signed(HEAD, {"key": "c", "value": "z", "expiry": 0}))
        assert here(*load)[:2] == (0, "stored 1 key; all are as in the file\n")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda _: b"", "no file of statestore export"),
        (lambda _: b"\x1f\x8b\x08" + bytes(100_000), "no file of statestore export"),
        (lambda _: b'{"key": "a", "value": "1"}\n', "no file of statestore export"),
        (lambda data: data.replace(b'export": 1', b'export": 2', 1), "version 2, and this release reads version 1"),
        (lambda data: data[: data.rindex(b'{"keys"')], "no end: the export was interrupted after about 2 keys"),
        (lambda data: data[:-40], "no end: the export was interrupted after about 3 keys"),
        (lambda data: data[: data.index(b"\n") + 1], "no end: the export was interrupted after about 0 keys"),
        (lambda data: data.replace(b'"1"', b'"8"', 1), "it was changed"),
        (lambda data: data.replace(b'"keys": 3', b'"keys": 4', 1), "it was changed"),
        (lambda data: data + data, "it was changed"),
        (lambda _: signed(HEAD, {"key": "b", "value": "1"}, {"key": "a", "value": "1"}), "line 3: this key is not"),
        (lambda _: signed(HEAD, {"key": "b"}), 'line 2: the object has no text "value" or "value_base64"'),
        (lambda _: signed(HEAD, {"key": "b", "value_base64": "!"}), "line 2: value: "),
        (lambda _: signed(HEAD, {"key": "b", "value": "1", "fence": "new"}), "'new' is not a timestamp"),
        (lambda _: signed(HEAD, {"key": "b", "value": "1", "fence": 5}), "line 2: fence is no fencing token"),
        (lambda _: signed(HEAD, {"key": "b", "value": "1", "expiry": -1}), "line 2: expiry is no number of seconds"),
        (lambda _: signed({**HEAD, "pattern": 5}), 'the object has no text "pattern"'),
    ],
)
def test_a_file_that_is_not_whole_is_refused(
    here: Here,
    statestore_server: EmbeddedServer,
    statestore_sync_client: StateStoreClient,
    tmp_path: Path,
    change: Callable[[bytes], bytes],
    complaint: str,
) -> None:
    """Foreign, truncated and altered files are refused with exit code 6 and the reason, and nothing is stored."""
    statestore_sync_client.set_many([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    data = exported(here, statestore_server, tmp_path / "file")
    statestore_sync_client.delete_many([b"a", b"b", b"c"])
    (tmp_path / "file").write_bytes(change(data))
    code, out, told = here("import", "--url", statestore_server.url, tmp_path / "file")
    assert (code, out) == (6, "")
    assert told.startswith(f"statestore: {tmp_path}/file")
    assert complaint in told
    assert told.count("\n") == 1
    assert list(statestore_sync_client.scan("*")) == []


def test_keys_that_are_refused(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, tmp_path: Path
) -> None:
    """An import stops at a key that is refused, and says how far it came; with --skip-refused it names ten of them, and
    stores the others.
    """
    statestore_sync_client.set_many((b"k%02d" % n, b"1") for n in range(20))
    exported(here, statestore_server, tmp_path / "file")
    statestore_sync_client.set_many(SetItem(b"k%02d" % n, b"2", None, TOKEN) for n in range(12))
    load = ("import", "--url", statestore_server.url, tmp_path / "file")
    code, out, complaint = here(*load)
    assert (code, out) == (3, "")
    assert "8 of 20 keys are there for certain; the same command goes on there" in complaint
    code, out, complaint = here(*load, "--skip-refused")
    assert (code, out) == (8, "stored 0 keys; 8 unchanged; 12 refused\n")
    assert [line.split()[1] for line in complaint.splitlines()] == [*(f"k{n:02d}" for n in range(10)), "and"]


@pytest.mark.statestore_server(store_limits=StoreLimits(max_keys=2))
def test_an_import_that_was_refused_goes_on(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, tmp_path: Path
) -> None:
    """When there is room again, the same command stores the rest."""
    (tmp_path / "file").write_bytes(signed(HEAD, {"key": "a", "value": "1"}, {"key": "b", "value": "2"}))
    statestore_sync_client.set("x", "1")
    load = ("import", "--url", statestore_server.url, tmp_path / "file")
    code, _, complaint = here(*load)
    assert code == 3
    assert "1 of 2 keys are there for certain" in complaint
    statestore_sync_client.delete("x")
    assert here(*load) == (0, "stored 1 key; 1 unchanged; all are as in the file\n", "")


def test_what_others_change_meanwhile_is_named(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, tmp_path: Path
) -> None:
    """Keys that are not as in the file at the end are named, with exit code 8: here an hour goes by meanwhile."""
    statestore_sync_client.set("a", "1", expiry=7200)
    statestore_sync_client.set("b", "1", expiry=600)
    statestore_sync_client.set("c", "1")
    exported(here, statestore_server, tmp_path / "file")
    with EmbeddedServer() as other:
        other.hooks.on_publish = lambda event: (
            other.clock.advance(3600, keep_alive=False) if b"SET" in event.payload[:20] else None
        )
        code, out, complaint = here("import", "--url", other.url, tmp_path / "file")
    assert (code, out) == (8, "stored 3 keys; 2 not as in the file\n")
    text = f"is not as in {tmp_path}/file: others have changed it meanwhile\n"
    assert complaint == f"statestore: a {text}statestore: b {text}"


def test_a_store_of_another_make(
    here: Here,
    statestore_server: EmbeddedServer,
    statestore_sync_client: StateStoreClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that tells keys and values only is exported with --values-only, and a whole file is imported there."""
    fill(statestore_sync_client, 30)
    exported(here, statestore_server, tmp_path / "whole")
    before = all_of(statestore_server.url)
    monkeypatch.setattr(service, "SCAN_ENTRIES", ("what this server", "is not asked"))
    code, out, complaint = here("export", "--url", statestore_server.url)
    assert (code, out) == (3, "")
    assert "--values-only leaves these out" in complaint
    lines = exported(here, statestore_server, tmp_path / "values", "--values-only").splitlines()
    assert len(lines) == 17
    load = ("import", "--url", statestore_server.url)
    assert here(*load, tmp_path / "values")[0] == 0
    with EmbeddedServer() as other:
        for _ in range(2):
            assert here("import", "--url", other.url, tmp_path / "whole")[0] == 0
        monkeypatch.undo()
        assert_equal(all_of(other.url), before)
