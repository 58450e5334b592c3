"""Users against each other's quotas, with both shells: who may only watch stops no failover."""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.request
from collections.abc import Iterator

import pytest
from support.shells import Shell

from statestore_client import QuotaExceededError, StateStoreClient
from statestore_client.server import AccessRules, BrokerLimits, EmbeddedServer, StoreLimits

RULES = """\
user watcher
  watch *
user app
  read *
  write *
  watch *
"""
#: Small, and large enough for the eighth beyond them.
LIMITS = StoreLimits(max_keys=64, max_bytes=1_000_000, max_observations=64)


@pytest.fixture
def guarded() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(
        passwords={"watcher": "w", "app": "a"},
        acl=AccessRules.parse(RULES),
        store_limits=LIMITS,
        broker_limits=BrokerLimits(sessions=64, connections=64),
        metrics_port=0,
    ) as running:
        yield running


def attack(server: EmbeddedServer, stack: contextlib.ExitStack, *, watches: int) -> list[str]:
    """A user who may only watch does so with one client after the other; the quotas that stop him."""
    quotas = []
    for _ in range(4):
        store = stack.enter_context(StateStoreClient(server.url, username="watcher", password="w"))
        for number in range(watches):
            try:
                stack.enter_context(store.watch(f"key {number}"))
            except QuotaExceededError as error:
                quotas.append(str(error).partition("): ")[2])
    return quotas


def figures(server: EmbeddedServer) -> dict[str, str]:
    """Those of quotas, on the page for Prometheus."""
    with urllib.request.urlopen(server.urls["http"], timeout=10) as response:  # noqa: S310 - our own server
        page = response.read().decode()
    return dict(re.findall(r"^statestore_quota_(\S+) (\d+)$", page, re.MULTILINE))


@pytest.mark.attack("MQTT", "use up the room that others need for a lock")
async def test_a_watcher_stops_no_failover(shell: Shell, guarded: EmbeddedServer) -> None:
    """A watcher has used up the observations; a lock is taken, waited for with a watch, and handed on at once. The
    refusals are on the page for Prometheus."""
    with contextlib.ExitStack() as stack:
        quotas = await asyncio.to_thread(attack, guarded, stack, watches=20)
        assert quotas == ["observations: at most 64; --max-observations raises that"] * 16
        app = {"username": "app", "password": "a"}
        async with shell.client(guarded.url, **app) as active, shell.client(guarded.url, **app) as standby:
            lock = active.lock("job", lease=60.0, holder="active")
            await lock.acquire()
            observation = await standby.watch("job").start()
            waiting = asyncio.ensure_future(standby.lock("job", lease=60.0, holder="standby").acquire(timeout=30))
            await lock.release()
            assert (await waiting).holder == b"standby"
            await observation.close()
        found = await asyncio.to_thread(figures, guarded)
    assert found['refusals_total{quota="observations"}'] == "16"
    assert found['refusals_total{quota="keys-per-user"}'] == "0"
    assert (found['limit{quota="observations"}'], found['largest_user{quota="observations"}']) == ("64", "64")
    assert int(found['used{quota="sessions"}']) >= 4
