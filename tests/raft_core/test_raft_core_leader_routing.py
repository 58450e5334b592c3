"""The request machine and the leader: how it is found, and what becomes of requests when it is lost."""

from __future__ import annotations

import pytest
from raft_network import CONFIG, UPDATE, ClientDriver, SimCluster, url_of

from raft_client.errors import NoLeaderError
from raft_client.wire.request_id import RequestId

ONE, TWO, THREE = url_of(1), url_of(2), url_of(3)


def asked(client: ClientDriver) -> list[str]:
    """The peers that were asked who leads."""
    return [url for url, frames in client.sent if frames[1] == CONFIG]


def appended_at(client: ClientDriver) -> list[str]:
    """To whom appends were sent."""
    return [url for url, frames in client.sent if frames[1] == UPDATE]


@pytest.fixture
def led(client: ClientDriver) -> ClientDriver:
    """A client that knows its leader, with one entry in the log."""
    client.append(1)
    client.settle()
    return client


# -- finding the leader ------------------------------------------------------------------------------------------------


def test_nothing_is_asked_before_the_first_call(client: ClientDriver) -> None:
    """Nothing is sent before the first call."""
    assert client.machine.next_deadline() is None
    assert client.machine.take_actions() == []


def test_all_seeds_are_asked_at_once(client: ClientDriver) -> None:
    """All seeds are asked at once, so that one dead seed costs no time-out."""
    client.append(1)
    assert asked(client) == [ONE, TWO, THREE]


def test_the_leader_gets_the_request_and_the_others_are_left(client: ClientDriver) -> None:
    """After the search the leader's connection remains and gets the request (ØMQ Raft protocol: disconnect from all
    other peers)."""
    client.append(1)
    client.settle()
    assert client.outcomes[1] == [1]
    assert set(client.links) == {ONE}
    assert (client.machine.leader_url, client.machine.leader_id) == (ONE, "1")
    assert client.machine.peers == {"1": ONE, "2": TWO, "3": THREE}


def test_one_seed_is_enough(cluster: SimCluster) -> None:
    """One seed is enough: a follower names the other peers, and they are asked at once."""
    client = ClientDriver(cluster, seeds=(THREE,))
    client.append(1)
    client.settle()
    assert client.outcomes[1] == [1]


def test_the_search_goes_on_while_nobody_leads(client: ClientDriver, cluster: SimCluster) -> None:
    """While nobody leads, as in an election, everybody is asked again and again."""
    cluster.elect(None)
    client.append(1)
    client.pass_time(1.0)
    assert client.outcomes[1] == []
    cluster.elect(cluster.peers[TWO])
    client.pass_time(0.3)
    assert client.outcomes[1] == [1]
    assert appended_at(client) == [TWO]


def test_pauses_between_questions_grow_up_to_the_grace_time(client: ClientDriver, cluster: SimCluster) -> None:
    """Pauses between rounds of questions grow to 300 ms, less the jitter, so that a cluster without a leader is not
    flooded."""
    cluster.elect(None)
    client.append(1)
    client.pass_time(3.0)
    before = len(asked(client))
    client.pass_time(3.0)
    rounds = (len(asked(client)) - before) / 3
    assert 10 <= rounds <= 17


def test_two_peers_that_name_each_other_do_not_spin_the_client(client: ClientDriver, cluster: SimCluster) -> None:
    """When two peers name each other as the leader, the client does not go back and forth: only a leader's own word
    counts."""
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
    """A peer that says that it leads and then takes nothing is believed again only after the grace time."""
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
    """The error that there is no leader tells what everybody said, so that wrong addresses, a wrong ident and elections
    differ."""
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


def test_what_was_left_of_a_time_is_rounded(client: ClientDriver, cluster: SimCluster) -> None:
    """A time-out that is the rest of another one is told without the digits that nobody gave."""
    cluster.elect(None)
    client.append(1, timeout=1.9999984)
    client.pass_time(2.0)
    [error] = client.outcomes[1]
    assert "no leader within 2 s: " in str(error)
    assert client.links == {}


def test_why_a_peer_refuses_is_told_while_it_is_asked_again(client: ClientDriver, cluster: SimCluster) -> None:
    """A peer that refused the connection, and said why, is asked again; the error tells why until it answers."""
    cluster.elect(None)
    for url in (TWO, THREE):
        cluster.peers[url].is_frozen = True
    client.append(1, timeout=1.0)
    client.settle()
    for url in (TWO, THREE):
        client.machine.link_lost(url, client.time, "does not know this client")
    cluster.peers[THREE].is_frozen = False
    client.pass_time(1.0)
    assert asked(client).count(TWO) > 1
    [error] = client.outcomes[1]
    assert f"{TWO} does not know this client; {THREE} says that nobody leads" in str(error)


