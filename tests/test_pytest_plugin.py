"""The fixtures for users' own tests; docs/how-to/test-your-app.md runs more of them."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from support.keys import Certificates

import statestore_client as package
from raft_client import pytest_plugin as raft_plugin
from statestore_client import AsyncStateStoreClient, StateStoreClient, pytest_plugin
from statestore_client.server import BrokerLimits, EmbeddedServer

FAILING = """
import pytest

def test_that_fails(statestore_sync_client, statestore_broker):
    statestore_broker.publish("site/temperature", "21.5")
    statestore_sync_client.set("pump-7", "on")
    assert False

def test_that_fails_on_the_server_of_the_session(statestore_session_server):
    statestore_session_server.publish("site/pressure", "1013")
    assert False

@pytest.mark.statestore_server(record_messages=0)
def test_that_records_nothing(statestore_broker):
    assert False

@pytest.mark.statestore_server("document")
def test_with_a_marker_that_names_nothing(statestore_broker):
    pass
"""

OF_THE_SESSION = """
import pytest
from statestore_client import StateStoreClient

urls = set()

@pytest.fixture(scope="session")
def statestore_session_options():
    return {"dialect": "document"}

@pytest.fixture
def app(statestore_session_server):
    with StateStoreClient(statestore_session_server.url) as client:
        yield client

@pytest.fixture
def written(app):
    app.set("k", "1")
    yield
    assert app.get("k").value == b"1"  # it is wiped after the fixtures of the test

@pytest.mark.parametrize("run", [1, 2, 3])
def test_nothing_is_left_from_the_test_before(app, written, statestore_session_server, run):
    statestore_session_server.publish("retained", str(run), retain=True)
    assert [m.text for m in statestore_session_server.messages if m.topic == "retained"] == [str(run)]
    assert [key for key in app.scan("*")] == [b"k"]
    app.set(f"left {run}", "")
    app.delete("k")
    app.set("k", "1")
    urls.add(statestore_session_server.url)
    assert len(urls) == 1

def test_each_test_can_have_its_own_as_well(app, statestore_server):
    assert app.get("k") is None
    assert statestore_server.url not in urls
"""

ASYNC = """
import pytest
{imports}
pytestmark = {mark}

async def test_a_connected_client(statestore_async_client, statestore_sync_client):
    await statestore_async_client.set("k", "1")
    assert (await statestore_async_client.get("k")).value == b"1"
    assert statestore_sync_client.get("k").value == b"1"
    assert await statestore_async_client.get("k")

async def test_each_test_has_its_own(statestore_async_client):
    assert await statestore_async_client.get("k") is None
"""

LOOPS = """
import asyncio
import pytest

loops = set()

async def check(client):
    loops.add(asyncio.get_running_loop())
    await client.set("k", "1")
    assert (await client.get("k")).value == b"1"

{mark}
async def test_first(statestore_async_client):
    await check(statestore_async_client)

{mark}
async def test_second(statestore_async_client):
    await check(statestore_async_client)

def test_the_loops():
    assert len(loops) == {loops}
"""

ADMITTED = """
import pytest
from statestore_client import AsyncStateStoreClient, NotAuthorizedError, StateStoreClient
from statestore_client.server import AccessRules, EmbeddedServer, ServerTls

USERS = {{"pump": "river-3-otter", "operator": "copper-nine"}}
RULES = AccessRules.parse("user pump\\nread *\\nuser operator\\nread *\\nwrite *\\n")
TLS = ServerTls(cert_file={c.server_file!r}, key_file={c.server_key_file!r})
MUTUAL = ServerTls(cert_file={c.server_file!r}, key_file={c.server_key_file!r}, ca_file={c.ca_file!r})
SHOWN = {{"tls_cert_file": {c.client_file!r}, "tls_key_file": {c.client_key_file!r}}}

server, client = pytest.mark.statestore_server, pytest.mark.statestore_client


