"""Both clients in other people's programs: frameworks, pools of processes, clocks that tests stop, notebooks.

Each program runs in a process of its own, as its users start it; most do what ``environment_scenario`` does.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.namespaces import as_stranger
from support.ports import reserved_port
from support.programs import run_program
from support.waiting import eventually

import statestore_client
from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer

pytestmark = [pytest.mark.ci, pytest.mark.turns(2)]

_PATHS = [str(Path(__file__).parent), str(Path(statestore_client.__file__).parents[1])]
_PATH = f"import sys\nsys.path[:0] = {_PATHS!r}\n"
_SCENARIO = "from environment_scenario import *\n"

#: Environment -> what it needs installed, what runs before the first import of a client, and the program.
_PROGRAMS: dict[str, tuple[str, str, str]] = {
    "gevent": (
        "gevent",
        "from gevent import monkey; monkey.patch_all()\n",
        """
        import gevent
        turns = []
        def others():
            while True:
                turns.append(gevent.sleep(0.01))
        with EmbeddedServer(faults=True) as server:
            for driver in ("native", "paho"):
                use_blocking(server, f"{server.url}?driver={driver}")
                with StateStoreClient(server.url, driver=driver) as store, store.watch("nothing comes") as events:
                    beside = gevent.spawn(others)
                    tasks = [gevent.spawn(store.set, f"key {n}", b"1") for n in range(20)]
                    gevent.joinall(tasks, raise_error=True)
                    del turns[:]
                    assert_equal(events.get(timeout=0.5), None)
                    assert_equal(len(turns) > 5, True)  # what waits lets the others work
                    beside.kill()
        """,
    ),
    "gevent and a log": (
        "gevent",
        "from gevent import monkey; monkey.patch_all()\n",
        """
        import gevent
        from raft_client import RaftClient
        from raft_client.server import EmbeddedCluster
        with EmbeddedCluster(size=1) as cluster, RaftClient(cluster.url) as log:
            gevent.joinall([gevent.spawn(log.append, b"%d" % n) for n in range(20)], raise_error=True)
            assert_equal(sum(entry.is_state for entry in log.entries()), 20)
        """,
    ),
    "freezegun": (
        "freezegun",
        "from freezegun import freeze_time\n",
        """
        import time
        from raft_client import RaftClient
        from raft_client.server import EmbeddedCluster
        with EmbeddedServer(faults=True) as server, EmbeddedCluster(size=1) as cluster:
            for day in ("2020-01-01", "2037-01-01"):  # pyzmq cannot count beyond 2038
                with freeze_time(day, real_asyncio=True):
                    stopped = time.monotonic()
                    use_blocking(server, server.url)
                    use_blocking(server, server.url + "?driver=paho")
                    with StateStoreClient(server.url) as store, store.watch("nothing comes") as events:
                        assert_equal(events.get(timeout=0.2), None)
                        with store.lock("kept", lease=0.6) as lease:
                            assert_equal(lease.ended.wait(1.0), False)  # it is renewed meanwhile
                    with RaftClient(cluster.url) as log:
                        log.append(b"1")
                    asyncio.run(use_asyncio(server, server.url))
                    assert_equal(time.monotonic(), stopped)
        """,
    ),
    "freezegun at import": (
        "freezegun",
        "from freezegun import freeze_time\nfrozen = freeze_time('2020-01-01')\nfrozen.start()\n",
        """
        with EmbeddedServer(faults=True) as server:
            use_blocking(server, server.url)
            with StateStoreClient(server.url) as store, store.watch("nothing comes") as events:
                assert_equal(events.get(timeout=0.2), None)
        """,
    ),
    "time-machine": (
        "time_machine",
        "import time_machine\n",
        """
        import time
        for day in ("2020-01-01", "2060-01-01"):
            with time_machine.travel(day, tick=False), EmbeddedServer(faults=True) as server:
                use_blocking(server, server.url)
                asyncio.run(use_asyncio(server, server.url))
                with StateStoreClient(server.url) as store, store.watch("nothing comes") as events:
                    assert_equal(events.get(timeout=0.2), None)
                    assert_equal(store.set("k", b"1").version.wall_ms // 1000, int(time.time()))  # versions travel, too
        """,
    ),
    "task groups and time-outs": (
        "anyio",
        "",
        """
        import anyio
        async def hold(store):
            async with store.lock("held", lease=30):
                await asyncio.sleep(60)
        async def watch(store):
            async with store.watch("nothing comes") as events:
                await events.get()
        async def fail():
            await asyncio.sleep(0.1)
            raise ValueError
        async def main():
            async with AsyncStateStoreClient(server.url, request_timeout=30) as store:
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(hold(store))
                        group.create_task(watch(store))
                        group.create_task(fail())
                except* ValueError:
                    pass
                for work in (hold, watch):
                    try:
                        async with asyncio.timeout(0.1):
                            await work(store)
                    except TimeoutError:
                        pass
                    with anyio.move_on_after(0.1) as scope:
                        await work(store)
                    assert_equal(scope.cancelled_caught, True)
                lock = store.lock("held", lease=30)
                assert_equal(await lock.try_acquire() is not None, True)  # each of them has given it back
                for number in range(100):  # cut off at any moment
                    try:
                        async with asyncio.timeout(number * 2e-5):
                            await store.set("cut off", b"%d" % number)
                    except TimeoutError:
                        pass
                async with anyio.create_task_group() as group:
                    for number in range(20):
                        group.start_soon(store.set, f"key {number}", b"1")
        with EmbeddedServer(faults=True) as server:
            anyio.run(use_asyncio, server, server.url)
            asyncio.run(main(), debug=True)
        """,
    ),
    "executors at exit": (
        "statestore_client",
        "",
        """
        import atexit, concurrent.futures.thread, time
        from concurrent.futures import ThreadPoolExecutor
        server = EmbeddedServer(faults=True).start()
        stores = [StateStoreClient(server.url, driver=driver).open() for driver in ("native", "paho")]
        leases = [store.lock(f"lock {n}", lease=5).acquire() for n, store in enumerate(stores)]
        def late(number):
            while not concurrent.futures.thread._shutdown:  # the interpreter waits for this job, and then ends
                time.sleep(0.01)
            stores[number].set("late", b"1", fencing_token=leases[number].fencing_token, timeout=20)
            use_once(server.url)
        pool = ThreadPoolExecutor(2)
        jobs = [pool.submit(late, number) for number in range(2)]
        @atexit.register
        def last():
            for job, store, lease in zip(jobs, stores, leases):
                job.result()
                store.set("last", b"1", timeout=20)
                lease.release(timeout=20)
                store.close()
            server.stop()
        """,
    ),
    "a pool that forks": (
        "billiard",
        "",
        """
        import billiard
        from raft_client import ForkedClientError as ForkedRaftClientError, RaftClient
        from raft_client.server import EmbeddedCluster
        from statestore_client import ForkedClientError
        own = None
        def task(number):
            global own
            for call, error in (
                (lambda: store.set("k", b"1"), ForkedClientError), (lambda: log.append(b"1"), ForkedRaftClientError)
            ):
                try:
                    call()
                except error as refused:
                    assert_equal("open a new one in the child process" in str(refused), True)
                else:
                    raise AssertionError("served")
            own = own or StateStoreClient(server.url).open()
            with own.lock("one at a time", lease=10) as lease:
                own.set(f"task {number}", b"1", fencing_token=lease.fencing_token)
            with RaftClient(cluster.url) as mine:
                mine.append(b"%d" % number)
        with (
            EmbeddedServer() as server, EmbeddedCluster(size=1) as cluster,
            StateStoreClient(server.url) as store, RaftClient(cluster.url) as log,
        ):
            with billiard.Pool(2, maxtasksperchild=2) as pool:
                pool.map(task, range(6))
                pool.close()
                pool.join()
            assert_equal(len(list(store.scan("task *"))), 6)
            assert_equal(sum(entry.is_state for entry in log.entries()), 6)
        """,
    ),
    "a notebook": (
        "nbclient",
        "",
        f"""
        import nbclient, nbformat
        cells = [
            {_PATH!r} + {_SCENARIO!r},
            "server = EmbeddedServer(faults=True).start()",
            "use_blocking(server, server.url)",
            "await use_asyncio(server, server.url)",
            "store = AsyncStateStoreClient(server.url)",
            "await store.open()\\nevents = store.watch('k')\\nawait events.__aenter__()",
            "await store.set('k', b'1')",  # another cell, the same loop
            "assert (await events.get(timeout=20)).value == b'1'",
            "await events.__aexit__(None, None, None)\\nawait store.close()\\nserver.stop()",
        ]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
        """,
    ),
    "a loop without add_reader": (
        "statestore_client",
        "",
        """
        from raft_client import AsyncRaftClient, BusyError as RaftBusyError
        from raft_client.server import EmbeddedCluster
        from statestore_client import BusyError
        class Proactor(asyncio.SelectorEventLoop):
            add_reader, add_writer = asyncio.AbstractEventLoop.add_reader, asyncio.AbstractEventLoop.add_writer
        asyncio.new_event_loop = asyncio.events.new_event_loop = Proactor
        async def be_refused(client, error):
            try:
                async with client:
                    raise AssertionError("opened")
            except error as refused:
                assert_equal("SelectorEventLoop" in str(refused), True)
        with EmbeddedServer(faults=True) as server, EmbeddedCluster(size=1) as cluster:  # in loops of their own
            use_blocking(server, server.url + "?driver=paho")
            asyncio.run(use_asyncio(server, server.url))
            asyncio.run(be_refused(AsyncStateStoreClient(server.url, driver="paho"), BusyError))
            asyncio.run(be_refused(AsyncRaftClient(cluster.url), RaftBusyError))
        """,
    ),
}


@pytest.mark.parametrize("environment", _PROGRAMS)
def test_programs_of_all_kinds(environment: str) -> None:
    """Both clients do all that they do, in each of these, or say what to do."""
    needed, before, program = _PROGRAMS[environment]
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    run_program(before + _PATH + _SCENARIO, program)


@pytest.mark.machine
def test_a_user_without_a_name_a_home_and_a_place_to_write() -> None:
    """Both clients and the embedded server need no HOME, no entry for the user, and no writable directory."""
    program = """
    import os, pwd
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        use_both()
        print("unknown")
    """
    assert "unknown" in run_program(_PATH + _SCENARIO, program, within=as_stranger)


_WSGI = """
import os
from statestore_client import ForkedClientError, StateStoreClient
inherited, own = StateStoreClient(os.environ["STORE"]).open(), None

def app(environ, start_response):
    global own
    try:
        inherited.get("k")
    except ForkedClientError:
        own = own or StateStoreClient(os.environ["STORE"]).open()
        with own.lock("lock", lease=5) as lease:
            own.set(f"worker {os.getpid()}", b"1", fencing_token=lease.fencing_token)
        start_response("200 OK", [])
        return [b"fine"]
"""


@pytest.mark.parametrize("worker", ["sync", "gthread", "gevent"])
def test_gunicorn_that_forks_a_loaded_program(tmp_path: Path, worker: str) -> None:
    """A client that gunicorn's workers inherit says so in each of them, and one of their own works."""
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    pytest.importorskip("gevent", reason="gevent is not installed")
    (tmp_path / "wsgi.py").write_text(_WSGI)
    options = ["--preload", "--workers=2", f"--worker-class={worker}", "--graceful-timeout=5", "--no-control-socket"]
    with (
        EmbeddedServer() as server,
        StateStoreClient(server.url) as store,
        _served(tmp_path, "gunicorn", "wsgi:app", *options, store=server.url) as url,
    ):
        eventually(lambda: _answer(url) == b"fine" and len(list(store.scan("worker *"))) == 2, "both workers")


_ASGI = """
import os
from contextlib import asynccontextmanager
from fastapi import FastAPI, Response
from statestore_client import AsyncStateStoreClient

store = AsyncStateStoreClient(os.environ["STORE"])

@asynccontextmanager
async def lifespan(app):
    async with store:
        yield

app = FastAPI(lifespan=lifespan)

@app.get("/ready")
async def ready(response: Response):
    response.status_code = 200 if store.state == "connected" else 503
    return str(store.state)

@app.get("/")
async def count():
    async with store.lock("lock", lease=5) as lease:
        await store.set("edition", "first", fencing_token=lease.fencing_token)
    return (await store.get("edition")).value.decode()
"""


def test_fastapi_with_all_that_uvicorn_has(tmp_path: Path) -> None:
    """A client lives as long as the lifespan, tells a probe how it is, and comes again when uvicorn loads anew."""
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    pytest.importorskip("watchfiles", reason="uvicorn[standard] is not installed")
    source = tmp_path / "asgi.py"
    source.write_text(_ASGI)
    with EmbeddedServer(faults=True) as server:
        options = ["--reload", "--reload-dir", str(tmp_path), "--lifespan=on", "--loop=uvloop"]
        with _served(tmp_path, "uvicorn", "asgi:app", *options, store=server.url) as url:
            eventually(lambda: _answer(url) == b'"first"', "the first edition")
            assert _answer(url + "ready") == b'"connected"'
            source.write_text(_ASGI.replace("first", "second"))
            eventually(lambda: _answer(url) == b'"second"', "the second edition")
        eventually(lambda: not any(session.is_connected for session in server.sessions.values()), "the end")


@contextmanager
def _served(folder: Path, module: str, app: str, *options: str, store: str) -> Iterator[str]:
    """The URL of a program that one of these servers runs. It ends by SIGTERM, or the test fails."""
    port = reserved_port()
    where = [f"--bind=127.0.0.1:{port}"] if module == "gunicorn" else [f"--port={port}"]
    environment = os.environ | {"STORE": store, "PYTHONPATH": os.pathsep.join([str(folder), *_PATHS])}
    command = [sys.executable, "-m", module, app, *where, *options]
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        try:
            yield f"http://127.0.0.1:{port}/"
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        except BaseException as error:
            error.add_note((folder / "output").read_text())
            raise
        finally:
            process.kill()
            process.wait()


def _answer(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return b"%d %s" % (error.code, error.read())
    except OSError:  # it does not listen yet
        return b""
