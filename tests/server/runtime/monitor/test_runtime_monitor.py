"""The monitor over HTTP: its page, its stream, what it is asked for, what may be done with it, and who may do so."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from support.keys import Certificates
from support.waiting import eventually, until

from raft_client._common.http_server import _MOST_BEHIND
from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import FencingTokenRequiredError, FencingTokenTooOldError, StateStoreClient
from statestore_client.errors import SettingsError
from statestore_client.server import AccessRules, EmbeddedServer, ReplicaSettings, ServerTls, SiteEndpoints
from statestore_client.server.runtime.monitor import service
from statestore_client.server.runtime.monitor.pages import page_files
from statestore_client.server.runtime.monitor.tap import Tap
from statestore_client.wire.instant import Instant


def _request(
    server: EmbeddedServer, method: str, path: str, user: str | None, headers: dict[str, str], body: bytes | None = None
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(server.monitor_url).netloc, timeout=20)
    if user is not None:
        headers["Authorization"] = "Basic " + b64encode(user.encode()).decode()
    connection.request(method, path, body=body, headers=headers)
    return connection.getresponse()


def ask(server: EmbeddedServer, path: str, user: str | None = None, **headers: str) -> http.client.HTTPResponse:
    """A GET. The stream of events goes on as long as the response is read."""
    return _request(server, "GET", path, user, headers)


def answer(server: EmbeddedServer, path: str, user: str | None = None, **query: str) -> dict[str, Any]:
    """What a question is answered with; ``status`` is that of HTTP."""
    with ask(server, f"{path}?{urlencode(query)}", user) as response:
        return json.load(response) | {"status": response.status}


def act(
    server: EmbeddedServer, action: str, what: str, user: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """An action, with the headers of the page itself unless others are given."""
    own = {"Content-Type": "application/json", "Origin": server.monitor_url}
    body = json.dumps({"action": action, "what": what}).encode()
    with _request(server, "POST", "/actions", user, own if headers is None else headers, body) as response:
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.load(response) if is_json else {}


def events_of(response: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of a stream: names and messages."""
    name = ""
    for line in response:
        word, _, text = line.decode().rstrip("\n").partition(": ")
        if word == "event":
            name = text
        elif word == "data":
            yield name, json.loads(text)


# -- the monitor over http ---------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_from_elsewhere_and_is_small() -> None:
    """All files together are less than 150 kB; none names another host, and none makes markup from text."""
    files = page_files()
    assert set(files) >= {"/", "/index.html", "/main.js", "/monitor.css"}
    assert sum(len(page.body) for path, page in files.items() if path != "/") < 150_000
    for path, page in files.items():
        text = page.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("// ", ""), path
        for risky in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            " style=",
        ):
            assert risky not in text, (path, risky)


def test_each_answer_carries_the_policy() -> None:
    """The page, its files, what is missing and the stream all forbid scripts and styles that are not the page's own."""
    with EmbeddedServer(monitor_port=0) as server:
        for path, status in (
            ("/", 200),
            ("/main.js", 200),
            ("/nothing", 404),
            ("/../server.py", 404),
            ("/events", 200),
        ):
            response = ask(server, path)
            policy = response.headers["Content-Security-Policy"]
            assert response.status == status, path
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            response.close()


def test_a_viewer_sees_a_lock_change_hands_and_a_refused_write() -> None:
    """A new viewer is told everything; then each second what is new: holders, and refused writes."""
    with EmbeddedServer(monitor_port=0) as server, StateStoreClient(server.url, client_id="app") as store:
        first = store.lock("jobs/<script>", holder="first").acquire()
        store.guarded(first).set("state", "1")
        response = ask(server, "/events")
        events = events_of(response)
        name, hello = next(events)
        assert name == "hello"
        ((lock),) = hello["locks"]
        assert (lock["key"], lock["holdings"][0]["holder"]) == ("jobs/<script>", "first")
        assert lock["holdings"][0]["token"] == str(first.fencing_token)
        first.release()
        second = store.lock("jobs/<script>", holder="second").acquire()
        store.guarded(second).set("state", "2")
        with pytest.raises(FencingTokenTooOldError):
            store.set("state", "late", fencing_token=first.fencing_token)
        holders: set[str] = set()
        refusals: list[dict[str, Any]] = []
        while "second" not in holders or not refusals:
            name, tick = next(events)
            assert name == "tick"
            holders |= {each["holder"] for lock in tick["locks"] for each in lock["holdings"]}
            refusals += tick["refusals"]
        assert refusals[0]["holding"][:2] == ["jobs/<script>", "first"]
        assert refusals[0]["marked_by"][:2] == ["jobs/<script>", "second"]
        response.close()