@server(passwords=USERS)
def test_the_first_user(statestore_sync_client):
    statestore_sync_client.set("k", "v")

@server(passwords=USERS)
@pytest.mark.asyncio
async def test_the_first_user_in_a_coroutine(statestore_async_client):
    await statestore_async_client.set("k", "v")

@server(passwords=USERS, acl=RULES)
def test_the_first_user_may_not_do_everything(statestore_sync_client):
    with pytest.raises(NotAuthorizedError):
        statestore_sync_client.set("k", "v")

@server(passwords=USERS, acl=RULES)
@client(username="operator", password=USERS["operator"])
def test_another_user(statestore_sync_client):
    statestore_sync_client.set("k", "v")

@server(passwords=USERS, acl=RULES, tls=TLS)
@client(username="operator", password=USERS["operator"], client_id="panel-1")
def test_another_user_with_tls(statestore_server, statestore_sync_client):
    statestore_sync_client.set("k", "v")
    assert statestore_server.url.startswith("mqtts:")
    assert statestore_server.sessions["panel-1"].user == "operator"

@server(tls=TLS)
@pytest.mark.asyncio
async def test_tls_in_a_coroutine(statestore_async_client):
    await statestore_async_client.set("k", "v")

@server(tls=TLS, tls_port=0)
def test_tls_at_another_port(statestore_server, statestore_sync_client):
    statestore_sync_client.set("k", "v")

@server(tls=MUTUAL)
@client(**SHOWN)
def test_a_certificate_is_shown(statestore_sync_client):
    statestore_sync_client.set("k", "v")

@server(passwords=USERS, allow_anonymous=True)
def test_nobody_has_to_say_who_he_is(statestore_server, statestore_sync_client):
    assert [session.user for session in statestore_server.sessions.values()] == [None]

class TestAServerOfOnesOwn:
    @pytest.fixture
    def statestore_server(self):
        with EmbeddedServer(passwords=USERS, tls=TLS) as server:
            yield server

    def test_its_client_comes_in(self, statestore_server, statestore_sync_client):
        statestore_sync_client.set("k", "v")
        with StateStoreClient(statestore_server.url, **statestore_server.client_options) as other:
            assert other.get("k").value == b"v"

@server(tls=MUTUAL)
def test_nothing_is_shown(statestore_sync_client):
    pass

@server(passwords=USERS)
@client(username="pump", password="wrong")
@pytest.mark.asyncio
async def test_a_wrong_password(statestore_async_client):
    pass
