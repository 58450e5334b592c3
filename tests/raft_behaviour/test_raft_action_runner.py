"""What runs the machines of a Raft client, alone: without sockets, so that its actions can be looked at."""

from __future__ import annotations

import pytest

from raft_client import RaftSettings
from raft_client.action_runner import ActionRunner
from raft_client.core.calls import GetLogInfo
from raft_client.core.requests import Disconnect, Send
from raft_client.core.subscription import Subscription
from raft_client.wire.client_requests import ConfigReply, LogInfoReply
from raft_client.wire.configuration import Peer
from raft_client.wire.peer_messages import RequestEntries

URL = "tcp://127.0.0.1:8047"
REPLY = LogInfoReply(True, "1", 1, 1, 7, 7, 7, 0, 0)


def reading(runner: ActionRunner, subscription: Subscription) -> bytes:
    """Let a subscription ask the leader for entries; returns the id of that request."""
    subscription.start(0.0)
    runner.runners.add(subscription)
    runner.runners.settle(0.0)
    question = next(action for action in runner.machine.take_actions() if isinstance(action, Send))
    leader = ConfigReply(True, "1", (Peer("1", URL),))
    runner.machine.received(URL, [question.frames[0], *leader.to_frames()], 0.0)
    sent = [action.frames for action in runner.machine.take_actions() if isinstance(action, Send)]
    return next(request_id for request_id, kind, *_ in sent if kind == RequestEntries.TYPE)


def test_the_end_of_a_stream_is_said_before_its_link_goes() -> None:
    """A client that closes tells the peer to stop a stream, and disconnects after that."""
    runner = ActionRunner(RaftSettings(seeds=URL), lambda _: None)
    subscription = Subscription(b"", 5)
    request_id = reading(runner, subscription)
    runner.close_machines(0.0)
    actions = [action for action in runner.machine.actions if isinstance(action, Send | Disconnect)]
    assert actions == [Send(URL, [request_id, *RequestEntries(b"", 5, 0).to_frames()]), Disconnect(URL)]


class _CutOnce:
    """A waiter whose thread is interrupted in the middle of the first answer."""

    def __init__(self) -> None:
        self.results: list[object] = []
        self.cuts = 0

    def resolve(self, result: object) -> None:
        if not self.cuts:
            self.cuts += 1
            raise KeyboardInterrupt
        self.results.append(result)


def test_an_answer_is_owed_until_it_was_handed_over() -> None:
    """When an exception cuts the handing over of an answer, it is asked for again, and owed no longer then."""
    runner = ActionRunner(RaftSettings(seeds=URL), lambda _: None)
    waiter = _CutOnce()
    runner.machine.submit(GetLogInfo(b"", of_leader=False), waiter, 0.0, timeout=None, target=URL)

    def answer() -> None:
        (sent,) = [action for action in runner.machine.take_actions() if isinstance(action, Send)]
        runner.machine.received(URL, [sent.frames[0], *REPLY.to_frames()], 0.0)

    answer()
    with pytest.raises(KeyboardInterrupt):
        runner.perform()
    for _ in range(2):  # it may be cut, and come again
        runner.begin_anew(0.0)
    answer()
    runner.perform()
    assert waiter.results == [REPLY]
    assert not runner.machine.owed
