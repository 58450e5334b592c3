"""The request machine against a cluster in memory: who is asked, what is sent again, and what callers get."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from raft_network import CONFIG, IDENT, UPDATE, ClientDriver, SimCluster, append, url_of

from raft_client.core.backoff import Backoff
from raft_client.core.calls import Custom, GetConfig, GetLogInfo, UpdatePeers
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

ONE, TWO, THREE = url_of(1), url_of(2), url_of(3)


@pytest.fixture
def cluster() -> SimCluster:
    return SimCluster()


@pytest.fixture
def client(cluster: SimCluster) -> ClientDriver:
    return ClientDriver(cluster)


def asked(client: ClientDriver) -> list[str]:
    """Who was asked who leads."""
    return [url for url, frames in client.sent if frames[1] == CONFIG]


def appended_at(client: ClientDriver) -> list[str]:
    """To whom appends were sent."""
    return [url for url, frames in client.sent if frames[1] == UPDATE]


# -- finding the leader ------------------------------------------------------------------------------------------------


def test_nothing_is_asked_before_the_first_call(client: ClientDriver) -> None:
    """A client that is not used costs the cluster nothing."""
    assert client.machine.next_deadline() is None
    assert client.machine.take_actions() == []


def test_all_seeds_are_asked_at_once(client: ClientDriver) -> None:
    """One dead seed costs no time-out."""
    client.append(1)
    assert asked(client) == [ONE, TWO, THREE]


def test_the_leader_gets_the_request_and_the_others_are_left(client: ClientDriver) -> None:
    """After the search one connection remains (ØMQ Raft protocol: disconnect from all other peers)."""
    client.append(1)
    client.settle()
    assert client.outcomes[1] == [1]
    assert set(client.links) == {ONE}
    assert (client.machine.leader_url, client.machine.leader_id) == (ONE, "1")
    assert client.machine.peers == {"1": ONE, "2": TWO, "3": THREE}


def test_one_seed_is_enough(cluster: SimCluster) -> None:
    """A follower names the others; they are asked at once."""
    client = ClientDriver(cluster, seeds=(THREE,))
    client.append(1)
    client.settle()
    assert client.outcomes[1] == [1]


def test_the_search_goes_on_while_nobody_leads(client: ClientDriver, cluster: SimCluster) -> None:
    """During an election everybody is asked again and again."""
    cluster.elect(None)
    client.append(1)
    client.pass_time(1.0)
    assert client.outcomes[1] == []
    cluster.elect(cluster.peers[TWO])
    client.pass_time(0.3)
    assert client.outcomes[1] == [1]
    assert appended_at(client) == [TWO]


def test_pauses_between_questions_grow_up_to_the_grace_time(client: ClientDriver, cluster: SimCluster) -> None:
    """A cluster without a leader is not flooded: 300 ms between rounds in the end, less the jitter."""
    cluster.elect(None)
    client.append(1)
    client.pass_time(3.0)
    before = len(asked(client))
    client.pass_time(3.0)
    rounds = (len(asked(client)) - before) / 3
    assert 10 <= rounds <= 17


def test_two_peers_that_name_each_other_do_not_spin_the_client(client: ClientDriver, cluster: SimCluster) -> None:
    """Only the leader's own word counts."""
    cluster.elect(None)
    for url, other in ((ONE, "2"), (TWO, "1")):
        cluster.peers[url].believes, cluster.peers[url].is_deluded = other, True
    client.append(1)
    client.pass_time(1.0)
    assert len(client.sent) < 60
    assert appended_at(client) == []


def test_two_leaders_that_send_the_client_to_each_other_do_not_either(
    client: ClientDriver, cluster: SimCluster
) -> None:
    """Who says that it leads and then takes nothing is believed again only after the grace time."""
    for url, me, other in ((ONE, "1", "2"), (TWO, "2", "1")):
        peer = cluster.peers[url]
        peer.believes, peer.is_deluded, peer.sends_away_to = me, True, other
    client.append(1)
    client.pass_time(2.0)
    assert len(appended_at(client)) < 12
    cluster.elect(cluster.peers[THREE])
    client.pass_time(1.0)
    assert client.outcomes[1] == [1]


