"""Bytes pass the place where faults strike unchanged, as long as none does."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from statestore_client.mqtt.packets import Connect, Pingreq, Publish, PublishProperties, Subscribe, Subscription, encode
from statestore_client.server.testing.fault_injector import FaultInjection, _Injector
from statestore_client.server.testing.fault_requests import FaultRequests
from statestore_client.server.testing.faults import Faults
from statestore_client.server.testing.virtual_clock import VirtualClock

PACKETS = [
    Pingreq(),
    Publish("t", b"x" * 200, 1, packet_id=1),
    Publish("t", b"", properties=PublishProperties(topic_alias=1, user_properties=(("fault:delay", "no"),))),
    Publish("", b"y", properties=PublishProperties(topic_alias=1)),
    Publish("", b"y", properties=PublishProperties(topic_alias=9)),  # of no topic: a mistake that is not ours to find
    Subscribe(1, (Subscription("a/+"),)),
]


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


@given(
    st.lists(st.sampled_from(PACKETS) | st.binary(max_size=12), max_size=12),
    st.lists(st.integers(1, 60), max_size=30),
    st.sampled_from([4, 5]),
)
def test_everything_passes(stream: list[Any], cuts: list[int], version: int) -> None:
    """Without a fault all bytes pass both ways unchanged in pieces of any size; a beginning of a packet waits for its
    end."""
    data = encode(Connect("c", version=version)) + b"".join(
        item if isinstance(item, bytes) else encode(item, version)
        for item in stream
        if version == 5 or isinstance(item, (bytes, Pingreq))
    )
    pipe: Any = Pipe()
    delivered = Pipe()
    injector = _Injector(pipe, delivered.write, FaultInjection(Faults(), FaultRequests(), VirtualClock()))
    for direction, end in ((injector.from_client, delivered), (injector.to_client, pipe)):
        rest = data
        for cut in cuts:
            direction.feed(rest[:cut])
            rest = rest[cut:]
        direction.feed(rest)
        passed = b"".join(end.written)
        assert passed + direction._unfinished == data
