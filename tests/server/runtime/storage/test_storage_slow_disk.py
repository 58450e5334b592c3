"""A disk that is slower than the clients: they wait, the memory stays bounded, and all is acknowledged in the end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.server_clients import TIMEOUT_S, Wire
from support.waiting import eventually

from statestore_client.mqtt.packets import ConnectProperties, Puback, Publish, Suback, Subscribe, Subscription
from statestore_client.server import EmbeddedServer
from statestore_client.server.broker import BrokerLimits
from statestore_client.server.journal import Stream, TimeRecord, WriteBatch
from statestore_client.server.runtime.storage import DiskStorage, group_commit
from statestore_client.server.runtime.storage.files import Log


def test_clients_wait_for_a_disk_that_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the disk stopped a publisher is read up to the journal's bound and gets no PUBACK; then it gets all."""
    may_write = threading.Event()
    may_write.set()
    sizes: list[int] = []
    append = Log.append

    def slow(log: Log, batch: WriteBatch) -> None:
        assert may_write.wait(TIMEOUT_S)
        sizes.append(sum(len(data) for changes in batch.changes for _, data in changes.puts))
        append(log, batch)

    monkeypatch.setattr(Log, "append", slow)
    count, payload = 200, bytes(500_000)
    limits = BrokerLimits(queued_bytes=200_000_000)
    with (
        EmbeddedServer(data=tmp_path, broker_limits=limits) as server,
        Wire(server) as receiver,
        Wire(server) as sender,
    ):
        receiver.connect("receiver", properties=ConnectProperties(session_expiry=100, receive_maximum=1))
        receiver.send(Subscribe(1, (Subscription("t", 1),)))
        assert isinstance(receiver.receive(), Suback)
        sender.connect("sender")
        may_write.clear()
        frames = [Publish("t", payload, 1, packet_id=number) for number in range(1, count + 1)]
        sending = threading.Thread(target=sender.send, args=frames)
        sending.start()
        eventually(lambda: server.counters.received_messages > 60, "a journal's worth of messages")
        before = 0
        while before != server.counters.received_messages:  # nothing more comes in
            before = server.counters.received_messages
            sending.join(0.2)
        assert before < 150
        assert sending.is_alive()
        may_write.set()
        for number in range(1, count + 1):
            answer = sender.receive()
            assert isinstance(answer, Puback)
            assert (answer.packet_id, answer.reason_code) == (number, 0)
        sending.join()
    assert max(sizes) < 36_000_000


def test_the_time_is_written_down_while_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is stored every minute, so that after a restart of the machine at most a minute of running is lost."""
    batches: list[WriteBatch] = []
    append = Log.append

    def noting(log: Log, batch: WriteBatch) -> None:
        batches.append(batch)
        append(log, batch)

    monkeypatch.setattr(Log, "append", noting)
    monkeypatch.setattr(group_commit, "_TIME_S", 0.01)
    with EmbeddedServer(data=tmp_path) as server:
        eventually(lambda: len(batches) > 3, "some batches without anybody")
        server.clock.advance(1_000)
    assert {changes.stream for batch in batches for changes in batch.changes} == {Stream.CLOCK}
    storage = DiskStorage(tmp_path)
    last = TimeRecord.last(storage)
    storage.close()
    assert last is not None
    assert last.log_ms >= last.wall_ms + 999_000
