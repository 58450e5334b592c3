"""``zmqraft config | info | add-peer | remove-peer``, and naming the cluster."""

from __future__ import annotations

import json
import logging
import re
import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
import zmq.auth
from support.scripted_peers import LOG_INFO, PEERS, ScriptedCluster

from raft_client.server.embedded_cluster import EmbeddedCluster

Run = Any  # conftest.py has it


def test_the_peers_are_printed_with_a_star_at_the_leader(run: Run, peers: ScriptedCluster) -> None:
    """The peers are printed one a line, with a star at the leader."""
    peers.elect("2")
    urls = {name: peer.url for name, peer in peers.peers.items()}
    done = run("config")
    assert done.code == 0
    assert done.out.decode() == f"1 {urls['1']}\n2 {urls['2']} *\n3 {urls['3']}\n"
    assert json.loads(run("config", "--json").out) == {
        "leader_id": "2",
        "leader_url": urls["2"],
        "peers": [{"id": name, "url": url} for name, url in urls.items()],
    }


def test_urls_are_given_once_or_more_often(bare_run: Run, peers: ScriptedCluster) -> None:
    """``--url`` may be repeated or take several URLs with commas, and one peer that is up is enough."""
    first, _, third = peers.seeds.split(",")
    for arguments in (["--url", third], ["--url", first, "--url", third], ["--url", f"{first},{third}"]):
        assert bare_run("config", *arguments).code == 0


def test_a_peer_at_a_unix_socket_is_asked(bare_run: Run) -> None:
    """The commands take the URL of a Unix socket, for the cluster and for one peer of it."""
    with EmbeddedCluster(1, transport="ipc") as cluster:
        cluster.leader()
        assert bare_run("config", "--url", cluster.url).out.decode() == f"1 {cluster.url} *\n"
        assert bare_run("info", cluster.url, "--url", cluster.url).code == 0


