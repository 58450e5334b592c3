"""Our client on brokers of others: what it says where there is no store, and what works beside a hosted one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from foreign_brokers import BROKERS, ForeignBroker, hosted_store, skip_without
from support.shells import Shell

from statestore_client import (
    FencingTokenRequiredError,
    NoStateStoreError,
    RequestTimeoutError,
    StateStoreClient,
)
from statestore_client.cli.app import cli

pytestmark = pytest.mark.interop


@attrs.frozen
class Running:
    """A broker that runs for the tests of this file."""

    kind: ForeignBroker
    url: str


@pytest.fixture(scope="module", params=BROKERS, ids=lambda kind: kind.name)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One of each kind; skips where it cannot be had, and fails where the tools are required."""
    kind: ForeignBroker = request.param
    skip_without(kind)
    with kind.running(tmp_path_factory.mktemp("broker")) as url:
        yield Running(kind, url)


# -- without a store ---------------------------------------------------------------------------------------------------


def test_it_has_what_a_store_needs(broker: Running) -> None:
    """The check says so, and whether the broker tells when nobody is subscribed."""
    result = CliRunner().invoke(cli, ["check", "--broker", broker.url], standalone_mode=False)
    assert result.return_value == 0
    verdict, *lines = result.output.splitlines()
    assert verdict == f"{broker.url} has what a state store needs"
    (tells,) = [line for line in lines if line.startswith("says when nobody is subscribed")]
    assert ("  yes" in tells) is broker.kind.tells


def test_without_a_store_the_client_says_so(broker: Running) -> None:
    """After a second where the broker tells, after the time-out elsewhere; the connection goes on."""
    with StateStoreClient(broker.url) as store:
        began = time.monotonic()
        if broker.kind.tells:
            with pytest.raises(NoStateStoreError):
                store.get("k", timeout=20)
            assert time.monotonic() - began < 10
        else:
            with pytest.raises(RequestTimeoutError, match="no state store answered"):
                store.get("k", timeout=0.5)
        assert store.state == "connected"
        assert (store.stats.broker_mistakes == 0) is broker.kind.is_strict


# -- with a hosted store -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sync", "aio"])
async def test_all_that_a_store_has(broker: Running, tmp_path: Path, name: str, executor: ThreadPoolExecutor) -> None:
    """Get, set, a pipeline, a lock with its token, a listing and a watch, in both shells. paho-mqtt would end the
    connection to mochi-mqtt for a PUBACK with reason code 0x01."""
    shell, prefix, many = Shell(name, "native", executor), f"{name}/", broker.kind.pipeline
    with hosted_store(broker.url, tmp_path / "data"):
        async with shell.client(broker.url) as store:
            assert (await store.set(f"{prefix}k", b"1")).applied
            assert (await store.get(f"{prefix}k")).value == b"1"
            assert not await store.set(f"{prefix}k", b"2", condition="NX")
            results = await store.set_many((f"{prefix}many/{i:03}", b"%d" % i) for i in range(many))
            assert all(result.applied for result in results)
            found = [key async for key in store.scan(f"{prefix}many/*")]
            assert sorted(found) == [f"{prefix}many/{i:03}".encode() for i in range(many)]
            async with store.watch(f"{prefix}seen") as watch, store.lock(f"{prefix}lock").acquire() as lease:
                await store.set(f"{prefix}seen", b"x", fencing_token=lease.fencing_token)
                assert (await anext(aiter(watch))).value == b"x"
                with pytest.raises(FencingTokenRequiredError):
                    await store.set(f"{prefix}seen", b"y")
            assert store.state == "connected"