def test_no_leader_is_an_error_that_says_what_everybody_said(client: ClientDriver, cluster: SimCluster) -> None:
    """Wrong addresses, a wrong ident and an election look different."""
    cluster.elect(None)
    cluster.peers[TWO].is_frozen = True
    client.kill(THREE)
    client.append(1, timeout=2.0)
    client.pass_time(2.0)
    [error] = client.outcomes[1]
    assert isinstance(error, NoLeaderError)
    assert not error.may_have_been_applied
    assert error.request_id == RequestId((1).to_bytes(12, "big"))
    assert f"{ONE} says that nobody leads; {TWO} does not answer; {THREE} refused or broke" in str(error)
    assert client.machine.next_deadline() is None
    assert client.links == {}


def test_an_unreadable_answer_does_not_stop_the_search(client: ClientDriver, cluster: SimCluster) -> None:
    """Something else may listen at a seed."""
    cluster.elect(None)
    client.append(1, timeout=1.0)
    request_id = client.sent[0][1][0]
    client.machine.received(ONE, [request_id, b"\x01", b"\xc1"], client.time)
    client.pass_time(0.5)
    cluster.elect(cluster.peers[TWO])
    client.pass_time(0.5)
    assert client.outcomes[1] == [1]


def test_a_connection_that_neither_opens_nor_fails_is_made_anew(client: ClientDriver, cluster: SimCluster) -> None:
    """A firewall may eat the first packets; the new connection is answered."""
    for peer in cluster.peers.values():
        peer.is_frozen = True
    client.append(1)
    client.pass_time(1.0)
    for peer in cluster.peers.values():
        peer.inbox.clear()  # what was eaten
        peer.is_frozen = False
    client.pass_time(3.0)
    assert client.outcomes[1] == [1]


def test_the_peers_are_refreshed_while_requests_pass(client: ClientDriver, cluster: SimCluster) -> None:
    """A client that lives for weeks does not end up with a list of peers that are all gone."""
    client.append(1)
    client.settle()
    cluster.listed = [["1", ONE], ["9", url_of(9)]]
    client.pass_time(31.0)
    client.append(2)
    client.settle()
    assert client.machine.peers == {"1": ONE, "9": url_of(9)}


# -- the leader is lost ------------------------------------------------------------------------------------------------


def test_another_leader_is_asked_alone_and_gets_everything(client: ClientDriver, cluster: SimCluster) -> None:
    """The first recovery of the document: "not the leader", and a name."""
    client.append(1)
    client.settle()
    cluster.elect(cluster.peers[TWO])
    del client.sent[:]
    client.append(2)
    client.append(3)
    client.settle()
    assert [client.outcomes[n] for n in (1, 2, 3)] == [[1], [2], [3]]
    assert asked(client) == [TWO]
    assert cluster.log == [b"1", b"2", b"3"]


def test_without_a_name_everybody_is_asked(client: ClientDriver, cluster: SimCluster) -> None:
    """The second recovery: "not the leader", and nobody is."""
    client.append(1)
    client.settle()
    cluster.elect(None)
    del client.sent[:]
    client.append(2)
    client.settle()
    assert sorted(set(asked(client))) == [ONE, TWO, THREE]
    cluster.elect(cluster.peers[THREE])
    client.pass_time(0.5)
    assert client.outcomes[2] == [2]


def test_a_broken_link_starts_the_search_at_once(client: ClientDriver, cluster: SimCluster) -> None:
    """No time-out is waited for when a leader dies: its connection breaks."""
    client.append(1)
    client.settle()
    client.append(2)
    client.kill(ONE)
    del client.sent[:]
    client.report_losses()
    assert asked(client) == [ONE, TWO, THREE]
    cluster.elect(cluster.peers[TWO])
    client.pass_time(0.1)
    assert client.outcomes[2] == [2]


def test_the_same_request_id_is_sent_again(client: ClientDriver, cluster: SimCluster) -> None:
    """The old leader had committed it already: the new one says at which index."""
    client.append(1)
    client.settle()
    client.append(2)
    client.peer_works(ONE)  # committed, and the answer is lost with the link
    client.kill(ONE)
    cluster.elect(cluster.peers[TWO])
    client.pass_time(0.1)
    assert client.outcomes[2] == [2]
    assert cluster.log == [b"1", b"2"]
    ids = [frames[0] for url, frames in client.sent if frames[1] == UPDATE and frames[3] == b"2"]
    assert ids == [(2).to_bytes(12, "big")] * 2


def test_silence_makes_the_leader_suspect(client: ClientDriver, cluster: SimCluster) -> None:
    """A frozen leader keeps its connections open; after the response time-out the others are asked."""
    client.append(1)
    client.settle()
    cluster.peers[ONE].is_frozen = True
    cluster.elect(cluster.peers[TWO])
    cluster.peers[ONE].believes = "1"
    client.append(2)
    client.pass_time(0.49)
    assert client.outcomes[2] == []
    client.pass_time(0.1)
    assert client.outcomes[2] == [2]


