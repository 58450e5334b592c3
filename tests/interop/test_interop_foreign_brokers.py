"""Our client on brokers of others: what it says where there is no store, and what works beside a hosted one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import attrs
import pytest
from click.testing import CliRunner
from foreign_brokers import BROKERS, ForeignBroker

from statestore_client import (
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
    if (missing := kind.why_not()) is not None:
        (pytest.fail if os.environ.get("STATESTORE_REQUIRE_TOOLS") else pytest.skip)(missing)
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
            assert time.monotonic() - began < 2
        else:
            with pytest.raises(RequestTimeoutError, match="no state store answered"):
                store.get("k", timeout=0.5)
        assert store.state == "connected"
        assert (store.stats.broker_mistakes == 0) is broker.kind.is_strict
