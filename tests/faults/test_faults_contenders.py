"""Five processes contend for one lock while holders are killed and stopped, links fail, and the server is restarted.

The server writes down what took effect, in order; that is judged at the end. It takes 15 seconds in CI, and a
minute in the long run.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import attrs
import pytest
from support.proxy import Proxy
from support.schedules import SEED, scaled

from statestore_client.wire.hlc import HlcTimestamp

pytestmark = pytest.mark.scaled

_SECONDS = float(scaled(15, 60))
_CONTENDERS = 5
_LEASE_S = 1.0
_HERE = Path(__file__).parent


async def _spawn(program: str, *arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(_HERE / program),
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


# -- those who take part -----------------------------------------------------------------------------------------------


class _Server:
    """The server as a process of its own; each of its lives has a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.logs: list[Path] = []
        self.port = 0
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        log = self._folder / f"server-{len(self.logs)}.log"
        self.logs.append(log)
        self._process = await _spawn("audited_server.py", self.port, log)
        assert self._process.stdout is not None
        self.port = int(await asyncio.wait_for(self._process.stdout.readline(), 20))

    async def kill(self) -> None:
        assert self._process is not None
        await _kill(self._process)


class _Contender:
    """A process that contends, its link to the server, and what it told."""

    def __init__(self, number: int, server: _Server, on_acquired: Callable[[_Contender], None]) -> None:
        self.name = f"contender-{number}"
        self.proxy = Proxy(server.port)
        self.words: Counter[str] = Counter()
        self.events: list[tuple[float, str]] = []
        self.shell = "aio" if number % 2 else "sync"
        self._on_acquired = on_acquired
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._process = await _spawn("contender.py", self.shell, self.proxy.url, self.name, _LEASE_S)
        self._reader = asyncio.ensure_future(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            moment, word, what = line.decode().rstrip("\n").split(" ", 2)
            self.words[f"failed: {what}" if word == "failed" else word] += 1
            self.events.append((float(moment), word))
            if word == "acquired":
                self._on_acquired(self)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def kill(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        await _kill(self._process)
        await self._reader


@attrs.define(eq=False)
class _Arena:
    """All of them, and what goes wrong."""

    server: _Server
    random: Random
    contenders: list[_Contender] = attrs.Factory(list)
    faults: Counter[str] = attrs.Factory(Counter)
    crashes: list[float] = attrs.Factory(list)  # moments at which a holder was killed
    _acquired: asyncio.Queue[_Contender] = attrs.Factory(asyncio.Queue)

    async def start(self, stack: AsyncExitStack) -> None:
        await self.server.start()
        stack.push_async_callback(self.server.kill)
        for number in range(_CONTENDERS):
            contender = _Contender(number, self.server, self._acquired.put_nowait)
            await stack.enter_async_context(contender.proxy)
            await contender.start()
            stack.push_async_callback(contender.kill)
            self.contenders.append(contender)

    async def next_holder(self) -> _Contender:
        """The next contender that acquires the lock, a moment after it did."""
        while not self._acquired.empty():
            self._acquired.get_nowait()
        try:
            return await asyncio.wait_for(self._acquired.get(), 20)
        except TimeoutError:
            pytest.fail(f"nobody acquires the lock any longer\n{self._describe()}")

    def _describe(self) -> str:
        """What the server and the contenders did last."""
        lines = [f"faults {dict(self.faults)}, now {time.monotonic():.6f}"]
        lines += self.server.logs[-1].read_text().splitlines()[-12:]
        lines += [f"{c.name} ({c.shell}): {c.events[-4:]}" for c in self.contenders]
        return "\n".join(lines)

    async def fail(self, kind: str) -> None:
        """Let one thing go wrong, and come right again."""
        faults: dict[str, Callable[[_Contender], Awaitable[None]]] = {
            "killed": self._kill,
            "stopped": self._stop,
            "cut": self._cut,
            "delayed": self._delay,
            "black hole": self._black_hole,
            "server restarted": self._restart,
        }
        self.faults[kind] += 1
        await faults[kind](await self.next_holder())

    async def _kill(self, holder: _Contender) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 0.01))
        self.crashes.append(time.monotonic())
        await holder.kill()
        await self.next_holder()
        await holder.start()

    async def _stop(self, holder: _Contender) -> None:
        holder.signal(signal.SIGSTOP)
        await asyncio.sleep(self.random.uniform(0.2, 2.5 * _LEASE_S))
        holder.signal(signal.SIGCONT)

    async def _cut(self, holder: _Contender) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 0.02))
        holder.proxy.cut()

    async def _delay(self, holder: _Contender) -> None:
        holder.proxy.delay_s = self.random.uniform(0.02, 0.3)
        await asyncio.sleep(_LEASE_S)
        holder.proxy.delay_s = 0.0

    async def _black_hole(self, holder: _Contender) -> None:
        ways = self.random.choice((("up", "down"), ("up",), ("down",)))
        holder.proxy.hold(*ways)
        await asyncio.sleep(self.random.uniform(0.2, 2.5 * _LEASE_S))
        if self.random.random() < 0.5:
            holder.proxy.cut()
        holder.proxy.flow(*ways)

    async def _restart(self, _holder: _Contender) -> None:
        await self.server.kill()
        await asyncio.sleep(self.random.uniform(0.0, 0.3))
        await self.server.start()