@pytest.mark.parametrize("timeout", [0.5, 60.0])
def test_silent_peers_may_be_of_another_cluster(client: ClientDriver, cluster: SimCluster, timeout: float) -> None:
    """The error names a wrong cluster ident only if no peer answers, and at least one can be reached."""
    for url in (ONE, TWO):
        cluster.peers[url].is_frozen = True
    client.kill(THREE)
    client.append(1, timeout=timeout)
    client.pass_time(timeout)
    [error] = client.outcomes[1]
    assert f"{ONE} does not answer; {TWO} does not answer; {THREE} refused or broke the connection" in str(error)
    assert "check the setting cluster, which is " in str(error)


def test_an_answer_is_of_this_cluster(client: ClientDriver, cluster: SimCluster) -> None:
    """The error does not name a wrong ident once a peer has answered, even if all are silent then."""
    cluster.elect(None)
    client.append(1, timeout=2.0)
    client.pass_time(1.0)
    for peer in cluster.peers.values():
        peer.is_frozen = True
    client.pass_time(1.0)
    [error] = client.outcomes[1]
    assert "check the setting cluster" not in str(error)


def test_an_unreadable_answer_does_not_stop_the_search(client: ClientDriver, cluster: SimCluster) -> None:
    """The search goes on after an unreadable answer, as something else may listen at a seed."""
    cluster.elect(None)
    client.append(1, timeout=1.0)
    request_id = client.sent[0][1][0]
    client.machine.received(ONE, [request_id, b"\x01", b"\xc1"], client.time)
    client.pass_time(0.5)
    cluster.elect(cluster.peers[TWO])
    client.pass_time(0.5)
    assert client.outcomes[1] == [1]


def test_a_connection_that_neither_opens_nor_fails_is_made_anew(client: ClientDriver, cluster: SimCluster) -> None:
    """A connection that neither opens nor fails is made again, as a firewall may drop the first packets."""
    for peer in cluster.peers.values():
        peer.is_frozen = True
    client.append(1)
    client.pass_time(1.0)
    for peer in cluster.peers.values():
        peer.inbox.clear()  # what was eaten
        peer.is_frozen = False
    client.pass_time(3.0)
    assert client.outcomes[1] == [1]


def test_the_peers_are_refreshed_while_requests_pass(led: ClientDriver, cluster: SimCluster) -> None:
    """The list of peers is refreshed while requests pass, so that a client survives the exchange of all its peers."""
    cluster.listed = [["1", ONE], ["9", url_of(9)]]
    led.pass_time(31.0)
    led.append(2)
    led.settle()
    assert led.machine.peers == {"1": ONE, "9": url_of(9)}


# -- the leader is lost ------------------------------------------------------------------------------------------------


def test_another_leader_is_asked_alone_and_gets_everything(led: ClientDriver, cluster: SimCluster) -> None:
    """After "not the leader" with a name, that peer alone is asked and gets every request (the document's first
    recovery)."""
    cluster.elect(cluster.peers[TWO])
    del led.sent[:]
    led.append(2)
    led.append(3)
    led.settle()
    assert [led.outcomes[n] for n in (1, 2, 3)] == [[1], [2], [3]]
    assert asked(led) == [TWO]
    assert cluster.log == [b"1", b"2", b"3"]


def test_without_a_name_everybody_is_asked(led: ClientDriver, cluster: SimCluster) -> None:
    """After "not the leader" without a name, everybody is asked (the document's second recovery)."""
    cluster.elect(None)
    del led.sent[:]
    led.append(2)
    led.settle()
    assert sorted(set(asked(led))) == [ONE, TWO, THREE]
    cluster.elect(cluster.peers[THREE])
    led.pass_time(0.5)
    assert led.outcomes[2] == [2]


def test_a_broken_link_starts_the_search_at_once(led: ClientDriver, cluster: SimCluster) -> None:
    """A broken link starts the search at once, without waiting for a time-out."""
    led.append(2)
    led.kill(ONE)
    del led.sent[:]
    led.report_losses()
    assert asked(led) == [ONE, TWO, THREE]
    cluster.elect(cluster.peers[TWO])
    led.pass_time(0.1)
    assert led.outcomes[2] == [2]


