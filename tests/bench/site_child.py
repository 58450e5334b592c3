"""One site of bench_sites.py in a process of its own: ``site_child.py NAME``; commands come in, answers go out.

It is what ``statestore serve --site`` runs: broker, state store and site in one event loop. What takes time in that
loop is noted: each of its turns, each turn of the site, and each kind of step in it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar, Final

from measure import percentile

from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.area_store import slices
from statestore_client.server.kvstore.replica import Replica
from statestore_client.server.kvstore.site import Site
from statestore_client.server.runtime.process import short_pauses
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import DEFAULT_AREA, Endpoints, ServerSettings, SiteEndpoints
from statestore_client.server.runtime.sites import SitePeering
from statestore_client.wire.kvstore import codec
from statestore_client.wire.kvstore.value import Value

VALUE_BYTES: Final = 100
#: Shorter turns are not counted as such: they only look whether there is something to do.
_LEAST_S: Final = 50e-6


def _no_seconds() -> array[float]:
    """Not a list: the garbage collector would look at each of them."""
    return array("d")


class Stopwatch:
    """The thread's processor time from a moment on, without that of garbage collections and with it."""

    collected: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self._began = time.thread_time()
        self._collected_before = self.collected

    def read(self) -> tuple[float, float]:
        """Seconds."""
        took = time.thread_time() - self._began
        return took - (self.collected - self._collected_before), took


class Steps:
    """Seconds of the processor, by kind of step. Garbage collections, wherever they fall, are a kind of their own."""

    def __init__(self) -> None:
        self._taken: dict[str, array[float]] = defaultdict(_no_seconds)
        #: Of each kind the longest one, with the collections that fell into it.
        self._longest: dict[str, float] = defaultdict(float)
        self._pause_began = 0.0
        gc.callbacks.append(self._collecting)

    def note(self, kind: str, watch: Stopwatch) -> None:
        """A step of this kind has ended."""
        worked, took = watch.read()
        self._taken[kind].append(worked)
        self._longest[kind] = max(self._longest[kind], took)

    def timed(self, owner: Any, name: str, kind: Callable[..., str]) -> None:
        """Note how long a method or function takes from now on."""
        inner = getattr(owner, name)

        def outer(*arguments: Any, **named: Any) -> Any:
            watch = Stopwatch()
            try:
                return inner(*arguments, **named)
            finally:
                self.note(kind(*arguments), watch)

        setattr(owner, name, outer)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._pause_began = time.thread_time()
            return
        took = time.thread_time() - self._pause_began
        Stopwatch.collected += took
        kind = f"garbage, generation {info['generation']}"
        self._taken[kind].append(took)
        self._longest[kind] = max(self._longest[kind], took)

    def figures(self) -> dict[str, tuple[int, float, float, float]]:
        """How many, 99th percentile, longest, and longest with collections in it, in ms, since the last call."""
        taken, self._taken = self._taken, defaultdict(_no_seconds)
        longest, self._longest = self._longest, defaultdict(float)
        return {
            kind: (len(long), percentile(long, 99) * 1e3, max(long) * 1e3, longest[kind] * 1e3)
            for kind, every in taken.items()
            if (long := [seconds for seconds in every if seconds >= _LEAST_S])
        }


class TimedLoop(asyncio.SelectorEventLoop):
    """Notes how long it is busy between two looks at its sockets."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        select = self._selector.select  # type: ignore[attr-defined]
        began: list[Stopwatch] = []

        def looked(timeout: float | None = None) -> Any:
            if began:
                steps.note("a turn of the loop", began.pop())
            found = select(timeout)
            began.append(Stopwatch())
            return found

        self._selector.select = looked  # type: ignore[attr-defined]


def _say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


def _observe(steps: Steps) -> None:
    """Before the first site is made."""
    message: list[str] = [""]
    decode = codec.decode

    def decoded(data: bytes) -> Any:
        found = decode(data)
        message[0] = type(found).__name__
        return found

    sys.modules[Site.__module__].__dict__["decode"] = decoded
    steps.timed(SitePeering, "_turn", lambda *_: "a turn of the site")
    steps.timed(Site, "receive", lambda *_: f"receive {message[0]}")
    steps.timed(Site, "tick", lambda *_: "tick")
    steps.timed(SitePeering, "_carry", lambda *_: "send")
    _tell(Replica, "_done", "done")
    _tell(Replica, "remove", "alone")


def _tell(owner: Any, name: str, what: str) -> None:
    """Say from now on when it has happened."""
    inner = getattr(owner, name)

    def outer(*arguments: Any, **named: Any) -> None:
        inner(*arguments, **named)
        _say(**{what: time.monotonic()})

    setattr(owner, name, outer)


class Child:
    """A server, and what it is told to do with its site."""

    def __init__(self, server: Server, name: str, steps: Steps) -> None:
        assert server.site is not None
        self._peering = server.site
        self._name = name
        self._steps = steps
        self._replica = server.site.site.replicas[DEFAULT_AREA]
        self._area: Area = self._replica.contents

    async def change(self, first: int, step: int, end: int, version: int) -> None:
        """Set keys, with pauses."""
        entries = {
            f"adj:node-{number:07d}": Value(version, self._name, b"%0*d" % (VALUE_BYTES, number + version))
            for number in range(first, end, step)
        }
        for piece in slices(entries):
            self._area.set(piece, time.monotonic())
            self._peering.changed()
            await asyncio.sleep(0)

    async def run(self, what: str, *arguments: Any) -> object:
        """One command."""
        match what:
            case "change":
                await self.change(*arguments)
            case "dial":
                self._peering.add_peer(*arguments)
            case "hang up":
                self._peering.remove_peer(*arguments)
            case "sum":
                return self._replica.sums.total
            case "figures":
                return self._steps.figures()
        return None


async def serve(name: str, steps: Steps) -> None:
    """Until there are no more commands."""
    loop = asyncio.get_running_loop()
    site = SiteEndpoints(name=name, listen="tcp://127.0.0.1:*")
    server = Server(ServerSettings(endpoints=Endpoints(host="127.0.0.1", port=0), site=site))
    await server.start()
    with short_pauses(loop):
        assert server.site is not None
        child = Child(server, name, steps)
        _say(url=server.urls[0], site=server.site.url)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            _say(answer=await child.run(*json.loads(line)))
    await server.stop()


def main() -> None:
    steps = Steps()
    _observe(steps)
    with asyncio.Runner(loop_factory=lambda: TimedLoop(steps)) as runner:
        runner.run(serve(sys.argv[1], steps))


if __name__ == "__main__":
    main()
