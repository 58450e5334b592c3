"""A server whose clock jumps: everything that waits for a time happens when the test says so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.server_clients import Wire

from statestore_client import InvalidArgumentError, RequestClockSkewError, StateStoreClient
from statestore_client.mqtt.packets import (
    Connack,
    ConnectProperties,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    Subscription,
    Will,
    WillProperties,
)
from statestore_client.server import EmbeddedServer


def _session(seconds: int) -> ConnectProperties:
    return ConnectProperties(session_expiry=seconds)


def _leave(wire: Wire) -> None:
    wire.send(Disconnect())
    wire.rest()


def _is_there(server: EmbeddedServer, client_id: str) -> bool:
    with Wire(server) as wire:
        connack = wire.connect(client_id, clean_start=False)
        assert isinstance(connack, Connack)
        return connack.session_present


def test_keys_expire_and_their_observers_hear_of_it(server: EmbeddedServer) -> None:
    """Keys expire and observers are told when advance() passes their time, before it returns."""
    with StateStoreClient(server.url) as store, store.watch("k") as watch:
        store.set("k", "v", expiry=60)
        assert next(watch).value == b"v"
        server.clock.advance(59)
        assert store.get("k") is not None
        server.clock.advance(1)
        assert store.get("k") is None
        assert next(watch).value is None


def test_a_silent_client_is_disconnected_and_leaves_in_steps(server: EmbeddedServer) -> None:
    """In one jump the keep-alive ends the connection at 15 s, the will is sent at 20 s, and the session ends at 45
    s."""
    with Wire(server) as wire, Wire(server) as other:
        other.connect("other")
        other.send(Subscribe(1, (Subscription("#"),)))
        assert other.receive() == Suback(1, (0,))
        will = Will("gone", properties=WillProperties(will_delay=5, message_expiry=60))
        wire.connect("c", keep_alive=10, will=will, properties=_session(30))
        server.clock.advance(14)
        wire.send(Pingreq())
        assert wire.receive() == Pingresp()
        server.clock.advance(19)
        assert "gone" not in [message.topic for message in server.messages]
        (goodbye,) = wire.rest()
        assert (type(goodbye), goodbye.reason_code) == (Disconnect, 0x8D)
        server.clock.advance(1.1)
        message = other.receive()
        assert isinstance(message, Publish)
        assert (message.topic, message.properties.message_expiry) == ("gone", 60)
        assert "c" in server.sessions
        server.clock.advance(25)
        assert "c" not in server.sessions


def test_time_passes_between_the_steps_of_one_jump(server: EmbeddedServer) -> None:
    """What follows from the first appointment of a jump has the age that it would have."""
    with Wire(server) as wire, Wire(server) as other:
        other.connect("other", properties=_session(3600))
        other.send(Subscribe(1, (Subscription("gone", 1),)))
        other.receive()
        _leave(other)
        will = Will("gone", qos=1, properties=WillProperties(will_delay=5, message_expiry=60))
        wire.connect("c", keep_alive=10, will=will, properties=_session(3600))
        server.clock.advance(50)
    with Wire(server) as back:
        back.connect("other", clean_start=False)
        message = back.receive()
        assert isinstance(message, Publish)
        assert message.properties.message_expiry == 60 - (50 - 15 - 5)


def test_keep_alives_can_be_left_out(server: EmbeddedServer) -> None:
    """With keep-alives left out, a jump disconnects no client that is there, and all other appointments happen."""
    with Wire(server) as wire:
        wire.connect("c", keep_alive=10)
        with Wire(server) as other:
            other.connect("other", properties=_session(600))
            _leave(other)
        server.clock.advance(3600, keep_alive=False)
        wire.send(Pingreq())
        assert wire.receive() == Pingresp()
        assert not _is_there(server, "other")
        server.clock.advance(16)
        (goodbye,) = wire.rest()
        assert isinstance(goodbye, Disconnect)


@pytest.mark.parametrize("retain", [True, False], ids=["retained", "queued"])
def test_messages_expire(server: EmbeddedServer, retain: bool) -> None:
    """Retained and queued messages expire in a jump, or keep the time that is left."""
    with Wire(server) as wire:
        wire.connect("c", properties=_session(3600))
        if not retain:
            wire.send(Subscribe(1, (Subscription("#", 1),)))
            wire.receive()
        _leave(wire)
    server.publish("short", qos=1, retain=retain, payload="x", message_expiry=60)
    server.publish("long", qos=1, retain=retain, payload="x", message_expiry=100)
    server.clock.advance(70)
    with Wire(server) as wire:
        wire.connect("c", clean_start=False)
        if retain:
            wire.send(Subscribe(1, (Subscription("#", 1),)))
            wire.receive()
        message = wire.receive()
        assert isinstance(message, Publish)
        assert (message.topic, message.properties) == ("long", PublishProperties(message_expiry=30))


def test_versions_keep_the_real_time(server: EmbeddedServer) -> None:
    """Versions keep to the real time, since clients refuse a server that is an hour ahead; a step back of up to a day
    is bridged."""
    with StateStoreClient(server.url) as store:
        server.clock.advance(3600, keep_alive=False)
        version = store.set("k", "v").version
        assert abs(version.wall_ms - time.time() * 1000) < 60_000
        server.clock.step_wall(-120)
        store.set("k", "v")
        server.clock.step_wall(-90_000)
        with pytest.raises(RequestClockSkewError):
            store.set("k", "v")
    server.clear()
    with StateStoreClient(server.url) as store:
        store.set("k", "v")


@pytest.mark.parametrize("step_s", [-3_600, 3_600])
@pytest.mark.parametrize("rebooted", [False, True])
def test_a_token_survives_a_restart_whatever_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int, rebooted: bool
) -> None:
    """After a restart the server accepts its tokens and what open clients send, and versions do not go back."""
    with EmbeddedServer(data=tmp_path) as server, StateStoreClient(server.url) as store:
        lease = store.lock("job", lease=60).acquire()
        before = store.guarded(lease).set("k", "1").version
        server.clock.step_wall(step_s)
        if rebooted:
            monkeypatch.setattr("statestore_client.server.runtime.storage.disk_storage.monotonic_origin", lambda: 1)
        server.restart(keep_state=True)
        after = store.guarded(lease).set("k", "2").version
        assert after is not None
        assert before is not None
        assert after > before
        assert store.set("other", "1")


@pytest.mark.parametrize("rebooted", [False, True])
def test_no_lease_moves_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebooted: bool) -> None:
    """A lease of a durable server keeps what was left, whatever its wall clock says, and if the machine restarts."""
    with EmbeddedServer(data=tmp_path) as server, StateStoreClient(server.url) as store:
        store.set("lock", "me", expiry=60)
        server.clock.advance(20, keep_alive=False)
        server.clock.step_wall(3_600)
        if rebooted:
            monkeypatch.setattr("statestore_client.server.runtime.storage.disk_storage.monotonic_origin", lambda: 1)
        server.restart(keep_state=True)
        server.clock.advance(38, keep_alive=False)
        assert store.get("lock").value == b"me"
        server.clock.advance(2, keep_alive=False)
        assert store.get("lock") is None


def test_the_clock_runs_on_after_a_jump() -> None:
    """Real time still counts after a jump, so that a near appointment happens without another one."""
    with EmbeddedServer() as server, Wire(server) as wire:
        wire.connect("c", keep_alive=10)
        server.clock.advance(14.95)
        (goodbye,) = wire.rest()
        assert isinstance(goodbye, Disconnect)


async def test_in_an_event_loop() -> None:
    """The clock can be advanced in the server's own event loop."""
    async with EmbeddedServer() as server:
        server.publish("t", "x", retain=True, message_expiry=60)
        server.clock.advance(61)
        server.clock.advance(0)
        with pytest.raises(ValueError, match="back"):
            server.clock.advance(-1)


def test_a_day_takes_milliseconds(server: EmbeddedServer) -> None:
    """Two hundred keys expire each in its time during a day that takes milliseconds."""
    with StateStoreClient(server.url, driver="native") as store:
        for number in range(200):
            store.set(str(number * 43 + 85), "v", expiry=number * 43 + 86)
        started = time.perf_counter()
        server.clock.advance(86_400, keep_alive=False)
        assert time.perf_counter() - started < 20
        assert list(store.scan("*")) == []


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e18])
def test_steps_that_no_clock_can_take(server: EmbeddedServer, seconds: float) -> None:
    """A step that no clock can take is refused, and the server goes on."""
    for step in (server.clock.advance, server.clock.step_wall):
        with pytest.raises(InvalidArgumentError, match="seconds within ten thousand years, not "):
            step(seconds)
    with StateStoreClient(server.url, driver="native") as store:
        assert store.set("key", "value")