"""

#: pytest-asyncio warns those who do not say so.
ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function")


def run(folder: Path, *options: str, expect: str) -> str:
    """Pytest on a folder, as after ``pip install``: the plugin is found by its entry point."""
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")
    info = folder / "site" / "statestore_as_installed-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: statestore-as-installed\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{setup['options.entry_points']['pytest11'].strip()}\n")
    # With CI or BUILD_NUMBER, Pytest prints each error once more in its summary.
    taken = {k for k in os.environ if k.startswith("PYTEST_") or k in {"CI", "BUILD_NUMBER"}}
    environment = {k: v for k, v in os.environ.items() if k not in taken}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(folder / "site"), str(Path(package.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "--strict-markers", "-q", "-rA"]
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert expect in done.stdout, done.stdout + done.stderr
    return done.stdout


def test_all_fixtures_share_one_server(
    statestore_server: EmbeddedServer, statestore_broker: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """All fixtures of a test use one server, on which faults can be set."""
    assert statestore_broker is statestore_server
    assert statestore_broker.host == "127.0.0.1"
    broken = statestore_broker.faults.drop("PUBACK")
    statestore_sync_client.set("k", "v")
    assert broken.hits == 1


async def test_the_asynchronous_client_is_on_that_server(
    statestore_async_client: AsyncStateStoreClient, statestore_sync_client: StateStoreClient
) -> None:
    """The asynchronous client is connected to the same server, in the event loop of the test."""
    assert str(statestore_async_client.state) == "connected"
    await statestore_async_client.set("k", "v")
    assert statestore_sync_client.get("k") is not None


@pytest.mark.statestore_server(broker_limits=BrokerLimits(maximum_qos=1), faults=False)
def test_a_test_can_have_a_server_of_its_own_kind(statestore_broker: EmbeddedServer) -> None:
    """The marker passes its arguments to the server of that test."""
    with pytest.raises(RuntimeError, match="faults=True"):
        _ = statestore_broker.faults


@pytest.mark.ci
@pytest.mark.parametrize(
    ("mode", "loop_of_tests", "loops"),
    [
        ("strict", "function", {"": 2, '(loop_scope="module")': 1, '(loop_scope="session")': 1}),
        ("auto", "session", {"": 1, '(loop_scope="function")': 2}),
    ],
)
def test_the_asynchronous_client_is_in_the_loop_of_its_test(
    tmp_path: Path, mode: str, loop_of_tests: str, loops: dict[str, int]
) -> None:
    """Whatever loop a test chooses, by its marker or by the configuration, its client is opened there."""
    for number, (chosen, count) in enumerate(loops.items()):
        mark = f"@pytest.mark.asyncio{chosen}" if chosen or mode == "strict" else ""
        (tmp_path / f"test_loops_{number}.py").write_text(LOOPS.format(mark=mark, loops=count))
    loop_of_fixtures = "session" if loop_of_tests == "function" else "function"
    options = [
        f"asyncio_mode={mode}",
        f"asyncio_default_test_loop_scope={loop_of_tests}",
        f"asyncio_default_fixture_loop_scope={loop_of_fixtures}",
    ]
    run(tmp_path, *(f"--override-ini={option}" for option in options), expect=f"{3 * len(loops)} passed")


@pytest.mark.ci
def test_clients_are_those_that_the_server_admits(tmp_path: Path) -> None:
    """A client of a fixture follows the passwords and the certificate of its server, or says itself who it is. One that
    is not admitted says how that is done.
    """
    (tmp_path / "test_admitted.py").write_text(ADMITTED.format(c=Certificates(tmp_path)))
    shown = run(tmp_path, *ASYNCIO, expect="10 passed, 2 errors")
    assert shown.count("settings for the client of a fixture: @pytest.mark.statestore_client(username=..., ...)") == 2


@pytest.mark.ci
def test_no_fixture_has_the_name_of_a_package() -> None:
    """Every fixture's name begins with our prefix: a parameter named like a package would hide the package in the
    test."""
    names = [name for name in pytest_plugin.__all__ if not name.startswith("pytest_")]
    assert len(names) == 6
    assert all(name.startswith("statestore_") for name in names)
    assert not set(names) & packages_distributions().keys()
    assert [name for name in names if PathFinder.find_spec(name) is not None] == []


@pytest.mark.ci
def test_a_failed_test_shows_what_was_published(tmp_path: Path) -> None:
    """The report of a failed test has a section with the recorded messages, or says that none was recorded."""
    (tmp_path / "test_failing.py").write_text(FAILING)
    shown = run(tmp_path, "-p", "no:asyncio", expect="3 failed, 1 error")
    assert "takes options by name only, not ('document',)" in shown
    assert "MQTT messages" in shown
    assert "the server: site/temperature b'21.5'" in shown
    assert "the server: site/pressure b'1013'" in shown
    assert "pump-7" in shown
    assert "not recorded" in shown


def test_a_server_of_the_session_is_wiped_after_each_test(tmp_path: Path) -> None:
    """A server of the session loses its keys, retained and recorded messages after each test's own fixtures have
    ended."""
    (tmp_path / "test_session.py").write_text(OF_THE_SESSION)
    run(tmp_path, "-p", "no:asyncio", expect="4 passed")


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_an_asynchronous_client_with_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    """The asynchronous client works with pytest-asyncio in both of its modes."""
    (tmp_path / "test_asynchronous.py").write_text(ASYNC.format(imports="", mark="pytest.mark.asyncio"))
    run(tmp_path, *ASYNCIO, "--asyncio-mode", mode, expect="2 passed")


@pytest.mark.ci
def test_an_asynchronous_client_with_anyio(tmp_path: Path) -> None:
    """The asynchronous client works with anyio's plugin, in the loop of the test, with or without pytest-asyncio beside
    it."""
    pytest.importorskip("anyio", reason="anyio is not installed")
    text = ASYNC.format(
        imports="@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n", mark="pytest.mark.anyio"
    )
    (tmp_path / "test_asynchronous.py").write_text(text)
    run(tmp_path, *ASYNCIO, expect="2 passed")


@pytest.mark.ci
def test_an_asynchronous_client_needs_somebody_to_run_it(tmp_path: Path) -> None:
    """Neither pytest-asyncio nor anyio is required; without both, the asynchronous client's error says what to
    install."""
    (tmp_path / "test_asynchronous.py").write_text("def test_it(statestore_async_client):\n    pass\n")
    shown = run(tmp_path, "-p", "no:asyncio", "-p", "no:anyio", expect="1 error")
    assert "pip install pytest-asyncio" in shown


LOGS = """
import pytest
from raft_client import AsyncRaftClient

