"""Both clients in the environments that programs run in: other event loops, options of Python, what a system lacks.

Each environment runs the same scenario in a process of its own (``environment_scenario``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.ports import reserved_port
from support.programs import run_program

import statestore_client

pytestmark = [pytest.mark.ci, pytest.mark.turns(2)]

_PATHS = [str(Path(__file__).parent), str(Path(statestore_client.__file__).parents[1])]
_HEAD = f"""
import sys
sys.path[:0] = {_PATHS!r}
from environment_scenario import *
"""


@pytest.mark.parametrize("driver", ["native", "paho"])
@pytest.mark.parametrize(
    "options",
    [(), ("-O",), ("-OO",), ("-W", "error"), ("-bb", "-X", "dev"), ("-I",), ("-X", "utf8=0")],
    ids=lambda options: " ".join(options) or "plain",
)
def test_options_of_python(options: tuple[str, ...], driver: str) -> None:
    """Both clients work without assertions, and with each check of Python that programs switch on."""
    assert "fine" in run_program(_HEAD, f"use_both('?driver={driver}')", *options)


@pytest.mark.parametrize("driver", ["native", "paho"])
def test_uvloop(driver: str) -> None:
    """The asyncio client works on uvloop, whose transports inherit from nothing of asyncio's."""
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    program = f"""
    import uvloop
    with EmbeddedServer(faults=True) as server:
        uvloop.run(use_asyncio(server, server.url + "?driver={driver}"))
    print("fine")
    """
    assert "fine" in run_program(_HEAD, program)


def test_asyncio_in_debug_mode() -> None:
    """The asyncio client works where asyncio checks itself."""
    program = """
    with EmbeddedServer(faults=True) as server:
        asyncio.run(use_asyncio(server, server.url), debug=True)
    print("fine")
    """
    assert "fine" in run_program(_HEAD, program)


@pytest.mark.machine
@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks() -> None:
    """Callbacks of watches and leases work in a loop whose tasks begin at once."""
    program = """
    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        await use_asyncio(server, server.url)
    with EmbeddedServer(faults=True) as server:
        asyncio.run(main())
    print("fine")
    """
    assert "fine" in run_program(_HEAD, program)


def test_a_full_default_executor() -> None:
    """Connecting by address or by name waits for no job of the application's, and a lease outlives an outage."""
    program = """
    import threading, time
    from concurrent.futures import ThreadPoolExecutor
    async def main():
        loop, over = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        jobs = [loop.run_in_executor(None, over.wait) for _ in range(3)]
        try:
            for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
                async with AsyncStateStoreClient(url, connect_timeout=10) as store:
                    await store.set("k", b"1", timeout=10)
                    async with store.lock("lock", lease=30) as lease:
                        server.faults.cut(0, client_id=store.client_id, times=1)
                        await store.set("k", b"2", timeout=10)
                        lease.check()
        finally:
            over.set()
            await asyncio.gather(*jobs)
    with EmbeddedServer(faults=True) as server:
        asyncio.run(main())
    print("fine")
    """
    assert "fine" in run_program(_HEAD, program)


def test_anyio_and_trio() -> None:
    """On asyncio, anyio is as good as any; under trio the error says what to do."""
    pytest.importorskip("trio", reason="trio is not installed")
    program = """
    import anyio, trio
    from raft_client import AsyncRaftClient, BusyError as RaftBusyError
    from statestore_client import BusyError
    async def under_trio():
        for client, error in (
            (AsyncStateStoreClient(server.url), BusyError), (AsyncRaftClient("tcp://127.0.0.1:1"), RaftBusyError)
        ):
            try:
                async with client:
                    raise AssertionError("opened")
            except error as refused:
                assert_equal("trio" in str(refused), True)
    with EmbeddedServer(faults=True) as server:
        anyio.run(use_asyncio, server, server.url)
        trio.run(under_trio)
    print("fine")
    """
    assert "fine" in run_program(_HEAD, program)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_a_program_starts(method: str) -> None:
    """A child that is forked or started anew opens a client of its own."""
    program = f"""
    import multiprocessing
    if __name__ == "__main__":
        with EmbeddedServer() as server, StateStoreClient(server.url) as store:
            child = multiprocessing.get_context({method!r}).Process(target=use_once, args=(server.url,))
            child.start()
            child.join()
            assert_equal(child.exitcode, 0)
            assert_equal(store.get("from a child").value, b"1")
        print("fine")
    """
    assert "fine" in run_program(_HEAD, program)


