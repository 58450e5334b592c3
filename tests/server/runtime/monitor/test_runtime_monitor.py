"""The monitor over HTTP: its page, its stream, and who may see them."""

from __future__ import annotations

import http.client
import ssl
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from monitor_requests import ask, events_of
from support.keys import Certificates
from support.waiting import eventually

from statestore_client import FencingTokenRequiredError, FencingTokenTooOldError, StateStoreClient
from statestore_client.errors import SettingsError
from statestore_client.server import AccessRules, EmbeddedServer, ServerTls
from statestore_client.server.runtime.monitor.pages import page_files
from statestore_client.server.runtime.observability.http_endpoint import _MOST_BEHIND


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


def test_each_event_and_refusal_is_told_once() -> None:
    """A viewer hears of each client that comes and of each refused write once, whenever it has come itself."""
    with EmbeddedServer(monitor_port=0) as server, StateStoreClient(server.url, client_id="c") as store:
        token = store.lock("l").acquire().fencing_token
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


def test_only_pages_with_our_name_get_in_where_nobody_has_to_prove_who_he_is() -> None:
    """Without passwords a request names this machine: a page of another site that borrows our address sees nothing."""
    with EmbeddedServer(monitor_port=0) as server:
        for host, status in (
            ("localhost:1", 200),
            ("127.0.0.1", 200),
            ("[::1]:80", 200),
            ("evil.example", 421),
            ("", 421),
        ):
            response = ask(server, "/events", Host=host)
            assert response.status == status, host
            response.close()


RULES = "user admin\nadmin\nread *\nuser clerk\nread *\n"


def test_users_of_the_server_with_an_admin_line_may_look() -> None:
    """With passwords and rules: no password or a wrong one 401, no admin line 403; a user with that line sees it."""
    passwords = {"admin": "pässword", "clerk": "c"}
    with EmbeddedServer(monitor_port=0, passwords=passwords, acl=AccessRules.parse(RULES)) as server:
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


def test_somebody_who_guesses_passwords_is_stopped() -> None:
    """After too many wrong passwords an address is refused without any work."""
    with EmbeddedServer(monitor_port=0, passwords={"a": "b"}) as server:
        statuses = [ask(server, "/", f"a:{number}").status for number in range(30)]
        assert statuses[0] == 401
        assert statuses[-1] == 429


def test_streams_end_when_passwords_change(tmp_path: Path) -> None:
    """A user that is taken out of the password file sees no more."""
    from statestore_client.server.runtime.security.password_file import remove_user, set_password

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
        ({"acl": AccessRules.parse(RULES)}, "admin"),
        ({"token_verifier": lambda _token: "user"}, "tokens"),
    ],
)
def test_a_monitor_that_nobody_could_see_is_refused_at_the_start(options: dict[str, Any], why: str) -> None:
    """Where a browser cannot show what the server asks for, the server says so and does not start."""
    with pytest.raises(SettingsError, match=why), EmbeddedServer(monitor_port=0, **options):
        pass


def test_a_server_without_a_monitor_has_no_address_for_it() -> None:
    """Asking for the address of a monitor that is not there says what to do."""
    with EmbeddedServer() as server, pytest.raises(RuntimeError, match="monitor_port=0"):
        _ = server.monitor_url


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
