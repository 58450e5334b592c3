"""Changes of the cluster (Raft, §4.3; facts §1.4, ConfigUpdate)."""

from __future__ import annotations

import pytest
from node_cluster import NodeCluster, make_id, peers_of

from raft_client.server.node.ready import Ask, Connect, Disconnect, Output, Reply, Role
from raft_client.wire.client_requests import ConfigProposal, ConfigReply, ConfigUpdateReply, Outcome, RequestConfig
from raft_client.wire.configuration import ConfigChange, Peer, decode_config, encode_config
from raft_client.wire.frames import JsonValue, Message
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.peer_messages import AppendEntries
from raft_client.wire.streams import EntriesReply, EntriesStatus


def propose(cluster: NodeCluster, names: str, name: str = "", request_id: bytes | None = None) -> list[Message]:
    """Make these the members."""
    value: JsonValue = [[peer.id, peer.url] for peer in peers_of(names)]
    return propose_json(cluster, value, name, request_id)


def propose_json(
    cluster: NodeCluster, value: JsonValue, name: str = "", request_id: bytes | None = None
) -> list[Message]:
    return cluster.ask(name or cluster.leader, ConfigProposal(b"test", value), request_id or make_id(10**6))


def final(cluster: NodeCluster) -> Message:
    """The last word to a client that wanted another configuration."""
    return [each.message for each in cluster.answers if isinstance(each.message, ConfigUpdateReply)][-1]


def members(cluster: NodeCluster, name: str) -> str:
    """Those in force at this peer, the old ones before a colon."""
    change = cluster.nodes[name].configuration.change
    text = "".join(peer.id for peer in change.new)
    return text if change.old is None else "".join(peer.id for peer in change.old) + ":" + text


def test_a_peer_is_added_through_both_configurations() -> None:
    """Adding a peer is accepted, appends Cold,new with the client's id and, once that is committed, Cnew; then the
    client is told."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.start("d", peers_of("abc"))
    cluster.update(b"x")
    assert propose(cluster, "abcd") == [ConfigUpdateReply(Outcome.ACCEPTED), ConfigUpdateReply(Outcome.COMMITTED, 2)]
    cluster.run(0.5)
    joint, new = cluster.logs[leader].log[1:3]
    assert decode_config(joint.data) == ConfigChange(peers_of("abcd"), peers_of("abc"))
    assert joint.data.startswith(b"\x82\xa3old\x93\x92\xa1a")
    assert joint.request_id.raw == make_id(10**6)
    assert decode_config(new.data) == ConfigChange(peers_of("abcd"))
    assert new.request_id.seconds == 0, "the clock of a leader says nothing about ids"
    for name in "abcd":
        assert members(cluster, name) == "abcd"
        assert cluster.data(name) == [b"x"]
    assert cluster.nodes["d"].role is Role.FOLLOWER


@pytest.mark.parametrize("wall_s", [-1e9, 5e9])
def test_a_change_ends_whatever_the_clock_shows(wall_s: float) -> None:
    """A clock that shows 1938 or 2128, which no request id can hold, does not end the leader that appends Cnew."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.start("d", peers_of("abc"))
    cluster.isolate(leader)
    assert propose(cluster, "abcd", leader) == [ConfigUpdateReply(Outcome.ACCEPTED)]
    cluster.wall_s = wall_s
    cluster.heal()
    cluster.run_until(lambda: all(members(cluster, name) == "abcd" for name in "abcd"))


def test_a_leader_that_is_removed_hands_over_and_becomes_a_client() -> None:
    """A leader that is removed commits Cnew without counting itself, then hands over and steps down (Raft, §4.2.2)."""
    cluster = NodeCluster()
    leader = cluster.elect()
    others = "abc".replace(leader, "")
    cluster.update(b"x")
    assert propose(cluster, others)[-1] == ConfigUpdateReply(Outcome.COMMITTED, 2)
    cluster.run(0.05)
    assert cluster.nodes[leader].role is Role.CLIENT
    assert cluster.leader in others  # at once: it was asked to take over
    cluster.update(b"y")
    cluster.run(0.5)
    assert all(cluster.data(name) == [b"x", b"y"] for name in others)