def test_a_leader_that_was_merely_slow_is_believed_after_the_grace_time(
    client: ClientDriver, cluster: SimCluster
) -> None:
    """Nobody else leads, so the suspect does; and its answer to the first question still counts."""
    client.append(1)
    client.settle()
    cluster.peers[ONE].is_frozen = True
    client.append(2)
    client.pass_time(0.6)
    cluster.peers[ONE].is_frozen = False
    client.pass_time(0.5)
    assert client.outcomes[2] == [2]
    assert cluster.log == [b"1", b"2"]


def test_a_deluded_leader_does_not_keep_the_client(client: ClientDriver, cluster: SimCluster) -> None:
    """Cut off from the others it accepts and never commits (facts 1.4); the real leader is found."""
    client.append(1)
    client.settle()
    cluster.peers[ONE].is_deluded = True
    cluster.elect(cluster.peers[THREE])
    client.append(2)
    client.pass_time(1.0)
    assert client.outcomes[2] == [2]
    assert client.machine.leader_url == THREE


def test_order_survives_the_change_of_the_leader(client: ClientDriver, cluster: SimCluster) -> None:
    """What has no answer goes to the new leader in the order of submission."""
    for number in range(20):
        client.append(number)
        if number == 7:
            client.settle()
    for _ in range(5):
        client.peer_works(ONE)
    client.kill(ONE)
    cluster.elect(cluster.peers[TWO])
    client.pass_time(0.2)
    assert cluster.log == [b"%d" % n for n in range(20)]
    assert [client.outcomes[n] for n in range(20)] == [[n + 1] for n in range(20)]


def test_only_the_window_is_on_the_wire(cluster: SimCluster) -> None:
    """More requests wait in this process."""
    client = ClientDriver(cluster, max_in_flight=2)
    client.append(0)
    client.settle()
    for number in range(1, 6):
        client.append(number)
    assert len(cluster.peers[ONE].inbox) == 2
    client.settle()
    assert [client.outcomes[n] for n in range(6)] == [[n + 1] for n in range(6)]


def test_one_lost_answer_is_asked_for_again_while_the_leader_talks_to_others(
    client: ClientDriver, cluster: SimCluster
) -> None:
    """The leader is alive, so it is not given up: the one request is repeated."""
    client.append(1)
    client.settle()
    client.append(2)
    client.peer_works(ONE)
    client.to_client.clear()  # a peer drops answers when its queue is full
    client.pass_time(0.4)
    client.append(3)
    client.settle()
    client.pass_time(0.2)
    assert client.outcomes[2] == [2]
    assert client.machine.stats.searches == 1


def test_the_acceptance_resets_the_clock(client: ClientDriver, cluster: SimCluster) -> None:
    """ØMQ Raft protocol, RequestUpdate: accepted may come several times, each time the time-out starts again."""
    client.append(1)
    client.settle()
    request = client.append(2)
    cluster.peers[ONE].is_frozen = True
    for _ in range(4):
        client.pass_time(0.4)
        client.machine.received(ONE, [request.request_id, b"\x01"], client.time)
    assert client.machine.stats.searches == 1
    client.pass_time(0.6)
    assert client.machine.stats.searches == 2


# -- final answers -----------------------------------------------------------------------------------------------------


def answer(client: ClientDriver, waiter: str | int, frames: list[bytes]) -> object:
    """What the waiter of the only request gets when the leader answers so."""
    [request_id] = client.machine._requests
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
    """False and no third frame."""
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
    """Status 1 with a third frame."""
    led.submit(UpdatePeers(IDENT, PEERS, RequestId(bytes(12))), "peers")
    assert answer(led, "peers", [b"\x01"]) is None
    assert answer(led, "peers", frames) == expected


def test_a_refused_change_of_peers_says_why(led: ClientDriver) -> None:
    """Status 2 with name and message, here as the Node library encodes them (facts 4)."""
    led.submit(UpdatePeers(IDENT, PEERS, RequestId(bytes(12))), "peers")
    packed = bytes.fromhex(
        "82a46e616d65a9547970654572726f72a76d657373616765b67065657273206d75737420626520616e206172726179"
    )
    error = answer(led, "peers", [b"\x02", packed])
    assert isinstance(error, ConfigError)
    assert (error.name, error.message) == ("TypeError", "peers must be an array")