def test_options_win_over_the_environment(run: Run, peers: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--url`` and ``--cluster`` win over their environment variables; ZMQRAFT_URL, called as STATESTORE_URL of the
    other tool, wins over the variable of the setting."""
    monkeypatch.setenv("ZMQRAFT_SEEDS", "tcp://127.0.0.1:1")
    monkeypatch.setenv("ZMQRAFT_URL", peers.seeds)
    assert run("config", "--timeout", "5").code == 0
    monkeypatch.setenv("ZMQRAFT_URL", "tcp://127.0.0.1:1")
    monkeypatch.setenv("ZMQRAFT_CLUSTER", "another one")
    assert run("config", "--url", peers.seeds, "--cluster", "").code == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "complaint"),
    [
        ([], {}, "no peer is named: give --url tcp://host:port, or set ZMQRAFT_URL"),
        (
            ["--url", "http://127.0.0.1"],
            {},
            "zmqraft: --url must be tcp://host:port or ipc:///path, not 'http://127.0.0.1'",
        ),
        (["--url", "tcp://h:1", "--url", "tcp://h:1"], {}, "zmqraft: --url must differ from each other"),
        (["--url", "tcp://h:1", "--timeout", "1e12"], {}, "zmqraft: --timeout must be seconds"),
        (
            [],
            {"ZMQRAFT_SEEDS": "127.0.0.1:8047"},
            "ZMQRAFT_SEEDS: seeds must be tcp://host:port or ipc:///path, not '127.0.0.1:8047'",
        ),
        (["--url", "tcp://h:1"], {"ZMQRAFT_MAX_IN_FLIGHT": "many"}, "ZMQRAFT_MAX_IN_FLIGHT must be a number"),
        (["--url", "tcp://h:1", "--timeout", "0"], {}, "--timeout"),
        (["--url", "tcp://h:1", "--timeout", "nan"], {}, "'--timeout': 'nan' is not a number of seconds"),
        (["--url", "tcp://h:1", "--timeout", "inf"], {}, "'--timeout': 'inf' is not a number of seconds"),
        (["--url", "tcp://h:1"], {"ZMQRAFT_CURVE_SERVER_KEY": "short"}, "must be a CURVE key"),
        (["--no-such-option"], {}, "No such option"),
    ],
)
def test_settings_that_cannot_work_are_exit_code_2(
    bare_run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], environment: dict[str, str], complaint: str
) -> None:
    """An impossible setting gives exit code 2 and a message with the option or the variable, and no output."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = bare_run("config", *arguments)
    assert (done.code, done.out) == (2, b"")
    assert complaint in done.err


def test_a_cluster_that_does_not_answer_is_exit_code_4(run: Run) -> None:
    """A cluster that does not answer, as with a wrong ident, gives exit code 4 and says what to check."""
    done = run("config", "--cluster", "another", "--timeout", "0.3")
    assert (done.code, done.out) == (4, b"")
    assert "no leader within 0.3 s" in done.err
    assert done.err.count("cluster") == 2, done.err  # "of another cluster: check the setting cluster"
    assert "check the setting cluster, which is 'another'; check the URLs, and ask each peer: zmqraft info" in done.err


def test_ping_tells_that_a_leader_answers(bare_run: Run, peers: ScriptedCluster) -> None:
    """Ping prints the leader's URL and its time, and gives exit code 4 after --wait if nobody leads."""
    done = bare_run("ping", "--url", peers.seeds)
    assert done.code == 0
    assert re.fullmatch(rb"tcp://127\.0\.0\.1:\d+ answered in \d+\.\d\d ms\n", done.out)
    [found] = [json.loads(line) for line in bare_run("ping", "--json", "--url", peers.seeds).out.splitlines()]
    assert found["url"].startswith("tcp://127.0.0.1:")
    assert found["answered_ms"] > 0
    assert bare_run("ping", "--url", "tcp://127.0.0.1:1", "--timeout", "0.3").code == 4
    assert bare_run("ping", "--url", "tcp://127.0.0.1:1", "--wait", "0.3").code == 4


def test_options_stand_before_the_command_as_well(bare_run: Run, peers: ScriptedCluster) -> None:
    """Options may stand before the command; those after it win, and both win over the environment."""
    assert bare_run("--url", peers.seeds, "--timeout", "5", "config").code == 0
    assert bare_run("--url", "tcp://127.0.0.1:1", "config", "--url", peers.seeds).code == 0
    assert bare_run("--url", peers.seeds, "--timeout", "5", "config", "--timeout", "0").code == 2
    done = bare_run("--json", "config")
    assert (done.code, "--json belongs after the command: zmqraft COMMAND --json" in done.err) == (2, True)
    done = bare_run("put", "k", "v")
    assert (done.code, "No such command 'put'; there are add-peer, append, " in " ".join(done.err.split())) == (2, True)


def test_the_keys_of_curve_are_options(bare_run: Run, tmp_path: Path) -> None:
    """The keys of CURVE are options, and the secret key is read from a file because other users see the command
    line."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    mine, my_secret = (key.decode() for key in zmq.curve_keypair())
    (tmp_path / "secret").write_text(my_secret + "\n")
    own = ("--curve-public-key", mine, "--curve-secret-key-file", str(tmp_path / "secret"))
    with ScriptedCluster(options={zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: secret.encode()}) as peers:
        assert bare_run("config", "--url", peers.seeds, "--curve-server-key", public).code == 0
        assert bare_run("--curve-server-key", public, *own, "append", "--data", "x", "--url", peers.seeds).code == 0
        assert bare_run("config", "--url", peers.seeds, "--timeout", "0.5").code == 4
        assert [entry[20:] for entry in peers.log] == [b"x"]
    for arguments, complaint in (
        (("--curve-server-key", "short"), "zmqraft: --curve-server-key must be a CURVE key"),
        (("--curve-public-key", mine), "zmqraft: --curve-public-key and --curve-secret-key-file belong together"),
        (("--curve-secret-key-file", "/no/file"), "zmqraft: --curve-secret-key-file '/no/file' cannot be read"),
        (("--curve-peer-key", "tcp://h:1=short"), "the key of tcp://h:1 in --curve-peer-key must be 40 characters"),
    ):
        done = bare_run("config", "--url", "tcp://h:1", *arguments)
        assert (done.code, complaint in done.err) == (2, True)


def test_a_certificate_has_both_keys_of_a_client(bare_run: Run, tmp_path: Path) -> None:
    """The file of the secret key may be a ZeroMQ certificate, and each peer may have a key of its own."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    public_file, secret_file = zmq.auth.create_certificates(tmp_path, "client")
    with ScriptedCluster(options={zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: secret.encode()}) as peers:
        keys = [argument for peer in peers.peers.values() for argument in ("--curve-peer-key", f"{peer.url}={public}")]
        options = ("--url", peers.seeds, "--curve-secret-key-file", secret_file)
        assert bare_run("append", "--data", "x", *keys, *options).code == 0
        assert bare_run("append", "--data", "y", "--curve-server-key", public, *options).code == 0
    done = bare_run("config", "--url", "tcp://h:1", "--curve-secret-key-file", public_file)
    assert (done.code, "has a public key only" in done.err) == (2, True)


# -- info --------------------------------------------------------------------------------------------------------------


def test_the_logs_of_all_peers_are_printed(run: Run, peers: ScriptedCluster) -> None:
    """``info`` prints a line for each peer with its whole URL, and who leads."""
    peers.fill(12)
    done = run("info")
    assert done.code == 0
    head, *rows = [line.split() for line in done.out.decode().splitlines()]
    assert head[:6] == ["peer", "url", "role", "term", "first", "applied"]
    assert [row[:6] for row in rows] == [
        [name, peer.url, "leader" if name == "1" else "follower", "1", "1", "12"] for name, peer in peers.peers.items()
    ]


def test_one_peer_is_named_by_id_or_url(run: Run, peers: ScriptedCluster) -> None:
    """``info`` of one peer, by id or URL, prints the protocol's numbers under their names as JSON."""
    numbers = [bytes([n]) for n in (7, 3, 9, 10, 11, 200, 2)]
    peers.script("2", LOG_INFO, lambda _: [[b"", msgpack.packb("1"), *numbers]])
    by_id, by_url = run("info", "2", "--json"), run("info", peers.peers["2"].url, "--json")
    assert by_id.out == by_url.out
    assert json.loads(by_id.out) == {
        "id": "2", "url": peers.peers["2"].url, "answered": True, "is_leader": False, "leader_id": "1",
        "current_term": 7, "first_index": 3, "last_applied": 9, "commit_index": 10, "last_index": 11,
        "snapshot_bytes": 200, "prune_index": 2,
    }  # fmt: skip
    assert run("info", "9").code == 2


def test_a_peer_that_is_down_is_exit_code_1(run: Run, peers: ScriptedCluster) -> None:
    """A peer that is down gives exit code 1, and the others are printed."""
    peers.freeze("3")
    done = run("info", "--timeout", "0.5")
    assert done.code == 1
    assert [line.split()[2:4] for line in done.out.decode().splitlines()[1:]] == [
        ["leader", "1"], ["follower", "1"], ["no", "answer"],
    ]  # fmt: skip


def test_info_works_without_a_leader(run: Run, peers: ScriptedCluster) -> None:
    """``info`` works without a leader."""
    peers.elect(None)
    done = run("info", "--json", "--timeout", "0.5")
    assert done.code == 0
    assert "no leader" in done.err
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [answer["url"] for answer in answers] == peers.seeds.split(",")
    assert not any(answer["is_leader"] for answer in answers)


# -- membership --------------------------------------------------------------------------------------------------------

#: What a peer answers to a change without a list, when none is under way.
NO_LIST = msgpack.packb({"name": "TypeError", "message": "peers must be an array"})
NEW = "tcp://127.0.0.1:8050"


def test_a_peer_is_added_and_removed(run: Run, peers: ScriptedCluster) -> None:
    """Adding and removing a peer sends the complete list, and prints it when it is in force."""
    before = list(peers.listed)
    added = run("add-peer", "4", NEW)
    assert added.code == 0
    assert peers.listed == [*before, ["4", NEW]]
    assert added.out.decode().splitlines()[3] == f"4 {NEW}"
    removed = run("remove-peer", "4", "--json")
    assert peers.listed == before
    assert [peer["id"] for peer in json.loads(removed.out)["peers"]] == ["1", "2", "3"]


def test_a_url_that_is_none_is_not_sent(run: Run, peers: ScriptedCluster) -> None:
    """A peer at an address that nobody can reach is a usage error, which shows what one looks like."""
    before = peers.listed
    for url in ("nonsense", "tcp://10.0.0.1", "tcp://10.0.0.1:0", "ipc:///a"):
        done = run("add-peer", "4", url)
        assert done.code == 2
        assert f"tcp://10.0.0.1:8047, and not '{url}'" in " ".join(done.err.split())
    assert peers.listed == before


def test_a_peer_that_is_just_being_removed_stays_removed(run: Run, peers: ScriptedCluster) -> None:
    """A peer that another change is removing stays removed: the new list is made when that change is over."""
    rest = peers.listed[:2]
    peers.begin_change(rest)
    end = threading.Timer(0.3, peers.end_change)
    end.start()
    done = run("add-peer", "4", NEW)
    end.join()
    assert (done.code, peers.listed) == (0, [*rest, ["4", NEW]])


def test_a_change_that_comes_in_between_is_waited_for(run: Run, peers: ScriptedCluster) -> None:
    """When the cluster is busy with another change after the members were read, the command asks again."""
    rest = peers.listed[:2]
    updates: list[bytes] = []

    def change(frames: list[bytes]) -> list[list[bytes]]:
        if frames[0] == b"\xc0":
            return [[b"\x02", NO_LIST]]
        updates.append(frames[0])
        if len(updates) == 1:
            peers.listed = rest
            return [[b"\x03"]]
        peers.listed = msgpack.unpackb(frames[0])
        return [[b"\x01"], [b"\x01", b"\x2a"]]

    peers.script("1", PEERS, change)
    done = run("add-peer", "4", NEW)
    assert (done.code, peers.listed) == (0, [*rest, ["4", NEW]])


def test_a_change_that_passes_while_the_list_is_read_is_noticed(run: Run, peers: ScriptedCluster) -> None:
    """A change that begins and ends while the list is read is noticed."""
    rest = peers.listed[:2]
    questions = 0

    def change(frames: list[bytes]) -> list[list[bytes]]:
        nonlocal questions
        if frames[0] != b"\xc0":
            peers.listed = msgpack.unpackb(frames[0])
            return [[b"\x01"], [b"\x01", b"\x2a"]]
        questions += 1
        if questions == 2:
            peers.listed = rest  # until then the removed peer was listed
        return [[b"\x02", NO_LIST]]

    peers.script("1", PEERS, change)
    done = run("add-peer", "4", NEW)
    assert (done.code, peers.listed) == (0, [*rest, ["4", NEW]])


def test_a_list_that_is_not_in_force_in_time_is_told(run: Run, peers: ScriptedCluster) -> None:
    """When a committed change is not in force in time, the command says so."""
    accepted = [[b"\x01"], [b"\x01", b"\x2a"]]
    peers.script("1", PEERS, lambda frames: [[b"\x02", NO_LIST]] if frames[0] == b"\xc0" else accepted)
    done = run("add-peer", "4", NEW, "--timeout", "0.3")
    assert done.code == 0
    assert "not in force yet" in done.err


@pytest.mark.parametrize("arguments", [("add-peer", "1", NEW), ("remove-peer", "4")])
def test_a_change_that_changes_nothing_is_exit_code_1(run: Run, peers: ScriptedCluster, arguments: list[str]) -> None:
    """Adding a member or removing a stranger changes nothing, gives exit code 1, and the message names the members."""
    before = list(peers.listed)
    done = run(*arguments)
    assert (done.code, done.out, peers.listed) == (1, b"", before)
    assert f"1 at {peers.peers['1'].url}" in done.err


def test_the_last_peer_stays(bare_run: Run) -> None:
    """The last peer is not removed, because a cluster without peers could never be changed again."""
    with ScriptedCluster(1) as single:
        done = bare_run("remove-peer", "1", "--url", single.seeds)
    assert done.code == 2
    assert "only peer" in done.err


def test_a_refused_list_is_exit_code_3(run: Run, peers: ScriptedCluster) -> None:
    """A list that the cluster refuses gives exit code 3 with the cluster's words."""
    refusal = msgpack.packb({"name": "ConfigError", "message": "url must be an IP"})
    peers.script("1", PEERS, lambda _: [[b"\x02", refusal]])
    done = run("add-peer", "4", NEW)
    assert done.code == 3
    assert "url must be an IP" in done.err


def test_a_transfer_in_a_program_leaves_its_log_as_it_was(bare_run: Run) -> None:
    """The command is silent about the leader that is lost; what comes later is logged again, also after an error."""
    logger = logging.getLogger("raft_client")
    before = logger.level
    with EmbeddedCluster(3) as cluster:
        other = next(peer.id for peer in cluster.peers if peer.id != cluster.leader())
        done = bare_run("transfer", other, "--url", cluster.url)
        assert (done.code, done.err) == (0, "")
        assert bare_run("transfer", "9", "--url", cluster.url).code != 0
    assert logger.level == before
