"""A WebSocket listener in front of a broker's TCP port, by the ``websockets`` library's own server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from http import HTTPStatus
from types import TracebackType
from typing import Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

__all__ = ["Bridge"]


class Bridge:
    """``async with Bridge(server.port) as bridge`` and connect to ``bridge.url``.

    ``frame_bytes``: how many bytes of the broker's stream go into a frame; None leaves them as they come.
    ``status``: refuse the handshake with this HTTP status.
    """

    def __init__(
        self,
        target_port: int,
        *,
        tls: ssl.SSLContext | None = None,
        frame_bytes: int | None = None,
        status: HTTPStatus | None = None,
    ) -> None:
        self.target_port = target_port
        self.paths: list[str] = []
        self.frames_up = 0
        self.connections: set[ServerConnection] = set()
        self._tls = tls
        self._frame_bytes = frame_bytes
        self._status = status
        self._server: Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"ws{'s' if self._tls else ''}://127.0.0.1:{self._port}/mqtt"

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            ssl=self._tls,
            subprotocols=[Subprotocol("mqtt")],
            process_request=self._request,
            ping_interval=None,
            max_size=None,
            close_timeout=1,
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        self.paths.append(request.path)
        return None if self._status is None else connection.respond(self._status, "no\n")

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.subprotocol == "mqtt"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        self.connections.add(connection)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up(connection, writer))
                group.create_task(self._down(connection, reader))
        except* (OSError, ConnectionClosed):
            pass
        finally:
            self.connections.discard(connection)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _up(self, connection: ServerConnection, writer: asyncio.StreamWriter) -> None:
        async for data in connection:
            assert isinstance(data, bytes), "MQTT is carried in binary frames"
            self.frames_up += 1
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("the client is gone")

    async def _down(self, connection: ServerConnection, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65536):
            size = self._frame_bytes or len(data)
            for start in range(0, len(data), size):
                await connection.send(data[start : start + size])
        raise ConnectionResetError("the broker is gone")
