"""How fast one connection may send. A faster one is not read for a while: its socket fills up, nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.mqtt.packets import Publish, Subscribe, Unsubscribe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from statestore_client.mqtt.packets import Packet
    from statestore_client.server.broker import BrokerLimits

__all__ = ["RateLimiter"]

#: What may come at once, in seconds of the rate.
_BURST_S: Final = 1.0

#: What makes work. Acknowledgements are the answers to what we send.
_MESSAGES: Final = frozenset((Publish, Subscribe, Unsubscribe))


class RateLimiter:
    """Two rates, of bytes and of messages; 0 for any.

    Each has a moment up to which it is used; a moment in the future is what has to be waited for.
    """

    __slots__ = ("_bytes_per_s", "_bytes_until", "_messages_per_s", "_messages_until")

    def __init__(self, bytes_per_s: int, messages_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._messages_per_s = messages_per_s
        self._bytes_until = self._messages_until = 0.0

    @classmethod
    def of(cls, limits: BrokerLimits) -> Self | None:
        """None if there is nothing to measure."""
        if limits.received_bytes_per_s or limits.received_messages_per_s:
            return cls(limits.received_bytes_per_s, limits.received_messages_per_s)
        return None

    def took_bytes(self, size: int, now: float) -> None:
        """So many bytes came. They are served whatever the rate is; what comes behind them waits."""
        if self._bytes_per_s:
            self._bytes_until = max(self._bytes_until, now - _BURST_S) + size / self._bytes_per_s

    def wait_s(self, now: float) -> float:
        """How long nothing more may be served; not above 0 for now."""
        return max(self._bytes_until, self._messages_until) - now

    def count(self, packets: Iterator[Packet], now: float) -> Iterator[Packet]:
        """The packets, up to the one after which the rate of messages is used up."""
        for packet in packets:
            if self._messages_per_s and type(packet) in _MESSAGES:
                self._messages_until = max(self._messages_until, now - _BURST_S) + 1 / self._messages_per_s
                yield packet
                if self._messages_until > now:
                    return
            else:
                yield packet
