"""The request machine against a cluster in memory: what final answers and deadlines mean for callers."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from raft_network import IDENT, ClientDriver, SimCluster, append, url_of

from raft_client.core.calls import Custom, GetConfig, GetLogInfo, UpdatePeers
from raft_client.core.leader_search import Backoff
from raft_client.core.requests import Subscribe
from raft_client.core.stream_runners import StreamRunner
from raft_client.core.subscription import Subscription
from raft_client.errors import (
    ClientClosedError,
    ClusterBusyError,
    ConfigError,
    ConnectionLostError,
    NoLeaderError,
    NotLeaderError,
    ProtocolError,
    RequestExpiredError,
    RequestTimeoutError,
)
from raft_client.wire.request_id import RequestId

ONE, TWO = url_of(1), url_of(2)


# -- final answers -----------------------------------------------------------------------------------------------------


def answer(client: ClientDriver, waiter: str | int, frames: list[bytes]) -> object:
    """What the waiter of the only request gets when the leader answers so."""
    [request_id] = client.machine._table.requests
    assert client.machine.leader_url is not None
    client.machine.received(client.machine.leader_url, [request_id, *frames], client.time)
    client.perform()
    return client.outcomes[waiter][-1] if client.outcomes[waiter] else None


@pytest.fixture
def led(client: ClientDriver) -> ClientDriver:
    """A client that knows its leader."""
    client.append(1000)
    client.settle()
    return client


PEERS = [("1", ONE), ("4", url_of(4))]


def test_an_expired_id_is_final(led: ClientDriver) -> None:
    """An expired id, answered with False and without a third frame, is final."""
    led.append(1)
    error = answer(led, 1, [b""])
    assert isinstance(error, RequestExpiredError)
    assert error.request_id == RequestId((1).to_bytes(12, "big"))


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([b"\x01", b"\x07"], 7),
        ([b"\x01", b"\xcb\x41\xe0\x00\x00\x00\x00\x00\x00"], 2**31),  # Node writes large numbers as floats (facts 4)
    ],
)
def test_a_change_of_peers_ends_with_its_index(led: ClientDriver, frames: list[bytes], expected: int) -> None:
    """A change of peers returns the index in the third frame after status 1."""
    led.submit(UpdatePeers(IDENT, PEERS, bytes(12)), "peers")
    assert answer(led, "peers", [b"\x01"]) is None
    assert answer(led, "peers", frames) == expected


def test_a_refused_change_of_peers_says_why(led: ClientDriver) -> None:
    """A refused change of peers, status 2, raises the name and message that the Node library encodes (facts 4)."""
    led.submit(UpdatePeers(IDENT, PEERS, bytes(12)), "peers")
    packed = bytes.fromhex(
        "82a46e616d65a9547970654572726f72a76d657373616765b67065657273206d75737420626520616e206172726179"
    )
    error = answer(led, "peers", [b"\x02", packed])
    assert isinstance(error, ConfigError)
    assert (error.name, error.message) == ("TypeError", "peers must be an array")


def test_a_busy_cluster_is_asked_again(led: ClientDriver) -> None:
    """After status 3, busy, the same request is sent again until the deadline; then the reason is the error."""
    led.submit(UpdatePeers(IDENT, PEERS, bytes(12)), "peers", timeout=1.2)
    del led.sent[:]
    assert answer(led, "peers", [b"\x03"]) is None
    led.cluster.peers[ONE].inbox.clear()
    led.time += 0.5
    led.machine.tick(led.time)
    led.perform()
    assert [frames[0] for _, frames in led.sent] == [bytes(12)]
    assert answer(led, "peers", [b"\x03"]) is None
    led.time += 1.0
    led.machine.tick(led.time)
    led.perform()
    assert isinstance(led.outcomes["peers"][0], ClusterBusyError)


def test_the_deadline_holds_whatever_happens(client: ClientDriver, cluster: SimCluster) -> None:
    """At the deadline a request that was sent may have been applied, and it may be repeated with its id."""
    client.append(1)
    client.settle()
    for peer in cluster.peers.values():
        peer.is_deluded = True
    cluster.elect(None)
    client.append(2, timeout=2.0)
    client.pass_time(2.0)
    [error] = client.outcomes[2]
    assert isinstance(error, (RequestTimeoutError, NoLeaderError))
    assert error.may_have_been_applied
    assert error.request_id is not None


def test_an_unreadable_answer_fails_its_request_only(led: ClientDriver) -> None:
    """An unreadable answer fails its request only, where a Node client rejects everything that is pending (facts
    1.1)."""
    led.append(1)
    led.append(2)
    request_id = (1).to_bytes(12, "big")
    led.machine.received(ONE, [request_id, b"\x01", b"\xc1"], led.time)
    led.settle()
    [error] = led.outcomes[1]
    assert isinstance(error, ProtocolError)
    assert error.may_have_been_applied
    assert led.outcomes[2] == [3]


def test_the_same_id_twice_at_once_gives_the_same_index(led: ClientDriver) -> None:
    """A second request with an id that is in flight waits for the first and then asks by itself, and gets the same
    index."""
    led.submit(append(5), "a")
    led.submit(append(5), "b")
    led.settle()
    assert led.outcomes["a"] == led.outcomes["b"] == [2]


def test_a_second_request_with_the_same_id_can_be_cancelled(led: ClientDriver) -> None:
    """Cancelling a second request with the same id leaves the first alone."""
    led.submit(append(5), "a")
    second = led.submit(append(5), "b")
    led.machine.cancel(second, led.time)
    led.settle()
    assert led.outcomes["a"] == [2]
    assert led.outcomes["b"] == []
    assert led.machine.pending == 0


@pytest.mark.parametrize("sends", [1, 2])
def test_a_refused_change_of_peers_is_certain_at_its_first_send_only(led: ClientDriver, sends: int) -> None:
    """Only the first refusal of a change of peers is certain: a second one may mean that the first has done it."""
    led.submit(UpdatePeers(IDENT, PEERS, bytes(12), has_new_id=True), "peers")
    if sends == 2:
        led.pass_time(0.6)
    error = answer(led, "peers", [b"\x02", b"\x80"])
    assert isinstance(error, ConfigError)
    assert error.may_have_been_applied is (sends == 2)


def test_a_leader_without_an_id_fails_the_one_who_asked(led: ClientDriver) -> None:
    """A leader without an id fails the request that asked, and no search begins, because it says that it leads."""
    led.submit(GetConfig(IDENT), "config")
    assert isinstance(answer(led, "config", [b"\x01", b"\xc0", b"\x90"]), ProtocolError)
    assert led.machine.leader_url == ONE


def test_a_cancelled_request_is_forgotten(led: ClientDriver) -> None:
    """The answer to a cancelled request is counted as stale."""
    request = led.append(1)
    led.machine.cancel(request, led.time)
    led.settle()
    assert led.outcomes[1] == []
    assert led.machine.stats.stale_answers == 2


def test_close_answers_everybody(client: ClientDriver, cluster: SimCluster) -> None:
    """close() answers every request: those sent may have been applied, the others were not."""
    client.append(1)
    client.settle()
    client.append(2)
    cluster.elect(None)
    client.settle()
    client.append(3)
    client.machine.close()
    client.perform()
    [sent], [unsent] = client.outcomes[2], client.outcomes[3]
    assert isinstance(sent, ClientClosedError)
    assert sent.may_have_been_applied
    assert isinstance(unsent, ClientClosedError)
    assert not unsent.may_have_been_applied
    assert client.links == {}
    with pytest.raises(ClientClosedError):
        client.append(4)


# -- other calls -------------------------------------------------------------------------------------------------------


def test_the_configuration_comes_from_the_leader(client: ClientDriver) -> None:
    """The configuration comes from the leader, with the leader's id and all URLs."""
    client.submit(GetConfig(IDENT), "config")
    client.settle()
    [config] = client.outcomes["config"]
    assert (config.leader_id, config.leader_url) == ("1", ONE)