# -- what the server wrote down ----------------------------------------------------------------------------------------


@attrs.frozen
class _Line:
    moment: float
    kind: str
    key: str
    client: str
    version: HlcTimestamp | None
    token: HlcTimestamp | None

    @classmethod
    def parse(cls, line: str) -> _Line:
        moment, kind, key, client, version, token = line.split()
        stamps = [None if text in ("-", "None") else HlcTimestamp.parse(text) for text in (version, token)]
        return cls(float(moment), kind, key, client, *stamps)


def _read_logs(logs: list[Path]) -> list[list[_Line]]:
    """The lines of each life of the server; the last one of a life may be torn."""
    return [[_Line.parse(line) for line in log.read_text().splitlines() if len(line.split()) == 6] for log in logs]


@attrs.define(eq=False)
class _Verdict:
    """What the logs say. ``overlaps``: writes under an older token after one under a newer token."""

    grants: list[_Line] = attrs.Factory(list)
    writes: int = 0
    refused: int = 0
    late: int = 0  # under the token of a former holder, before the new one has written anything
    overlaps: list[_Line] = attrs.Factory(list)

    def judge(self, life: list[_Line]) -> None:
        """One life of the server: with it, the marks of the fences are gone."""
        holder, until, granted, newest = "", 0.0, None, None
        for line in life:
            if line.key == "job" and line.kind == "Set":
                if holder != line.client or line.moment > until:
                    self.grants.append(line)
                    granted = line.version
                holder, until = line.client, line.moment + _LEASE_S
            elif line.key == "job":
                holder = ""
            elif line.kind == "refused":
                self.refused += 1
            elif line.token is not None:
                self.writes += 1
                if newest is not None and line.token < newest:
                    self.overlaps.append(line)
                self.late += granted is not None and line.token < granted
                newest = line.token


def _hand_overs(contenders: list[_Contender]) -> list[float]:
    """Seconds from the call of release() to the return of the next acquire()."""
    events = sorted(event for contender in contenders for event in contender.events)
    events = [event for event in events if event[1] in ("acquired", "releasing")]
    return [b[0] - a[0] for a, b in itertools.pairwise(events) if (a[1], b[1]) == ("releasing", "acquired")]


def _successions(crashes: list[float], grants: list[_Line]) -> list[float]:
    """Seconds from the death of a holder to the next grant."""
    moments = [grant.moment for grant in grants]
    return [next(moment for moment in moments if moment > crash) - crash for crash in crashes]


def test_the_verdict_tells_an_overlap_from_a_late_write() -> None:
    """The checker counts a former holder's write as an overlap only once the new holder has written."""
    lines = (
        "1.0 Set job a 1:0:s -",
        "1.1 Set state a 2:0:s 1:0:s",
        "2.1 Set job b 3:0:s -",
        "2.2 Set state a 4:0:s 1:0:s",
        "2.3 Set state b 5:0:s 3:0:s",
        "2.4 refused state a None 1:0:s",
        "2.5 Set state a 6:0:s 1:0:s",
    )
    verdict = _Verdict()
    verdict.judge([_Line.parse(line) for line in lines])
    assert [grant.client for grant in verdict.grants] == ["a", "b"]
    assert [line.moment for line in verdict.overlaps] == [2.5]
    assert (verdict.writes, verdict.late, verdict.refused) == (4, 2, 1)


@pytest.mark.slow
@pytest.mark.timeout(int(_SECONDS) + 120)
async def test_five_contenders(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """With five contenders no guarded write overlaps another holder's, tokens grow, and hand-overs come in time."""
    arena = _Arena(_Server(tmp_path), Random(SEED))
    async with AsyncExitStack() as stack:
        await arena.start(stack)
        await arena.next_holder()
        ends = time.monotonic() + _SECONDS
        kinds = itertools.cycle(("killed", "stopped", "cut", "black hole", "delayed", "killed", "server restarted"))
        while time.monotonic() < ends:
            await arena.fail(next(kinds))
            for _ in range(8):  # in between, it goes from hand to hand
                await arena.next_holder()
    verdict = _Verdict()
    for life in _read_logs(arena.server.logs):
        verdict.judge(life)
    tokens = [grant.version for grant in verdict.grants if grant.version is not None]
    hand_overs = _hand_overs(arena.contenders)
    successions = _successions(arena.crashes, verdict.grants)
    words = sum((contender.words for contender in arena.contenders), Counter[str]())
    figures(
        f"{_CONTENDERS} contenders, {_SECONDS:g} s, seed {SEED}: {len(tokens)} grants, {verdict.writes} guarded "
        f"writes, {len(verdict.overlaps)} overlaps, {verdict.refused} refused by the fence, {verdict.late} late "
        f"but harmless; hand-over after release: median {statistics.median(hand_overs) * 1000:.1f} ms of "
        f"{len(hand_overs)}; after a crash: at most {max(successions):.2f} s of {len(successions)} "
        f"(lease {_LEASE_S:g} s); faults {dict(arena.faults)}; {dict(words)}"
    )
    assert verdict.overlaps == []
    assert tokens == sorted(set(tokens))
    assert statistics.median(hand_overs) < 0.05
    assert max(successions) < _LEASE_S + 1.0