def test_a_transition_that_was_not_committed_goes_when_its_entry_goes() -> None:
    """The configuration in force is the newest in the log, also after a transition was cut off (Raft, §4.1)."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.isolate(leader)
    propose(cluster, "abcd", leader)
    assert members(cluster, leader) == "abc:abcd"
    cluster.run(1.0)
    cluster.update(b"x")
    cluster.heal()
    cluster.run(1.0)
    assert members(cluster, leader) == "abc"
    assert final(cluster) == ConfigUpdateReply(Outcome.NOT_LEADER)


def test_connections_follow_the_configuration() -> None:
    """A connection is opened when the entry with its peer is appended, and closed when the peer is in neither list."""
    cluster = NodeCluster()
    leader, removed, _ = cluster.elected()
    outputs: list[Output] = []
    node = cluster.nodes[leader]
    send = node._state.outbox.send
    node._state.outbox.send = lambda output: (outputs.append(output), send(output))[1]  # type: ignore[method-assign, func-returns-value]
    cluster.start("d", peers_of("abc"))
    propose(cluster, "abcd".replace(removed, ""))
    cluster.run(0.5)
    changes = [output for output in outputs if isinstance(output, Connect | Disconnect)]
    assert changes == [Connect(peers_of("d")[0]), Disconnect(removed)]
    last = max(place for place, output in enumerate(outputs) if output == Disconnect(removed))
    assert not [each for each in outputs[last:] if isinstance(each, Ask) and each.peer_id == removed]


def test_what_waits_for_the_disk_is_not_asked_of_a_peer_that_was_removed_meanwhile() -> None:
    """A newcomer's follow-up that waits for its disk goes to nobody if its source leaves the cluster meanwhile."""
    cluster = NodeCluster("")
    cluster.start("d", peers_of("ab"))
    cluster.settle()
    _, ask = cluster.sent[-1]
    cluster.hold_disk("d")
    entries = [
        LogEntry.of(b"x", term=1, index=1),
        LogEntry.of(encode_config(ConfigChange(peers_of("bd"))), term=1, kind=EntryKind.CONFIG, index=2),
    ]
    reply = EntriesReply(EntriesStatus.MORE, 1, entries[:1])
    cluster.nodes["d"].step(Reply(ask.peer_id, ask.request_id, reply), cluster.now, cluster.wall_s)
    cluster.settle()
    cluster.ask("d", AppendEntries(b"test", "b", 1, 1, 1, 0, entries[1:]))
    assert members(cluster, "d") == "bd"
    cluster.sent.clear()
    cluster.release_disk("d")
    cluster.settle()
    assert ask.peer_id == "a"
    assert [each.peer_id for _, each in cluster.sent if each.peer_id == "a"] == []


@pytest.mark.parametrize(
    ("value", "name", "message"),
    [
        ({"a": 1}, "TypeError", "peers must be an array"),
        ([], "AssertionError", "at least one peer must be defined in a cluster"),
        (
            [5],
            "AssertionError",
            "peer must be an url string or a tuple [id, url] or an object with 'url' and 'id' properties",
        ),
        ([["", "tcp://127.0.0.1:1"]], "AssertionError", "peer id must be a non empty string"),
        ([[7, "tcp://127.0.0.1:1"]], "AssertionError", "peer id must be a non empty string"),
        ([["x", ""]], "AssertionError", "peer url must be a non empty string"),
        ([["x", "udp://127.0.0.1:1"]], "AssertionError", "peer url protocol must be tcp:"),
        ([["x", "ipc:///tmp/1.sock"]], "AssertionError", "peer url protocol must be tcp:"),
        ([["x", "tcp://me@127.0.0.1:1"]], "AssertionError", "peer url must have no auth"),
        ([["x", "tcp://127.0.0.1:1/y"]], "AssertionError", "peer url must have no path"),
        ([["x", "tcp://127.0.0.1:1#y"]], "AssertionError", "peer url must have no hash"),
        ([["x", "tcp://127.0.0.1"]], "AssertionError", "peer url port must be in range 1-65535"),
        ([["x", "tcp://127.0.0.1:65536"]], "AssertionError", "peer url port must be in range 1-65535"),
        ([["x", "tcp://0.0.0.0:1"]], "AssertionError", "peer url must not be a placeholder address"),
        ([["x", "tcp://[::]:1"]], "AssertionError", "peer url must not be a placeholder address"),
        ([["x", "tcp://localhost:1"]], "AssertionError", "peer url must have a valid ip address in hostname"),
        ([["x", "tcp://[fe80::1%a b]:1"]], "AssertionError", "peer url must have a valid ip address in hostname"),
        ([["x", "TCP://127.0.0.1:1"]], "AssertionError", "peer url protocol must be tcp:"),
        ([["x", "tcp://127.0.0.1:1"], ["x", "tcp://127.0.0.1:2"]], "AssertionError", "peer id must be unique"),
        ([["x", "tcp://127.0.0.1:1"], ["y", "tcp://127.0.0.1:1"]], "AssertionError", "peer url must be unique"),
        ([["a", "tcp://127.0.0.1:1"]], "AssertionError", "new peers must be consistent with current configuration"),
        ([["x", peers_of("a")[0].url]], "AssertionError", "new peers must be consistent with current configuration"),
        ([[each.id, each.url] for each in peers_of("abc")], "Error", "no change in cluster membership"),
    ],
)
def test_a_list_that_cannot_be_is_refused_in_the_words_of_the_node_peers(
    value: JsonValue, name: str, message: str
) -> None:
    """A list of peers that cannot be is refused with status 2 in the words of the Node peers, and nothing is
    appended."""
    cluster = NodeCluster()
    cluster.elect()
    reply = ConfigUpdateReply(Outcome.REFUSED, error_name=name, error_message=message)
    assert propose_json(cluster, value) == [reply]
    assert cluster.nodes[cluster.leader].status().last_index == 0