def test_one_peer_is_enough(raft_cluster, raft_sync_client):
    assert raft_cluster.running == ("1",)
    assert raft_sync_client.append(b"x") == 1

@pytest.mark.raft_cluster(transport="ipc")
def test_another_needs_no_port(raft_cluster, raft_sync_client):
    assert raft_cluster.url.startswith("ipc://")
    assert raft_sync_client.append(b"x") == 1

@pytest.mark.raft_cluster(size=3, cluster="plant")
def test_a_test_says_what_it_needs(raft_cluster, raft_sync_client):
    assert raft_cluster.leader() in raft_cluster.running == ("1", "2", "3")
    assert raft_sync_client.append(b"x") > 0

@pytest.mark.asyncio
async def test_each_test_has_its_own(raft_cluster):
    async with AsyncRaftClient(raft_cluster.url) as log:
        assert await log.append(b"y") == 1

@pytest.mark.raft_cluster(3)
def test_with_a_marker_that_names_nothing(raft_cluster):
    pass
"""


def test_each_test_has_a_log_of_its_own(tmp_path: Path) -> None:
    """The fixtures of a log are a cluster and a client; the marker passes its arguments by name."""
    (tmp_path / "test_logs.py").write_text(LOGS)
    shown = run(tmp_path, *ASYNCIO, expect="4 passed, 1 error")
    assert "takes options by name only, not (3,)" in shown


@pytest.mark.ci
def test_the_fixtures_of_a_log_can_be_turned_off(tmp_path: Path) -> None:
    """With ``-p no:raft_client`` the fixtures of a log are unknown, and none has the name of a package."""
    (tmp_path / "test_it.py").write_text("def test_it(raft_cluster):\n    pass\n")
    shown = run(tmp_path, "-p", "no:raft_client", "-p", "no:asyncio", expect="1 error")
    assert "fixture 'raft_cluster' not found" in shown
    assert not set(raft_plugin.__all__) & packages_distributions().keys()


@pytest.mark.ci
def test_the_plugin_can_be_turned_off(tmp_path: Path) -> None:
    """With ``-p no:statestore_client`` the fixtures and the marker are unknown."""
    (tmp_path / "test_it.py").write_text("def test_it(statestore_server):\n    pass\n")
    name = "no:statestore_client"
    shown = run(tmp_path, "-p", name, "-p", "no:asyncio", expect="1 error")
    assert "fixture 'statestore_server' not found" in shown
    page = (Path(__file__).parents[1] / "docs/how-to/test-your-app.md").read_text()
    assert f"pytest -p {name}" in page
