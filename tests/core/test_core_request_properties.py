"""The user properties of requests, and the size that they are reckoned to have."""

from __future__ import annotations

import pytest

from statestore_client.core.request_properties import RequestProperties
from statestore_client.mqtt.publish_frames import PublishFrames
from statestore_client.wire.commands import Command, Get, Set, encode_payload
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import OutgoingMessage, whole

VERSION = HlcTimestamp(1_696_374_425_000, 0, "me")
TOKEN = HlcTimestamp(1_696_374_425_001, 2, "other")
#: State store protocol, "Versioning and hybrid logical clocks" and "Lock and fencing tokens".
TS = ("__ts", "001696374425000:00000:me")
FT = ("__ft", "001696374425001:00002:other")


def test_a_request_has_a_version_and_what_else_it_asks_for() -> None:
    """A request has ``__ts``, ``__ft`` if it has a fencing token, and a SET that is to survive has its mark."""
    properties = RequestProperties("me", "me")
    assert properties.of(Get(b"k"), VERSION, None)[0] == (TS,)
    assert properties.of(Get(b"k"), VERSION, TOKEN)[0] == (FT, TS)
    assert properties.of(Set(b"k", b"v", persist=True), VERSION, TOKEN)[0] == (FT, TS, ("aio-persistence", "true"))
    assert properties.of(Set(b"k", b"v"), VERSION, VERSION)[0] == (("__ft", TS[1]), TS)


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("command", [Get(b"k"), Set(b"k" * 300, b"v" * 20_000, persist=True)])
@pytest.mark.parametrize("client_id", ["me", "Größe/10 µm"])
def test_the_size_is_that_of_the_packet(client_id: str, command: Command, token: HlcTimestamp | None) -> None:
    """The told size of a request is right to 5 bytes, for lengths of variable size and the digits of a version."""
    properties = RequestProperties(client_id, client_id)
    version = HlcTimestamp(1_696_374_425_000, 0, client_id)
    pairs, size = properties.of(command, version, token)
    payload = encode_payload(command)
    message = OutgoingMessage(properties.envelope, payload, bytes(16), 10, pairs)
    outbox: list[bytes] = []
    assert PublishFrames(alias_maximum=0, maximum_size=268_435_460).put(message, outbox, 1)
    assert abs(size + len(whole(payload)) - sum(map(len, outbox))) <= 5