def test_peers_come_in_three_forms() -> None:
    """Peers may be given as URLs, arrays and objects, as with the Node peers."""
    cluster = NodeCluster()
    leader = cluster.elect()
    kept = [[each.id, each.url] for each in peers_of("abc")]
    url = "tcp://[::1]:8150"
    propose_json(cluster, [*kept, "tcp://127.0.0.1:8151", {"id": "y", "url": "tcp://127.0.0.1:8152"}, {"url": url}])
    assert cluster.nodes[leader].configuration.change.new[3:] == (
        Peer("tcp://127.0.0.1:8151", "tcp://127.0.0.1:8151"),
        Peer("y", "tcp://127.0.0.1:8152"),
        Peer(url, url),
    )


def test_another_order_is_a_change() -> None:
    """The same peers in another order are a change, as with the Node peers (facts §1.4)."""
    cluster = NodeCluster()
    cluster.elect()
    assert propose(cluster, "cba")[0] == ConfigUpdateReply(Outcome.ACCEPTED)
    cluster.run(0.2)
    assert {members(cluster, name) for name in "abc"} == {"cba"}


def test_one_change_at_a_time() -> None:
    """While a change is under way others are answered "busy", the same one "accepted", and one in the log "done"."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.isolate("d")
    cluster.lost = lambda ask: isinstance(ask.message, AppendEntries) and bool(ask.message.entries)
    assert propose(cluster, "abcd", leader, make_id(1)) == [ConfigUpdateReply(Outcome.ACCEPTED)]
    assert propose(cluster, "abce", leader, make_id(2)) == [ConfigUpdateReply(Outcome.BUSY)]
    assert propose(cluster, "abcd", leader, make_id(1)) == [ConfigUpdateReply(Outcome.ACCEPTED)]
    cluster.lost = lambda _: False
    cluster.run(0.2)
    assert final(cluster) == ConfigUpdateReply(Outcome.COMMITTED, 1)
    assert propose(cluster, "abcd", leader, make_id(1)) == [ConfigUpdateReply(Outcome.COMMITTED, 1)]


def test_a_transition_that_a_new_leader_inherits_is_busy_too() -> None:
    """A transition that a new leader inherits is answered "busy" before a wrong list is looked at, as by the Node
    peers."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.lost = lambda ask: isinstance(ask.message, AppendEntries) and bool(ask.message.entries)
    propose(cluster, "abcd", leader, make_id(1))
    cluster.nodes[leader]._membership._waiting = None
    assert propose_json(cluster, {"no": "list"}, leader, make_id(2)) == [ConfigUpdateReply(Outcome.BUSY)]


def test_ids_that_are_old_or_belong_to_something_else() -> None:
    """An expired id gets status 4, and the id of another entry status 2 with the Node peers' words."""
    cluster = NodeCluster()
    leader = cluster.elect()
    assert propose(cluster, "abcd", leader, make_id(1, 1.6e9)) == [ConfigUpdateReply(Outcome.EXPIRED)]
    cluster.isolate(leader)
    cluster.update(b"x", leader, make_id(5))
    refused = ConfigUpdateReply(Outcome.REFUSED, error_name="Error", error_message="wrong request id log entry type")
    assert propose(cluster, "abcd", leader, make_id(5)) == [refused]


def test_a_peer_without_a_key_is_not_admitted() -> None:
    """Where connections need keys, a peer whose key nobody has is refused."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.nodes[leader].admit_only(frozenset("abcd"))
    refused = ConfigUpdateReply(Outcome.REFUSED, error_name="Error", error_message="this peer has no key file e.key")
    assert propose(cluster, "abce") == [refused]
    assert propose(cluster, "abcd")[0] == ConfigUpdateReply(Outcome.ACCEPTED)


def test_while_the_cluster_changes_both_lists_are_told() -> None:
    """While the cluster changes, the list of peers is the union of both, the old ones first."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.lost = lambda ask: isinstance(ask.message, AppendEntries) and bool(ask.message.entries)
    propose(cluster, "cad", leader)
    assert cluster.ask(leader, RequestConfig(b"test")) == [ConfigReply(True, leader, peers_of("abcd"))]


def test_a_follower_names_the_leader() -> None:
    """A follower answers with status 0 and the id of the leader."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    assert propose(cluster, "abcd", follower) == [ConfigUpdateReply(Outcome.NOT_LEADER, leader_id=leader)]
