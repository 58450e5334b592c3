"""What the monitor is asked for: keys, sessions, watches, retained messages, peers of the log, sites; and what may be
done with them.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from monitor_requests import act, answer, ask
from support.waiting import eventually

from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import StateStoreClient
from statestore_client.errors import SettingsError
from statestore_client.server import AccessRules, EmbeddedServer, ReplicaSettings, SiteEndpoints

RULES = "user admin\nadmin\nread pump/*\nwrite pump/*\nuser clerk\nread *\n"
PASSWORDS = {"admin": "a", "clerk": "c"}


def test_keys_come_a_page_at_a_time_in_order() -> None:
    """All keys with a prefix are found, each once, over several pages; others and expired ones are not among them."""
    with EmbeddedServer(monitor_port=0) as server, StateStoreClient(server.url) as store:
        names = [f"pump/{number:03}" for number in range(250)]
        store.set_many([(name, "v") for name in [*names, "other", "q"]])
        found: list[str] = []
        query = {"prefix": "pump/"}
        while True:
            page = answer(server, "/keys", **query)
            found += [each["name"] for each in page["keys"]]
            if page["next"] is None:
                break
            query["at"] = page["next"]
        assert found == names


def test_a_key_has_its_value_version_token_expiry_watchers_and_changes() -> None:
    """Of one key everything is told; bytes arrive as they are, whatever they are."""
    value = bytes(range(256))
    with (
        EmbeddedServer(monitor_port=0) as server,
        StateStoreClient(server.url, client_id="w") as store,
        store.watch(b"\xff<b>"),
    ):
        token = store.lock("l").acquire().fencing_token
        store.set(b"\xff<b>", "before")
        version = store.set(b"\xff<b>", value, expiry=100, fencing_token=token).version
        found = answer(server, "/key", key=b"\xff<b>".hex())
        assert b64decode(found["value"]) == value
        assert found["name"] == r"\xff<b>"
        assert (found["key"]["version"], found["key"]["fence"]) == (str(version), str(token))
        assert 0 < found["key"]["left_ms"] <= 100_000
        assert found["watchers"] == ["w"]
        assert [(each["action"], each["client"], each["size"]) for each in found["changes"]] == [
            ("SET", "w", 256),
            ("SET", "w", 6),
        ]
        assert answer(server, "/key", key=b"missing".hex())["key"] is None


def test_values_are_for_users_that_may_read_them() -> None:
    """An admin sees the names of all keys, and the values of those that a read line covers."""
    with EmbeddedServer(monitor_port=0, passwords=PASSWORDS, acl=AccessRules.parse(RULES + "write *\n")) as server:
        with StateStoreClient(server.url, username="clerk", password="c") as store:
            store.set_many([("pump/1", "open"), ("secret", "hidden")])
        pump, secret = answer(server, "/keys", "admin:a")["keys"]
        assert (pump["value"], secret["name"], secret["value"]) == ("open", "secret", None)
        found = answer(server, "/key", "admin:a", key=b"secret".hex())
        assert (found["value"], found["changes"]) == (None, [])
        assert ask(server, "/keys", "clerk:c").status == 403


def test_watches_tell_how_far_behind_they_are() -> None:
    """A client that watches and takes nothing is behind by the notifications that wait for it."""
    with (
        EmbeddedServer(monitor_port=0) as server,
        StateStoreClient(server.url, client_id="w") as watcher,
        watcher.watch("k"),
    ):
        (found,) = answer(server, "/watches")["watches"]
        assert (found["client"], found["keys"], found["count"]) == ("w", ["k"], 1)
        assert answer(server, "/watches", skip="1") == {"watches": [], "next": None, "status": 200}


def test_sessions_and_retained_messages() -> None:
    """Sessions come with what waits for them, retained messages with their payloads as text."""
    with EmbeddedServer(monitor_port=0) as server, StateStoreClient(server.url, client_id="c"):
        server.publish("plant/<b>", b"\x00on", retain=True)
        (session,) = answer(server, "/sessions")["sessions"]
        assert (session["client_id"], session["was_connected"]) == ("c", True)
        (message,) = answer(server, "/retained", filter="plant/#")["messages"]
        assert (message["topic"], message["payload"], message["size"]) == ("plant/<b>", r"\x00on", 3)
        assert answer(server, "/retained", filter="nothing")["messages"] == []


def test_a_site_tells_its_mesh() -> None:
    """A site shows its areas and peers; another server says that it is not one."""
    endpoints = SiteEndpoints(name="rome", listen="tcp://127.0.0.1:*")
    with EmbeddedServer(monitor_port=0, site=endpoints) as rome:
        assert rome.site_url is not None
        oslo = SiteEndpoints(name="oslo", peers=(rome.site_url,))
        with EmbeddedServer(monitor_port=0, site=oslo):
            eventually(lambda: answer(rome, "/site")["areas"][0]["peers"], "oslo is there")
            (peer,) = answer(rome, "/site")["areas"][0]["peers"]
            assert peer["name"] == "oslo"
            eventually(lambda: answer(rome, "/site")["areas"][0]["peers"][0]["state"] == "initialized", "it is synced")
    with EmbeddedServer(monitor_port=0) as server:
        assert answer(server, "/site")["areas"] is None


def test_peers_of_the_log_say_how_far_they_are() -> None:
    """Each peer, wherever it runs, has its role, term and indexes; one that is down does not answer, also when there is
    no majority and so no leader. A server without a log says that it has none.
    """
    with (
        EmbeddedCluster(3, machine=BroadcastStateMachine) as cluster,
        EmbeddedServer(monitor_port=0, log=ReplicaSettings(log=cluster.seeds, id="a")) as server,
    ):

        def peers() -> dict[str, Any]:
            return {each["id"]: each["info"] for each in answer(server, "/log")["peers"] or ()}

        def leaders() -> list[str]:
            return [name for name, info in peers().items() if info and info["is_leader"]]

        eventually(lambda: len(peers()) == 3 and all(peers().values()), "all of them answer")
        leader = cluster.leader()
        eventually(lambda: leaders() == [leader], "one leads")
        with StateStoreClient(server.url) as store:
            store.set("k", "v")
        reached = peers()[leader]["last_index"]
        eventually(lambda: min(each["last_applied"] for each in peers().values()) >= reached, "none is behind")
        assert len({each["current_term"] for each in peers().values()}) == 1
        down = [name for name in cluster.running if name != leader]
        for name in down:
            cluster.kill(name)
        eventually(lambda: [name for name, info in peers().items() if info is None] == down, "two do not answer")
        eventually(lambda: not leaders(), "nobody leads")
        assert {each["url"] for each in answer(server, "/log")["peers"]} == set(cluster.seeds)
    with EmbeddedServer(monitor_port=0) as server:
        assert answer(server, "/log")["peers"] is None


@pytest.mark.parametrize(
    ("path", "query"),
    [("/keys", {"at": "xyz"}), ("/key", {"key": "0"}), ("/watches", {"skip": "-1"}), ("/retained", {"filter": "a#"})],
)
def test_questions_that_make_no_sense_are_answered(path: str, query: dict[str, str]) -> None:
    """A bad question gets 400 and says what is wrong."""
    with EmbeddedServer(monitor_port=0) as server:
        found = answer(server, path, **query)
        assert found["status"] == 400
        assert found["error"]


# -- actions ----------------------------------------------------------------------------------------------------------


def test_a_monitor_only_looks_unless_told_otherwise() -> None:
    """Without monitor_actions nothing can be done, by any method."""
    with EmbeddedServer(monitor_port=0) as server, StateStoreClient(server.url) as store:
        store.set("k", "v")
        assert act(server, "delete key", b"k".hex())[0] == 405
        assert ask(server, "/actions").status == 403
        assert store.get("k").value == b"v"


def test_breaking_a_lock_lets_the_next_contender_in(caplog: pytest.LogCaptureFixture) -> None:
    """A deleted lock goes to the one that waits, which hears of the deletion; the action is in the log."""
    with (
        EmbeddedServer(monitor_port=0, monitor_actions=True) as server,
        StateStoreClient(server.url) as store,
        StateStoreClient(server.url) as other,
        caplog.at_level(logging.WARNING, "statestore_client.server"),
    ):
        first = store.lock("lock", holder="first", lease=3600).acquire()
        store.guarded(first).set("state", "first's")
        assert act(server, "delete key", b"lock".hex()) == (200, {"done": True})
        second = other.lock("lock", holder="second").acquire(timeout=20)
        other.guarded(second).set("state", "second's")
        assert act(server, "delete key", b"state".hex()) == (200, {"done": True})  # it has a fencing token
        assert act(server, "delete key", b"state".hex()) == (200, {"done": False})
        assert store.get("state") is None
    actions = [record.fields for record in caplog.records if getattr(record, "event", "") == "monitor action"]
    assert [(each["action"], each["what"], each["done"]) for each in actions] == [
        ("delete key", "lock", True),
        ("delete key", "state", True),
        ("delete key", "state", False),
    ]


def test_a_deleted_key_stays_deleted(tmp_path: Path) -> None:
    """With a data directory, what the monitor deletes is gone after a restart, too."""
    first = EmbeddedServer(monitor_port=0, monitor_actions=True, data=tmp_path / "d")
    with first as server, StateStoreClient(server.url) as store:
        store.set_many([("k", "v"), ("kept", "v")])
        assert act(server, "delete key", b"k".hex()) == (200, {"done": True})
        assert store.get("k") is None
    with EmbeddedServer(data=tmp_path / "d") as server, StateStoreClient(server.url) as store:
        assert (store.get("k"), store.get("kept").value) == (None, b"v")


def test_a_session_can_be_ended() -> None:
    """The client is disconnected, its session and what it subscribed to are gone."""
    with (
        EmbeddedServer(monitor_port=0, monitor_actions=True) as server,
        StateStoreClient(server.url, client_id="c") as store,
    ):
        store.set("k", "v")
        before = server.counters.connects
        assert act(server, "end session", "c") == (200, {"done": True})
        assert act(server, "end session", "nobody") == (200, {"done": False})
        eventually(lambda: server.counters.connects > before, "it was disconnected, and comes again")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json", "Origin": "http://evil.example"},
        {"Content-Type": "text/plain", "Origin": "OWN"},
        {"Content-Type": "application/json"},
        {},
    ],
)
def test_other_pages_cannot_act(headers: dict[str, str]) -> None:
    """A request that a page of another site could make a browser send is refused."""
    with EmbeddedServer(monitor_port=0, monitor_actions=True) as server, StateStoreClient(server.url) as store:
        store.set("k", "v")
        sent = {name: server.monitor_url if value == "OWN" else value for name, value in headers.items()}
        assert act(server, "delete key", b"k".hex(), headers=sent)[0] == 403
        assert store.get("k").value == b"v"


def test_a_standby_names_the_server_that_can_act() -> None:
    """Two servers of one log, a is active: b does nothing, and says who would."""
    with EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster:
        first, second = (
            EmbeddedServer(monitor_port=0, monitor_actions=True, log=ReplicaSettings(log=cluster.seeds, id=each))
            for each in ("a", "b")
        )
        with first:
            eventually(lambda: first.is_active, "a is active")
            with second, StateStoreClient(second.url) as store:
                store.set("k", "v")
                status, said = act(second, "delete key", b"k".hex())
                assert (status, said) == (400, {"error": "this server stands by: ask the active one, a"})
                assert store.get("k").value == b"v"
                assert act(first, "delete key", b"k".hex()) == (200, {"done": True})
                assert store.get("k") is None


def test_actions_of_users_follow_their_rules() -> None:
    """An admin deletes what a write line covers, and nothing else; others are not let in at all."""
    rules = AccessRules.parse(RULES + "write *\n")
    with (
        EmbeddedServer(monitor_port=0, monitor_actions=True, passwords=PASSWORDS, acl=rules) as server,
        StateStoreClient(server.url, username="clerk", password="c") as store,
    ):
        store.set_many([("pump/1", "open"), ("secret", "hidden")])
        status, said = act(server, "delete key", b"secret".hex(), "admin:a")
        assert (status, "admin" in said["error"]) == (400, True)
        assert act(server, "delete key", b"pump/1".hex(), "admin:a") == (200, {"done": True})
        assert act(server, "delete key", b"secret".hex(), "clerk:c")[0] == 403
        assert act(server, "delete key", b"secret".hex())[0] == 401
        assert store.get("secret").value == b"hidden"


def test_actions_with_passwords_need_rules() -> None:
    """Where everybody with a password could act, the server does not start."""
    with (
        pytest.raises(SettingsError, match="admin"),
        EmbeddedServer(monitor_port=0, monitor_actions=True, passwords=PASSWORDS),
    ):
        pass


@pytest.mark.parametrize(("action", "what"), [("shut down", "x"), ("delete key", "zz"), ("delete key", "")])
def test_actions_that_make_no_sense_are_answered(action: str, what: str) -> None:
    """An unknown action and a bad key get 400, or nothing is done."""
    with EmbeddedServer(monitor_port=0, monitor_actions=True) as server:
        status, said = act(server, action, what)
        assert status == 400
        assert said["error"]