def test_what_is_told_adds_up_to_what_a_new_viewer_sees() -> None:
    """Figures of the first message and of all later ones together are those that a new viewer is told."""
    with EmbeddedServer(monitor_port=0) as server, StateStoreClient(server.url) as store:
        response = ask(server, "/events")
        events = events_of(response)
        figures = next(events)[1]["figures"]
        for number in range(3):
            store.set("k", str(number))
        name = 'statestore_store_requests_total{command="set"}'
        while figures.get(name) != 3:
            figures |= next(events)[1]["figures"]
        response.close()
        other = ask(server, "/events")
        assert next(events_of(other))[1]["figures"][name] == 3
        other.close()


@pytest.mark.ci
def test_each_event_and_refusal_is_told_once() -> None:
    """A viewer hears of each client that comes and of each refused write once, whenever it has come itself."""
    with EmbeddedServer(monitor_port=0) as server, StateStoreClient(server.url, client_id="c") as store:
        lease = store.lock("l").acquire()
        token = lease.fencing_token
        responses, messages = [], []
        for number in range(3):
            store.set(f"k{number}", "v", fencing_token=token)
            with pytest.raises(FencingTokenRequiredError):
                store.set(f"k{number}", "v")
            responses.append(ask(server, "/events"))
            messages.append(events_of(responses[-1]))
        for each in messages:
            told = [message for _, message in zip(range(3), each, strict=False)]
            events = [event for _, message in told for event in message["events"] if event["kind"] == "connected"]
            refused = [refusal["key"] for _, message in told for refusal in message["refusals"]]
            assert [event["client"] for event in events] == ["c"]
            assert refused == ["k0", "k1", "k2"]
        for response in responses:
            response.close()