def test_the_same_request_id_is_sent_again(led: ClientDriver, cluster: SimCluster) -> None:
    """The request is repeated with its id, and the new leader answers with the index at which the old one had committed
    it."""
    led.append(2)
    led.peer_works(ONE)  # committed, and the answer is lost with the link
    led.kill(ONE)
    cluster.elect(cluster.peers[TWO])
    led.pass_time(0.1)
    assert led.outcomes[2] == [2]
    assert cluster.log == [b"1", b"2"]
    ids = [frames[0] for url, frames in led.sent if frames[1] == UPDATE and frames[3] == b"2"]
    assert ids == [(2).to_bytes(12, "big")] * 2


def test_silence_makes_the_leader_suspect(led: ClientDriver, cluster: SimCluster) -> None:
    """After the response time-out of a leader that is silent on an open connection, the others are asked."""
    cluster.peers[ONE].is_frozen = True
    cluster.elect(cluster.peers[TWO])
    cluster.peers[ONE].believes = "1"
    led.append(2)
    led.pass_time(0.49)
    assert led.outcomes[2] == []
    led.pass_time(0.1)
    assert led.outcomes[2] == [2]


def test_a_leader_that_was_merely_slow_is_believed_after_the_grace_time(led: ClientDriver, cluster: SimCluster) -> None:
    """A slow leader is believed after the grace time if nobody else leads, and its answer to the first request still
    counts."""
    cluster.peers[ONE].is_frozen = True
    led.append(2)
    led.pass_time(0.6)
    cluster.peers[ONE].is_frozen = False
    led.pass_time(0.5)
    assert led.outcomes[2] == [2]
    assert cluster.log == [b"1", b"2"]


def test_a_deluded_leader_does_not_keep_the_client(led: ClientDriver, cluster: SimCluster) -> None:
    """A leader that is cut off from its peers, which accepts and never commits (facts 1.4), is left for the real
    one."""
    cluster.peers[ONE].is_deluded = True
    cluster.elect(cluster.peers[THREE])
    led.append(2)
    led.pass_time(1.0)
    assert led.outcomes[2] == [2]
    assert led.machine.leader_url == THREE


def test_order_survives_the_change_of_the_leader(client: ClientDriver, cluster: SimCluster) -> None:
    """Requests without an answer go to the new leader in the order of submission."""
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
    """No more requests than the window are on the wire, and the rest waits in this process."""
    client = ClientDriver(cluster, max_in_flight=2)
    client.append(0)
    client.settle()
    for number in range(1, 6):
        client.append(number)
    assert len(cluster.peers[ONE].inbox) == 2
    client.settle()
    assert [client.outcomes[n] for n in range(6)] == [[n + 1] for n in range(6)]


def test_only_the_window_is_on_the_wire_to_the_next_leader(cluster: SimCluster) -> None:
    """What is sent again counts as what is sent first: with a window of one the order holds over any leaders."""
    client = ClientDriver(cluster, max_in_flight=1)
    client.append(0)
    client.settle()
    for number in range(1, 6):
        client.append(number)
    cluster.elect(cluster.peers[TWO])
    while client.machine.leader_url != TWO:
        for url in cluster.peers:
            client.peer_works(url)
        client.receive_one()
    assert [frames[-1] for _, frames in cluster.peers[TWO].inbox] == [b"1"]
    client.settle()
    assert cluster.log == [b"%d" % n for n in range(6)]


def test_one_lost_answer_is_asked_for_again_while_the_leader_talks_to_others(
    led: ClientDriver, cluster: SimCluster
) -> None:
    """A single lost answer is requested again at a leader that answers others."""
    led.append(2)
    led.peer_works(ONE)
    led.to_client.clear()  # a peer drops answers when its queue is full
    led.pass_time(0.4)
    led.append(3)
    led.settle()
    led.pass_time(0.2)
    assert led.outcomes[2] == [2]
    assert led.machine.stats.searches == 1


def test_the_acceptance_resets_the_clock(led: ClientDriver, cluster: SimCluster) -> None:
    """Each *accepted* starts the response time-out again (ØMQ Raft protocol, RequestUpdate)."""
    request = led.append(2)
    cluster.peers[ONE].is_frozen = True
    for _ in range(4):
        led.pass_time(0.4)
        led.machine.received(ONE, [request.request_id, b"\x01"], led.time)
    assert led.machine.stats.searches == 1
    led.pass_time(0.6)
    assert led.machine.stats.searches == 2