def test_one_peer_can_be_asked_by_name(led: ClientDriver) -> None:
    """One peer is asked by name over a link of its own, which is closed afterwards."""
    led.submit(GetLogInfo(IDENT, of_leader=False), "info", target=TWO)
    led.settle()
    [info] = led.outcomes["info"]
    assert not info.is_leader
    assert info.commit_index == 7
    assert set(led.links) == {ONE}


def test_a_peer_that_was_asked_by_name_is_tried_until_the_deadline(led: ClientDriver, cluster: SimCluster) -> None:
    """A peer that is asked by name is tried until the deadline, over a new link while it is down."""
    led.kill(TWO)
    led.submit(GetLogInfo(IDENT, of_leader=False), "info", target=TWO, timeout=1.0)
    led.submit(GetLogInfo(IDENT, of_leader=False), "patient", target=TWO, timeout=5.0)
    led.settle()
    led.pass_time(1.5)
    [error] = led.outcomes["info"]
    assert isinstance(error, RequestTimeoutError)
    assert not error.may_have_been_applied
    cluster.peers[TWO].is_up = True
    led.pass_time(1.0)
    assert led.outcomes["patient"][0].last_index == 7


def test_the_log_of_the_leader_is_the_leaders(led: ClientDriver, cluster: SimCluster) -> None:
    """The leader's log state is not taken from a peer that no longer leads."""
    cluster.elect(cluster.peers[TWO])
    led.submit(GetLogInfo(IDENT, of_leader=True), "info")
    led.settle()
    assert led.outcomes["info"][0].leader_id == "2"