def test_what_a_system_lacks() -> None:
    """Both clients work without HOME, with the C locale, few descriptors, and closed standard streams."""
    program = """
    import os, resource
    os.environ.pop("HOME", None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    out = os.dup(1)
    for number in (0, 1, 2):
        os.close(number)
    sys.stdin = sys.stdout = sys.stderr = None
    with EmbeddedServer(faults=True) as server:
        use_blocking(server, server.url)
        asyncio.run(use_asyncio(server, server.url))
    os.write(out, b"fine")
    """
    environment = "import os; os.environ.update(LC_ALL='C', LANG='C')\n"
    assert "fine" in run_program(environment + _HEAD, program)


#: A program that sees what Windows has: no fork, few signals, and a loop that watches no descriptors.
_AS_ON_WINDOWS = """
import os, signal, threading
del signal.SIGHUP, os.register_at_fork
def refuse(self, number, callback, *arguments):
    raise NotImplementedError
asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = refuse
class Proactor(asyncio.SelectorEventLoop):
    add_reader, add_writer = asyncio.AbstractEventLoop.add_reader, asyncio.AbstractEventLoop.add_writer
asyncio.new_event_loop = asyncio.events.new_event_loop = Proactor
"""


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("statestore_client", "statestore serve --port 0 --monitor-port 0"),
        ("raft_client", "zmqraft serve --id 1 --data {folder}/log --peer 1=tcp://127.0.0.1:{port}"),
    ],
)
def test_servers_of_a_platform_that_lacks_much(tmp_path: Path, package: str, command: str) -> None:
    """A server starts, says so, and ends with SIGTERM without SIGHUP, handlers of the loop and add_reader."""
    arguments = command.format(folder=tmp_path, port=reserved_port()).split()
    program = f"""
    from {package}.cli import main
    reads, writes = os.pipe()
    told = os.dup(1)
    os.dup2(writes, 1)
    def listen():  # ends the server when it says that it is ready
        while b"://" not in (said := os.read(reads, 10_000)):
            os.write(told, said)
        os.write(told, said)
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=listen, daemon=True).start()
    sys.argv = {arguments!r}
    try:
        main()
    except SystemExit as end:
        assert_equal(end.code or 0, 0)
    os.write(told, b"fine")
    """
    output = run_program(_HEAD + _AS_ON_WINDOWS, program)
    assert "fine" in output
    assert "://" in output


def test_the_pool_of_executors_on_a_platform_without_fork() -> None:
    """Spark's workers borrow clients, and give them back, where nothing can be registered for a fork."""
    program = """
    from statestore_client import ConnectionSettings
    from statestore_client.spark.pool import POOL, PoolKey
    with EmbeddedServer() as server:
        key = PoolKey(ConnectionSettings.from_url(server.url))
        for number in range(2):
            with POOL.borrow(key) as loan:
                loan.client.set("k", b"%d" % number)
        assert_equal(len(POOL), 1)
        POOL.clear()
    print("fine")
    """
    assert "fine" in run_program(_HEAD + _AS_ON_WINDOWS, program)


@pytest.mark.machine
def test_ipv6_alone(tmp_path: Path) -> None:
    """A server that listens on ::1 alone is reached by its address in brackets."""
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this system has no IPv6")
    program = """
    with EmbeddedServer(host="::1", faults=True) as server:
        assert_equal("[::1]" in server.url, True)
        use_blocking(server, server.url)
        asyncio.run(use_asyncio(server, server.url))
    print("fine")
    """
    assert "fine" in run_program(_HEAD, program)


def test_a_zip_on_the_path(tmp_path: Path) -> None:
    """Both packages are imported from a zip file, as Spark's ``--py-files`` has them."""
    import shutil

    for package in ("statestore_client", "raft_client"):
        source = Path(_PATHS[1]) / package
        shutil.copytree(source, tmp_path / "all" / package, ignore=shutil.ignore_patterns("__pycache__"))
    archive = shutil.make_archive(str(tmp_path / "packages"), "zip", tmp_path / "all")
    head = f"import sys\nsys.path[:0] = [{archive!r}, {_PATHS[0]!r}]\n"
    program = f"""
    import statestore_client
    assert statestore_client.__file__.startswith({archive!r}), statestore_client.__file__
    from environment_scenario import *
    use_both()
    """
    assert "fine" in run_program(head, program)
