"""Clients under load, and what must hold after every restart or failover: what was acknowledged is there, in order, and
QoS 2 exactly once.
"""

from __future__ import annotations

import itertools
from random import Random

from killed_server import Address, Publisher, Retainer, Subscriber, Writer, retained

from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["BrokerAudit"]


class BrokerAudit:
    """All peers, and what must hold after every restart."""

    def __init__(self, server: Address) -> None:
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