def test_asking_a_follower_for_what_only_a_leader_may_do_is_an_error(led: ClientDriver) -> None:
    """Asking a follower by name for what only a leader may do is an error with the leader's id."""
    led.submit(append(1), "one", target=TWO)
    led.settle()
    [error] = led.outcomes["one"]
    assert isinstance(error, NotLeaderError)
    assert error.leader_id == "1"


def test_a_custom_message_is_sent_once(led: ClientDriver, cluster: SimCluster) -> None:
    """A custom message is sent once, because only the state machine knows if it may be repeated."""
    led.submit(Custom(IDENT, "ping", (b"x",)), "custom")
    led.settle()
    assert led.outcomes["custom"] == [[b"custom", b"x"]]
    led.submit(Custom(IDENT, "ping", ()), "lost")
    led.kill(ONE)
    cluster.elect(cluster.peers[TWO])
    led.pass_time(1.0)
    [error] = led.outcomes["lost"]
    assert isinstance(error, ConnectionLostError)
    assert error.may_have_been_applied


@pytest.mark.parametrize("is_lost", [False, True], ids=["answer", "loss"])
def test_what_came_together_with_the_news_of_another_leader_is_heard(led: ClientDriver, is_lost: bool) -> None:
    """A link is left in the middle of what has come on it: the rest is still heard by those who stay on the link."""
    led.submit(Custom(IDENT, "never", ()), "custom")
    led.append(1)
    led.perform()
    first, second = list(led.machine._table.requests)
    led.machine.received(ONE, [second, b"", b"\xa12"], led.time)
    assert led.machine.leader_url is None
    if is_lost:
        led.machine.link_lost(ONE, led.time)
    else:
        led.machine.received(ONE, [first, b"answer"], led.time)
    led.perform()
    [outcome] = led.outcomes["custom"]
    assert isinstance(outcome, ConnectionLostError) if is_lost else outcome == [b"answer"]


def test_a_new_link_to_a_peer_that_was_left_is_not_the_old_one(led: ClientDriver) -> None:
    """What comes over the new one, after the old one was set aside, is no answer to those who stay on the old one."""
    led.submit(Custom(IDENT, "never", ()), "custom")
    led.append(1)
    led.perform()
    first, second = list(led.machine._table.requests)
    led.machine.received(ONE, [second, b"", b"\xa12"], led.time)
    led.perform()
    led.machine.received(ONE, [first, b"answer"], led.time)
    led.perform()
    assert led.outcomes["custom"] == []
    [name] = led.machine._table.aside
    led.machine.received(name, [first, b"answer"], led.time)
    led.perform()
    assert led.outcomes["custom"] == [[b"answer"]]


def test_a_custom_message_without_an_answer_is_no_reason_to_doubt_the_leader(led: ClientDriver) -> None:
    """A custom message without an answer does not make the leader suspect, as a state machine ignores types it does not
    know."""
    led.cluster.peers[ONE].is_frozen = True
    led.submit(Custom(IDENT, "ping", ()), "custom", timeout=3.0)
    led.pass_time(3.0)
    assert isinstance(led.outcomes["custom"][0], RequestTimeoutError)
    assert led.machine.stats.searches == 1


def test_numbers_of_requests_start_again_at_the_end() -> None:
    """Numbers of requests wrap after 32 bits (ØMQ Raft protocol, ClientDispatch)."""
    cluster = SimCluster()
    client = ClientDriver(cluster)
    client.append(1)
    client.settle()
    client.machine._table._numbers = count(2**32 - 1)
    client.submit(GetConfig(IDENT), "last")
    client.submit(GetConfig(IDENT), "first")
    client.settle()
    assert [frames[0] for _, frames in client.sent][-2:] == [b"\xff\xff\xff\xff", b"\x01"]
    assert len(client.outcomes["first"]) == 1


def test_pauses_grow_and_differ() -> None:
    """Pauses grow from the first by a factor to a cap, with jitter."""
    plain = Backoff(first=0.1, factor=2.0, cap=1.0, jitter=0.0)
    assert [plain.delay(n, Random(1)) for n in (0, 1, 2, 3, 4, 10**6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    shaken = {Backoff().delay(50, Random(seed)) for seed in range(100)}
    assert len(shaken) == 100
    assert all(0.18 <= delay <= 0.3 for delay in shaken)


def test_nobody_listens_where_a_former_leader_broadcasts(client: ClientDriver) -> None:
    """It has said where, and leads no more when somebody begins to listen: with keys it is not known then whose is
    expected there. The subscription asks again.
    """
    runner = StreamRunner(client.machine, IDENT)
    runner.machine = subscription = Subscription(IDENT, 0)
    subscription.start(client.time)
    runner.settle(client.time)
    assert subscription._finder is not None
    subscription.finished(subscription._finder, "tcp://pub/1", client.time)
    assert client.machine.leader_url is None
    runner.settle(client.time)
    assert [each for each in client.machine.take_actions() if isinstance(each, Subscribe)] == []
    assert subscription.error is None
    assert subscription._find_at is not None