def test_a_viewer_that_reads_nothing_is_cut_off_and_holds_up_nobody() -> None:
    """What waits for a slow viewer is bounded: over the bound its connection ends, and the server goes on."""
    with EmbeddedServer(monitor_port=0) as server, StateStoreClient(server.url) as store:
        response = ask(server, "/events")
        monitor = server._running()._monitor
        assert monitor is not None
        eventually(lambda: monitor.viewers == 1, "the viewer is there")
        assert monitor._monitor is not None
        (viewer,) = monitor._monitor._viewers
        server._running().call(lambda: [viewer.send(b"x" * (_MOST_BEHIND // 4)) for _ in range(20)])
        eventually(lambda: monitor.viewers == 0, "the viewer is gone")
        store.set("k", "v")
        response.close()


@pytest.mark.attack("monitor", "a page of another site, by a name server that gives it our address")
def test_only_pages_with_our_name_get_in_where_nobody_has_to_prove_who_he_is() -> None:
    """Without passwords a request names this machine: a page of another site that borrows our address sees nothing."""
    with EmbeddedServer(monitor_port=0) as server:
        for host, status in (
            ("localhost:1", 200),
            ("127.0.0.1", 200),
            ("[::1]:80", 200),
            ("evil.example", 421),
            ("", 400),
            ("localhost]evil.example", 400),
            ("[::1]evil.example", 400),
        ):
            response = ask(server, "/events", Host=host)
            assert response.status == status, host
            response.close()


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85"])
@pytest.mark.attack("monitor", "a page that smuggles headers in")
def test_no_page_smuggles_a_header_in(separator: str) -> None:
    """``fetch()`` lets a page put these bytes into a header of its own: they do not begin another one."""
    smuggled = f"a{separator}Host: localhost{separator}Origin: http://localhost"
    action = b'{"action": "delete", "what": "k"}'
    with (
        EmbeddedServer(monitor_port=0, monitor_actions=True) as server,
        StateStoreClient(server.url) as store,
    ):
        store.set("k", "v")
        port = urlsplit(server.monitor_url).port
        for method, path, origin in (
            ("GET", "/keys", "http://evil.example"),
            ("POST", "/actions", "http://evil.example"),
            ("POST", "/actions", f"http://localhost:{port}1"),  # of another server on this machine
        ):
            host = "evil.example" if "evil" in origin else f"localhost:{port}"
            head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nX-A: {smuggled}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(action)}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", port or 0), 20) as sock:
                sock.sendall(head.encode("latin-1") + action)
                assert sock.recv(100).split()[1] in (b"400", b"403", b"421")
        assert store.get("k").value == b"v"


VIEWERS = "user admin\nadmin\nread *\nuser clerk\nread *\n"


@pytest.mark.attack("monitor", "see values, and holders of locks, without a right to read them")
def test_who_holds_a_lock_is_for_those_who_may_read_it() -> None:
    """It is the value of a key: an admin without a read line sees that there is a lock, and which clients want it."""
    lines = "user admin\nadmin\nread *\nuser auditor\nadmin\nread line/*\nuser pump\nread *\nwrite *\n"
    users = {"admin": "a", "auditor": "b", "pump": "c"}
    with (
        EmbeddedServer(monitor_port=0, passwords=users, acl=AccessRules.parse(lines)) as server,
        StateStoreClient(server.url, username="pump", password="c") as store,
    ):
        for key in ("line/1", "secret"):
            assert store.set(key, f"who holds {key}", condition="NX", expiry=60)
            assert not store.set(key, f"who wants {key}", condition="NX", expiry=60)
        seen: dict[str, str] = {}
        for user in ("admin:a", "auditor:b"):
            with ask(server, "/events", user) as response:
                events = events_of(response)
                messages = [next(events)[1] for _ in range(2)]
                seen[user] = json.dumps(messages)
                names = [{lock["key"] for lock in message["locks"]} for message in messages]
                assert {"line/1", "secret"} in names
        assert "who holds line/1" in seen["auditor:b"]
        assert "who wants line/1" in seen["auditor:b"]
        assert "who wants secret" in seen["admin:a"]
        assert "holds secret" not in seen["auditor:b"]
        assert "wants secret" not in seen["auditor:b"]
        assert "(hidden)" in seen["auditor:b"]


@pytest.mark.attack("monitor", "keep the right one out by guessing")
def test_wrong_passwords_keep_out_nobody_whose_password_was_right() -> None:
    """Somebody else at the same address guesses: who was let in before is let in."""
    with EmbeddedServer(monitor_port=0, passwords={"admin": "a"}) as server:
        assert ask(server, "/", "admin:a").status == 200
        statuses = {ask(server, "/", "admin:wrong").status for _ in range(30)}
        assert statuses == {401, 429}
        assert ask(server, "/", "admin:a").status == 200


def test_users_of_the_server_with_an_admin_line_may_look() -> None:
    """With passwords and rules: no password or a wrong one 401, no admin line 403; a user with that line sees it."""
    passwords = {"admin": "pässword", "clerk": "c"}
    with EmbeddedServer(monitor_port=0, passwords=passwords, acl=AccessRules.parse(VIEWERS)) as server:
        for user, status in (
            (None, 401),
            ("admin:wrong", 401),
            ("nobody:x", 401),
            ("clerk:c", 403),
            ("admin:pässword", 200),
        ):
            for path in ("/", "/events", "/monitor.css"):
                response = ask(server, path, user)
                assert response.status == status, (user, path)
                if status == 401:
                    assert response.headers["WWW-Authenticate"].startswith("Basic ")
                response.close()
        assert ask(server, "/", Authorization="Bearer x").status == 401
        assert ask(server, "/", Authorization="Basic !!!").status == 401


def test_other_machines_see_it_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others than this machine reach it, the server's certificate and users are those of the page, too."""
    monkeypatch.setattr("statestore_client.server.runtime.transport.listeners.is_local", lambda _host: False)
    made = Certificates(tmp_path)
    tls = ServerTls(cert_file=made.server_file, key_file=made.server_key_file)
    trust = ssl.create_default_context(cafile=made.ca_file)
    with EmbeddedServer(monitor_port=0, tls=tls, passwords={"a": "b"}) as server:
        address = urlsplit(server.monitor_url)
        assert address.scheme == "https"
        for headers, status in (({}, 401), ({"Authorization": "Basic " + b64encode(b"a:b").decode()}, 200)):
            connection = http.client.HTTPSConnection(address.netloc, context=trust, timeout=20)
            connection.request("GET", "/events", headers=headers)
            response = connection.getresponse()
            assert response.status == status
            if status == 200:
                name, _ = next(events_of(response))
                assert name == "hello"
            connection.close()
        with closing(http.client.HTTPConnection(address.netloc, timeout=20)) as plain:
            plain.request("GET", "/")
            with pytest.raises((http.client.HTTPException, OSError)):
                plain.getresponse()


@pytest.mark.attack("monitor", "guess passwords")
def test_somebody_who_guesses_passwords_is_stopped() -> None:
    """After too many wrong passwords an address is refused without any work."""
    with EmbeddedServer(monitor_port=0, passwords={"a": "b"}) as server:
        statuses = [ask(server, "/", f"a:{number}").status for number in range(30)]
        assert statuses[0] == 401
        assert statuses[-1] == 429


def test_streams_end_when_passwords_change(tmp_path: Path) -> None:
    """A user that is taken out of the password file sees no more."""
    from statestore_client.server.runtime.security.passwords import remove_user, set_password

    file = tmp_path / "users"
    set_password(file, "a", b"secret")
    set_password(file, "b", b"secret")
    with EmbeddedServer(monitor_port=0, passwords=file) as server:
        response = ask(server, "/events", "a:secret")
        assert response.status == 200
        remove_user(file, "a")
        assert _goes_on(response) is False
        assert ask(server, "/", "a:secret").status == 401
        assert ask(server, "/", "b:secret").status == 200


def _goes_on(response: http.client.HTTPResponse) -> bool:
    """Whether a stream has more than three minutes of messages; False as soon as it ends."""
    try:
        return sum(1 for _ in zip(range(200), events_of(response), strict=False)) == 200
    except (http.client.IncompleteRead, ConnectionError):
        return False


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"acl": AccessRules.parse(VIEWERS)}, "admin"),
        ({"token_verifier": lambda _token: "user"}, "tokens"),
        ({"monitor_actions": True, "passwords": {"a": "b"}}, "admin"),
    ],
)
def test_a_monitor_that_nobody_could_see_is_refused_at_the_start(options: dict[str, Any], why: str) -> None:
    """Where a browser cannot show what the server asks for, or everybody with a password could act, the server says so
    and does not start."""
    with pytest.raises(SettingsError, match=why), EmbeddedServer(monitor_port=0, **options):
        pass