def test_a_busy_cluster_is_asked_again(led: ClientDriver) -> None:
    """Status 3: after a pause the same request, until the deadline; then the reason is the error."""
    led.submit(UpdatePeers(IDENT, PEERS, RequestId(bytes(12))), "peers", timeout=1.2)
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
    """It was sent, so nobody can tell; with its id it may be repeated."""
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
    """A Node client rejects everything that is pending (facts 1.1); here the others go on."""
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
    """The second waits for the first, then asks by itself."""
    led.submit(append(5), "a")
    led.submit(append(5), "b")
    led.settle()
    assert led.outcomes["a"] == led.outcomes["b"] == [2]


def test_a_second_request_with_the_same_id_can_be_cancelled(led: ClientDriver) -> None:
    """Without harm to the first."""
    led.submit(append(5), "a")
    second = led.submit(append(5), "b")
    led.machine.cancel(second, led.time)
    led.settle()
    assert led.outcomes["a"] == [2]
    assert led.outcomes["b"] == []
    assert led.machine.pending == 0


def test_a_cancelled_request_is_forgotten(led: ClientDriver) -> None:
    """Its answer is counted as stale."""
    request = led.append(1)
    led.machine.cancel(request, led.time)
    led.settle()
    assert led.outcomes[1] == []
    assert led.machine.stats.stale_answers == 2


def test_close_answers_everybody(client: ClientDriver, cluster: SimCluster) -> None:
    """What was sent may have been applied; what was not, was not."""
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
    """Who leads, and everybody's URL."""
    client.submit(GetConfig(IDENT), "config")
    client.settle()
    [config] = client.outcomes["config"]
    assert (config.leader_id, config.leader_url) == ("1", ONE)


def test_one_peer_can_be_asked_by_name(led: ClientDriver) -> None:
    """Over a link of its own, which is closed afterwards."""
    led.submit(GetLogInfo(IDENT, of_leader=False), "info", target=TWO)
    led.settle()
    [info] = led.outcomes["info"]
    assert not info.is_leader
    assert info.commit_index == 7
    assert set(led.links) == {ONE}


def test_a_peer_that_was_asked_by_name_is_tried_until_the_deadline(led: ClientDriver, cluster: SimCluster) -> None:
    """Its link is made again while it is down."""
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
    """A peer that no longer leads is not believed."""
    cluster.elect(cluster.peers[TWO])
    led.submit(GetLogInfo(IDENT, of_leader=True), "info")
    led.settle()
    assert led.outcomes["info"][0].leader_id == "2"


def test_asking_a_follower_for_what_only_a_leader_may_do_is_an_error(led: ClientDriver) -> None:
    """With the id of the leader it names."""
    led.submit(append(1), "one", target=TWO)
    led.settle()
    [error] = led.outcomes["one"]
    assert isinstance(error, NotLeaderError)
    assert error.leader_id == "1"


def test_a_custom_message_is_sent_once(led: ClientDriver, cluster: SimCluster) -> None:
    """Whether it may be repeated only the state machine knows."""
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


def test_a_custom_message_without_an_answer_is_no_reason_to_doubt_the_leader(led: ClientDriver) -> None:
    """A state machine that does not know the type says nothing."""
    led.cluster.peers[ONE].is_frozen = True
    led.submit(Custom(IDENT, "ping", ()), "custom", timeout=3.0)
    led.pass_time(3.0)
    assert isinstance(led.outcomes["custom"][0], RequestTimeoutError)
    assert led.machine.stats.searches == 1


def test_numbers_of_requests_start_again_at_the_end() -> None:
    """Request ids are numbers of 32 bits (ØMQ Raft protocol, ClientDispatch)."""
    cluster = SimCluster()
    client = ClientDriver(cluster)
    client.append(1)
    client.settle()
    client.machine._numbers = count(2**32 - 1)
    client.submit(GetConfig(IDENT), "last")
    client.submit(GetConfig(IDENT), "first")
    client.settle()
    assert [frames[0] for _, frames in client.sent][-2:] == [b"\xff\xff\xff\xff", b"\x01"]
    assert len(client.outcomes["first"]) == 1


def test_pauses_grow_and_differ() -> None:
    """First, factor, cap and jitter."""
    plain = Backoff(first=0.1, factor=2.0, cap=1.0, jitter=0.0)
    assert [plain.delay(n, Random(1)) for n in (0, 1, 2, 3, 4, 10**6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    shaken = {Backoff().delay(50, Random(seed)) for seed in range(100)}
    assert len(shaken) == 100
    assert all(0.18 <= delay <= 0.3 for delay in shaken)
