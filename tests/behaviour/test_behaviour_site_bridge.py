"""Keys that cross between the state stores of two sites, through real servers and the ordinary client."""

from __future__ import annotations

import contextlib
import logging
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ports import reserved_port
from support.waiting import eventually

from statestore_client import NotAuthorizedError, StateStoreClient
from statestore_client.aio import StateStoreClient as AsyncStateStoreClient
from statestore_client.server import EmbeddedServer, SiteEndpoints
from statestore_client.server.kvstore import own_keys


@pytest.fixture(autouse=True)
def _short_erasures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is erased is gone after most of a second, in place of five."""
    monkeypatch.setattr(own_keys, "ERASE_TTL_MS", 800)


def rome(url: str = "tcp://127.0.0.1:*", **more: Any) -> EmbeddedServer:
    """It exports."""
    return EmbeddedServer(site=SiteEndpoints(name="rome", listen=url, exports=("line/",)), **more)


def oslo(peer: str, **more: Any) -> EmbeddedServer:
    """It imports, and exports what would go in a circle if anything did."""
    return EmbeddedServer(site=SiteEndpoints(name="oslo", peers=(peer,), exports=("s",), imports=True), **more)


def figures(server: EmbeddedServer) -> set[str]:
    """What the page for Prometheus says of the bridge."""
    with urllib.request.urlopen(server.urls["http"]) as page:  # noqa: S310 - of this test
        return {line for line in page.read().decode().splitlines() if line.startswith("statestore_site_bridge_")}


@contextlib.contextmanager
def two_sites() -> Iterator[tuple[StateStoreClient, StateStoreClient, EmbeddedServer, EmbeddedServer]]:
    """A client at each."""
    with (
        rome(metrics_port=0) as here,
        oslo(here.site_url, metrics_port=0) as there,
        StateStoreClient(here.url) as at_rome,
        StateStoreClient(there.url) as at_oslo,
    ):
        yield at_rome, at_oslo, here, there


def test_a_key_of_rome_is_read_watched_and_listed_at_oslo() -> None:
    """It comes with each change and ends after its deletion; the other site sees versions that rise."""
    with two_sites() as (at_rome, at_oslo, here, there):
        with at_oslo.watch("sites/rome/line/1") as events:
            at_rome.set("line/1", b"runs")
            at_rome.set("elsewhere", b"x")
            first = events.get(timeout=20)
            assert first is not None
            assert first.value == b"runs"
            item = at_oslo.get("sites/rome/line/1")
            assert item is not None
            assert (item.value, item.version) == (b"runs", first.version)
            at_rome.set("line/1", b"stands")
            second = events.get(timeout=20)
            assert second is not None
            assert (second.value, second.version > first.version) == (b"stands", True)
            assert list(at_oslo.scan("sites/*")) == [b"sites/rome/line/1"]
            assert "statestore_site_bridge_imported_keys 1" in figures(there)
            assert "statestore_site_bridge_exported_keys 1" in figures(here)
            at_rome.delete("line/1")
            last = events.get(timeout=20)
            assert last is not None
            assert last.kind == "delete"
        assert at_oslo.get("sites/rome/line/1") is None
        assert list(at_rome.scan("sites/*")) == []
        assert "statestore_site_bridge_exported_keys 0" in figures(here)


@pytest.mark.parametrize("dialect", ["service", "document"])
def test_nobody_writes_what_belongs_to_other_sites(dialect: str) -> None:
    """SET, DEL and VDEL below ``sites/`` are refused at both sites, with a typed error; all else goes on."""
    with oslo("tcp://127.0.0.1:1", dialect=dialect) as server, StateStoreClient(server.url) as store:
        for write in (
            lambda: store.set("sites/rome/line/1", b"x"),
            lambda: store.set("sites/", b"x"),
            lambda: store.delete("sites/oslo/k"),
            lambda: store.vdelete("sites/rome/line/1", b"x"),
        ):
            with pytest.raises(NotAuthorizedError):
                write()
        assert store.get("sites/rome/line/1") is None
        store.set("site", b"x")
        store.set("sites", b"x")
    with EmbeddedServer() as server, StateStoreClient(server.url) as store:
        store.set("sites/rome/line/1", b"a server without a bridge")


def test_what_was_deleted_while_the_site_was_away_ends_at_the_others() -> None:
    """Rome starts again with one of two keys: oslo gives both back, and in the end it has the same one as rome."""
    url = f"tcp://127.0.0.1:{reserved_port()}"
    with oslo(url) as there, StateStoreClient(there.url) as at_oslo:
        with rome(url) as here, StateStoreClient(here.url) as at_rome:
            at_rome.set_many({"line/1": b"1", "line/2": b"2"}.items())
            eventually(lambda: at_oslo.get("sites/rome/line/1") and at_oslo.get("sites/rome/line/2"))
        with rome(url) as here, StateStoreClient(here.url) as at_rome:
            at_rome.set("line/1", b"1")
            eventually(lambda: at_oslo.get("sites/rome/line/2") is None, "the deleted key is gone")
            item = at_oslo.get("sites/rome/line/1")
            assert item is not None
            assert item.value == b"1"
            here.clear()  # as a server that starts again, empty
            eventually(lambda: at_oslo.get("sites/rome/line/1") is None, "all of them are gone")


def test_exports_come_from_the_disk_and_imports_do_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A durable server publishes again what it finds. What it had of others is not there until they say it again."""
    url = f"tcp://127.0.0.1:{reserved_port()}"
    with oslo(url, data=tmp_path / "oslo") as there, StateStoreClient(there.url) as at_oslo:
        at_oslo.set("mine", b"x")
        with rome(url, data=tmp_path / "rome") as here, StateStoreClient(here.url) as at_rome:
            at_rome.set("line/1", b"1")
            eventually(lambda: at_oslo.get("sites/rome/line/1"))
    with oslo(url, data=tmp_path / "oslo") as there, StateStoreClient(there.url) as at_oslo:
        assert list(at_oslo.scan()) == [b"mine"]
        with rome(url, data=tmp_path / "rome"):
            eventually(lambda: at_oslo.get("sites/rome/line/1"))
    # Not of asyncio's, which warns in development mode when the machine is busy.
    assert [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("statestore")] == []