def test_a_server_without_a_monitor_has_no_address_for_it() -> None:
    """Asking for the address of a monitor that is not there says what to do."""
    with EmbeddedServer() as server, pytest.raises(RuntimeError, match="monitor_port=0"):
        _ = server.monitor_url


@pytest.mark.ci
def test_a_durable_server_tells_how_long_its_disk_takes(tmp_path: Path) -> None:
    """With a data directory, the times of the batches that became durable are told; without, there are none."""
    for options in ({"data": tmp_path / "d"}, {}):
        with EmbeddedServer(monitor_port=0, **options) as server, StateStoreClient(server.url) as store:
            response = ask(server, "/events")
            told = []
            for _, (_, message) in zip(range(4), events_of(response), strict=False):
                store.set("k", "v")
                told.append(message["latency"].get("commit_p50", 0))
            response.close()
        assert any(told) is bool(options)


# -- what the monitor is asked for -------------------------------------------------------------------------------------

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
        lease = store.lock("l").acquire()
        token = lease.fencing_token
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


@pytest.mark.attack("monitor", "see values, and holders of locks, without a right to read them")
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


@pytest.mark.ci
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
@pytest.mark.attack("monitor", "actions of another page")
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


def test_what_makes_no_sense_is_answered() -> None:
    """A bad question, an unknown action and a bad key get 400 and what is wrong."""
    with EmbeddedServer(monitor_port=0, monitor_actions=True) as server:
        for path, query in (
            ("/keys", {"at": "xyz"}),
            ("/key", {"key": "0"}),
            ("/watches", {"skip": "-1"}),
            ("/retained", {"filter": "a#"}),
        ):
            found = answer(server, path, **query)
            assert (found["status"], bool(found["error"])) == (400, True), path
        for action, what in (("shut down", "x"), ("delete key", "zz"), ("delete key", "")):
            status, said = act(server, action, what)
            assert (status, bool(said["error"])) == (400, True), action


async def test_a_late_tick_says_how_late_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds up the loop of the server is told as its latency, with the next tick."""
    monkeypatch.setattr(service, "_EVERY_S", 0.01)
    instant = Instant(0.0, 1)
    one = service.Monitor(Tap(None), lambda: b"", dict, lambda: instant, lambda: None)

    def latest() -> float:
        return max(each["latency"]["late"] for each in one._hello()["history"])

    try:
        await until(lambda: len(one._hello()["history"]) > 1)
        time.sleep(0.2)  # noqa: ASYNC251 - what holds the loop up
        await until(lambda: latest() >= 180)
    finally:
        one.close()
