"""Sites in a thread, clients of both shells that are called alike, and something that only pretends to be a site."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any, Final, Self, TypeVar

import attrs
import zmq

from statestore_client.kvstore import INFINITE_TTL_MS, AsyncSiteClient, SiteClient, Value
from statestore_client.server.runtime.settings import SiteEndpoints
from statestore_client.server.runtime.sites import SitePeering
from statestore_client.wire.kvstore.codec import decode
from support.ports import reserved_port

__all__ = ["SHELLS", "Blocking", "Impostor", "Looped", "SiteThread"]

T = TypeVar("T")


class SiteThread:
    """A site in an event loop of its own, which can die and come back at its address."""

    def __init__(
        self, name: str = "bonn", *peers: str, areas: tuple[str, ...] = ("default",), keys: Path | None = None
    ) -> None:
        self.url = f"tcp://127.0.0.1:{reserved_port()}"
        self._endpoints = SiteEndpoints(name=name, listen=self.url, peers=peers, areas=areas, curve_keys=keys)
        self.start()

    def start(self, **more: Any) -> None:
        """With an empty store, and other areas or peers if wanted."""
        self._endpoints = attrs.evolve(self._endpoints, **more)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.peering = self.call(lambda: SitePeering.of(self._endpoints, Random(), time.time_ns() // 1_000_000))

    def call(self, what: Callable[[], T]) -> T:
        """In the site's event loop."""

        async def do() -> T:
            return what()

        return self.begin(do()).result(20)

    def begin(self, what: Coroutine[Any, Any, T]) -> Future[T]:
        """In the site's event loop, without waiting for its end."""
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def set_many(self, values: dict[str, bytes]) -> None:
        """As another client of the site."""

        def do() -> None:
            area = self.peering.site.replicas["default"].contents
            now = time.monotonic()
            area.set({key: Value(1, "bonn", value, INFINITE_TTL_MS) for key, value in values.items()}, now)
            self.peering.changed()

        self.call(do)

    def stop(self) -> None:
        """At once."""
        if self._thread.is_alive():
            self.call(self.peering.close)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(20)
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Blocking:
    """The blocking client as it is."""

    kind = SiteClient

    def __init__(self, url: str, **more: Any) -> None:
        self.client = SiteClient(url, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class Looped:
    """The asyncio client, whose coroutines are run one by one."""

    kind = AsyncSiteClient

    def __init__(self, url: str, **more: Any) -> None:
        self.runner = asyncio.Runner()
        self.client = AsyncSiteClient(url, **more)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: self.runner.run(getattr(self.client, name)(*args, **more))

    def close(self) -> None:
        self.runner.run(self.client.close())


class Impostor:
    """Something that listens where a site should be, and answers with what it is told to. With None it ends all
    connections, and takes new ones."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self.url = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self.answer: Callable[[int], list[bytes] | None] = lambda _number: []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            if self._router.poll(20):
                route, data = self._router.recv_multipart()
                request: Any = decode(data)
                frames = self.answer(request.id)
                if frames is None:
                    self._begin_anew()
                for frame in frames or ():
                    self._router.send_multipart([route, frame])

    def _begin_anew(self) -> None:
        self._router.close(linger=0)
        self._router = self._context.socket(zmq.ROUTER)
        while True:
            try:
                self._router.bind(self.url)
            except zmq.ZMQError:  # libzmq closes the other one in a thread of its own
                time.sleep(0.01)
            else:
                return

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._context.destroy(linger=0)


SHELLS: Final = (Blocking, Looped)