def test_what_clients_had_set_there_stays_and_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Keys of a time without a bridge: they are read as before, a WARNING says so, and nobody changes them."""
    with EmbeddedServer(data=tmp_path) as server, StateStoreClient(server.url) as store:
        store.set("sites/old", b"x")
    with oslo("tcp://127.0.0.1:1", data=tmp_path) as server, StateStoreClient(server.url) as store:
        item = store.get("sites/old")
        assert item is not None
        with pytest.raises(NotAuthorizedError):
            store.delete("sites/old")
    assert any("'sites/old'" in text and "before this server had a bridge" in text for text in caplog.messages)


def test_a_key_that_cannot_cross_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log names the first one and why; the page counts."""
    with rome(metrics_port=0) as here, StateStoreClient(here.url) as at_rome:
        at_rome.set(b"line/\xff", b"x")
        at_rome.set(b"line/\xfe", b"x")
        eventually(lambda: 'statestore_site_bridge_unexported_keys{reason="name"} 2' in figures(here))
    told = [text for text in caplog.messages if "does not cross" in text]
    assert len(told) == 1
    assert "not UTF-8" in told[0]


@pytest.mark.ci
async def test_many_keys_at_the_start_do_not_stop_the_broker() -> None:
    """Servers and clients in one event loop. Five thousand keys are there when the sites meet; all of them cross, and
    meanwhile clients are answered.
    """
    keys = 5_000
    async with rome() as here, AsyncStateStoreClient(here.url) as at_rome:
        for start in range(0, keys, 1_000):
            await at_rome.set_many((f"line/{n}", b"x" * 20) for n in range(start, start + 1_000))
        async with oslo(here.site_url, metrics_port=0) as there, AsyncStateStoreClient(there.url) as at_oslo:
            deadline = time.monotonic() + 20
            found: list[bytes] = []
            while len(found) < keys:
                assert time.monotonic() < deadline
                await at_oslo.set("mine", b"x", timeout=2)
                found = [key async for key in at_oslo.scan("sites/rome/*")]
            assert set(found) == {b"sites/rome/line/%d" % n for n in range(keys)}
