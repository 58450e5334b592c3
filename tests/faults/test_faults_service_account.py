"""Service account tokens: what the native drivers say to a listener that plays the broker, byte by byte."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.shells import Shell

from statestore_client import SettingsError, StateStoreError
from statestore_client.mqtt import native as native_driver
from statestore_client.server import EmbeddedServer

#: Authentication Method (0x15) "K8S-SAT" (MQTT 5.0, 3.1.2.11.9).
METHOD = b"\x15\x00\x07K8S-SAT"
#: CONNACK with success and the method, which has to be there (MQTT 5.0, 4.12).
CONNACK = b"\x20\x0d\x00\x00\x0a" + METHOD


@pytest.fixture(params=["sync", "aio"])
def native(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> Shell:
    """Only the native driver knows enhanced authentication."""
    return Shell(request.param, "native", executor)


async def test_the_token_is_presented_and_presented_again(
    native: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CONNECT carries method and token, and when the file has changed, AUTH 0x19 carries the new token once."""
    monkeypatch.setattr(native_driver, "LOOK_EVERY_S", 0.02)
    file = tmp_path / "token"
    file.write_text("first\n")
    heard = bytearray()
    more = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            if not heard:
                writer.write(CONNACK)
            heard.extend(data)
            more.set()
        writer.close()

    async def until(data: bytes) -> None:
        while data not in heard:
            more.clear()
            await asyncio.wait_for(more.wait(), 5)

    server = await asyncio.start_server(play, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = native.client(f"mqtt://127.0.0.1:{port}", sat_file=str(file))
    opening = asyncio.ensure_future(store.open())
    await until(METHOD + b"\x16\x00\x05first")
    assert heard[0] == 0x10
    file.write_text("")  # being replaced
    await asyncio.sleep(0.1)  # some looks at it, which must not be told
    assert b"\xf0" not in heard
    file.write_text("second")
    await until(b"\xf0\x15\x19\x13" + METHOD + b"\x16\x00\x06second")
    await asyncio.sleep(0.1)
    assert heard.count(b"second") == 1
    await store.close()
    with pytest.raises(StateStoreError):
        await opening
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("content", [None, " \n"])
async def test_a_file_without_a_token_is_named(
    native: Shell, server: EmbeddedServer, tmp_path: Path, content: str | None
) -> None:
    """A file without a token is noticed at each connect; the error names it and ends the client."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match="sat_file"):
        await native.client(server.url, sat_file=str(file)).open()
