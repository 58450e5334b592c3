"""What a client asks about keys: time limits and tokens as users write them, batches that fail in part, listings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import cast

from statestore_client.aio.engine import Engine
from statestore_client.core import arguments
from statestore_client.core.arguments import DEFAULT_TIMEOUT, FencedCommand, Timeout, Token
from statestore_client.core.results import KeyPage
from statestore_client.errors import StateStoreError
from statestore_client.wire.commands import Command

__all__ = ["KeyRequests"]


class KeyRequests:
    """The requests of one client.

    :param request_timeout: seconds, where a call names none.
    """

    def __init__(self, engine: Engine, request_timeout: float | None) -> None:
        self._engine = engine
        self._request_timeout = request_timeout

    def seconds(self, timeout: Timeout) -> float | None:
        """A time limit; None for none."""
        return self._request_timeout if timeout is DEFAULT_TIMEOUT else arguments.check_timeout(timeout)

    async def call(self, command: Command, timeout: Timeout, token: Token | None = None) -> object:
        """The result of one command."""
        return await self._engine.call(
            command, timeout=self.seconds(timeout), fencing_token=arguments.fencing_token(token)
        )

    async def call_many(
        self,
        commands: Iterable[Command | FencedCommand | StateStoreError],
        timeout: Timeout,
        token: Token | None = None,
    ) -> list[object]:
        """The results of many, in order; :class:`BatchError` if any of them failed."""
        outcomes = await self._engine.call_many(
            commands, timeout=self.seconds(timeout), fencing_token=arguments.fencing_token(token)
        )
        arguments.raise_failures(outcomes, self._engine.store_id)
        return outcomes

    async def scan(self, pattern: bytes, timeout: float | None) -> AsyncIterator[bytes]:
        """The keys that match, page by page; ``timeout`` is for each page."""
        token: bytes | None = None
        while True:
            page = cast("KeyPage", await self.call(arguments.scan_command(pattern, token), timeout))
            for key in page.keys:
                yield key
            token = page.token
            if token is None:
                return
