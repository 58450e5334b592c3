"""What waits for the state machine of a peer has bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from raft_client import Peer
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.node.ready import ReadGranted, Ready
from raft_client.server.runtime.machine_runner import MachineRunner, Question
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.client_dispatch import ClientDispatch


@pytest.mark.parametrize(("size", "most"), [(1, 10_000), (10 * 1024 * 1024, 6)])
def test_questions_that_wait_are_bounded_in_number_and_bytes(tmp_path: Path, size: int, most: int) -> None:
    """Questions beyond 10,000, or beyond 64 MiB, are dropped and counted; there is room again when one is answered."""
    dropped: list[str] = []
    answers: list[object] = []
    message = ClientDispatch(b"kv.get", b"", (bytes(size),))
    with DiskLog.open(tmp_path, peer_id="1", ident=b"", peers=(Peer("1", "tcp://127.0.0.1:1"),)) as log:
        runner = MachineRunner(KeyValueStateMachine(), log, b"", publish=lambda _message: None, drop=dropped.append)
        questions = [Question(message, answers.append) for _ in range(most + 1)]
        assert [runner.ask(question) for question in questions] == [True] * most + [False]
        assert dropped == ["too many questions"]
        for index in (1, None):  # answered, and dropped because the peer does not lead
            runner.carry_out(Ready(reads=(ReadGranted(questions.pop(0), index),)), 0.0)
            assert runner.ask(Question(message, answers.append))
        assert not runner.ask(Question(message, answers.append))
    assert len(answers) == 1
