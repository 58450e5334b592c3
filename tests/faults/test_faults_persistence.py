"""kill -9 in each mode of persistence: what was kept and answered is there, and no older value comes back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from killed_server import Server
from support.waiting import eventually

from statestore_client import (
    AsyncStateStoreClient,
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    HlcTimestamp,
    RequestTimeoutError,
    StateStoreClient,
)
from statestore_client.server import EmbeddedServer
from statestore_client.server.journal import WriteBatch
from statestore_client.server.runtime.storage.files import Log
from statestore_client.server.runtime.storage.inspection import check


class StoppedDisk:
    """Holds up what is written to any log."""

    def __init__(self) -> None:
        self._may_write = threading.Event()
        self._may_write.set()
        self.stop, self.go_on = self._may_write.clear, self._may_write.set
        self.holds_up = False  # something

    def wait(self) -> None:
        self.holds_up = not self._may_write.is_set()
        assert self._may_write.wait(60)


@pytest.fixture
def stopped_disk(monkeypatch: pytest.MonkeyPatch) -> StoppedDisk:
    disk, append = StoppedDisk(), Log.append

    def slow(log: Log, batch: WriteBatch) -> None:
        disk.wait()
        append(log, batch)

    monkeypatch.setattr(Log, "append", slow)
    return disk


#: What clients write, and whether they mark it.
_WRITES = [("plant/1", False), ("plant/2", True), ("line/1", False), ("line/2", True)]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ((), {"plant/1", "plant/2", "line/1", "line/2"}),
        (("all",), {"plant/1", "plant/2", "line/1", "line/2"}),
        (("asked",), {"plant/2", "line/2"}),
        (("none",), set()),
        (("plant/*",), {"plant/1", "plant/2"}),
        (("asked", "plant/*"), {"plant/1", "plant/2", "line/2"}),
    ],
)
async def test_a_killed_server_has_what_its_mode_keeps(tmp_path: Path, words: tuple[str, ...], kept: set[str]) -> None:
    """After kill -9 in each of three lives, ``serve --data DIR --persist …`` has what its mode keeps, and no older
    value."""
    server = Server(tmp_path / "data", *(part for word in words for part in ("--persist", word)))
    version: HlcTimestamp | None = None
    try:
        for life in range(3):
            await server.start()
            async with AsyncStateStoreClient(f"mqtt://127.0.0.1:{server.port}") as store:
                if life:
                    found = {key: await store.get(key) for key, _ in _WRITES}
                    assert {key: item.value for key, item in found.items() if item is not None} == dict.fromkeys(
                        kept, b"new %d" % (life - 1)
                    )
                    assert await store.get("deleted") is None
                    with pytest.raises(FencingTokenTooOldError):
                        await store.set("fenced", b"", fencing_token=HlcTimestamp(1, 0, "a"))
                    with pytest.raises(FencingTokenRequiredError):
                        await store.set("fenced", b"", persist=True)
                for key, persist in _WRITES:
                    await store.set(key, b"old", persist=not persist)
                    done = await store.set(key, b"new %d" % life, persist=persist)
                    assert version is None or (done.version is not None and done.version > version)
                    version = done.version
                await store.set("fenced", b"1", fencing_token=HlcTimestamp(2 + life, 0, "a"))
                await store.set("deleted", b"1", persist=True)
                await store.delete("deleted")
                await server.kill()
    finally:
        await server.kill()
    assert check(tmp_path / "data").problem is None


def test_what_nobody_keeps_does_not_wait_for_the_disk(tmp_path: Path, stopped_disk: StoppedDisk) -> None:
    """With the disk stopped, unmarked values are set, read, notified of and deleted, and a marked one waits."""
    with EmbeddedServer(data=tmp_path, persist="asked") as server, StateStoreClient(server.url) as store:
        store.set("warm", b"1")  # which writes room for versions
        with store.watch("k") as events:
            stopped_disk.stop()
            for number in range(20):
                store.set("k", b"%d" % number, timeout=5)
                assert events.get(timeout=5).value == b"%d" % number
            # Answers are written down, which nobody waits for: now that is under way, too, and holds nobody up.
            eventually(lambda: stopped_disk.holds_up, "a batch is on its way")
            store.set("k", b"again", timeout=5)
            assert events.get(timeout=5).value == b"again"
            assert store.get("k", timeout=5) is not None
            assert store.delete("k", timeout=5).count == 1
            with pytest.raises(RequestTimeoutError):
                store.set("k", b"kept", persist=True, timeout=0.3)
            with pytest.raises(RequestTimeoutError):
                store.get("k", timeout=0.3)  # it would tell what is not on the disk yet
            stopped_disk.go_on()
            eventually(lambda: store.get("k") is not None, "the disk works again")
