"""kill -9 at any moment, under load: what was acknowledged is there afterwards, in order, and QoS 2 exactly once.

``STATESTORE_KILLS`` says how often; 500 take some minutes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path
from random import Random

import pytest
from killed_server import Publisher, Retainer, Server, Subscriber, Writer, retained

from statestore_client.wire.hlc import HlcTimestamp

_KILLS = int(os.environ.get("STATESTORE_KILLS", "25"))
_SEED = int(os.environ.get("STATESTORE_SEED", "20240229"))


class _Audit:
    """All peers, and what must hold after every restart."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.subscriber = Subscriber("subscriber")
        self.once, self.twice = Publisher("one", 1), Publisher("two", 2)
        self.retainer, self.writer = Retainer("retainer", 1), Writer("writer")
        self.senders = (self.once, self.twice, self.retainer, self.writer)
        self._answers_seen = 0

    async def meet(self) -> None:
        await self.subscriber.meet(self.server)
        if self.subscriber.is_new:
            await self.subscriber.changed.wait()
        for sender in self.senders:
            await sender.meet(self.server)

    async def part(self) -> None:
        for peer in (self.subscriber, *self.senders):
            await peer.part()

    def load(self, *, goes_on: bool) -> None:
        for sender in self.senders:
            sender.goes_on = goes_on
            if goes_on:
                sender.fill()

    async def check(self, random: Random) -> None:
        """Everything that was acknowledged so far."""
        subscriber = self.subscriber
        subscriber.wanted = {f"q/{sender.name}": set(sender.acknowledged) for sender in (self.once, self.twice)}
        await subscriber.until("has_all")
        numbers = list(dict.fromkeys(subscriber.taken.get("q/one", ())))
        assert numbers == list(range(len(numbers))), "QoS 1 lost its order"
        numbers = subscriber.taken.get("q/two", [])
        assert numbers == list(range(len(numbers))), "QoS 2 is not exactly once, in order"
        await self._check_retained()
        await self._check_keys(random)

    async def _check_retained(self) -> None:
        found = await retained(self.server)
        for number in self.retainer.acknowledged:
            assert found[f"r/{number % Retainer.TOPICS}"] >= number
        assert all(number < self.retainer.sent for number in found.values())

    async def _check_keys(self, random: Random) -> None:
        writer = self.writer
        await writer.until("has_answers")
        numbers = range(self._answers_seen, writer.sent)
        for number in numbers:
            assert writer.answers[number][0] == (b":1\r\n" if number % 5 == 4 else b"+OK\r\n"), number
        versions = [HlcTimestamp.parse(writer.answers[number][1]) for number in range(writer.sent)]
        assert all(a < b for a, b in itertools.pairwise(versions)), "a version went back"
        self._answers_seen = writer.sent
        for number in {*numbers[-3:], *random.sample(range(writer.sent), min(5, writer.sent))}:
            await self._check_key(number)

    async def _check_key(self, number: int) -> None:
        value, version = await self.writer.get(number)
        if number % 5 == 4 or (number % 5 == 0 and number + 4 < self.writer.sent):
            assert value == b"$-1\r\n"
        else:
            text = b"%d" % number
            assert (value, version) == (b"$%d\r\n%s\r\n" % (len(text), text), self.writer.answers[number][1])


@pytest.mark.timeout(120 + 4 * _KILLS)
async def test_kill_at_any_moment(tmp_path: Path) -> None:
    """Each acknowledged QoS 1 and 2 message, retained message and key survives every kill, and no version goes back."""
    random = Random(_SEED)
    server = Server(tmp_path / "data")
    audit = _Audit(server)
    try:
        await _kill_and_check(audit, server, random)
    finally:
        await server.kill()
        await audit.part()
    counts = [len(sender.acknowledged) for sender in audit.senders]
    sys.stdout.write(f"{_KILLS} kills; acknowledged (QoS 1, QoS 2, retained, keys): {counts}\n")
    assert all(count > _KILLS for count in counts), counts


async def _kill_and_check(audit: _Audit, server: Server, random: Random) -> None:
    for _ in range(_KILLS):
        if random.random() < 0.1:
            await server.begin()
            await asyncio.sleep(random.uniform(0.0, 0.5))  # killed while it starts
            await server.kill()
        await server.start()
        await audit.meet()
        await audit.check(random)
        audit.load(goes_on=True)
        await asyncio.sleep(random.uniform(0.0, 0.1))
        audit.load(goes_on=False)
        await server.kill()
        await audit.part()
    await server.start()
    await audit.meet()
    for sender in audit.senders:
        await sender.until("is_idle")
    await audit.check(random)
