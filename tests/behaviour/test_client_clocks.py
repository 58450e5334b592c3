"""Clocks that are behind, ahead or set back, of clients and of the server, with both shells."""

from __future__ import annotations

import pytest
from support.shells import Shell

from statestore_client import (
    RequestClockSkewError,
)
from statestore_client.clocks import now
from statestore_client.server import EmbeddedServer
from statestore_client.wire.instant import Instant


async def test_a_clock_behind_is_no_trouble(shell: Shell, server: EmbeddedServer) -> None:
    """A client whose clock is two minutes behind the server works as any other, and the drift is counted."""
    async with shell.client(server.url, clock=lambda: _shifted(-120_000)) as store:
        await store.set("k", b"1")
        await store.set("k", b"2")
        assert (await store.delete("k")).count == 1
        assert store.stats.clock_drift == 3


async def test_a_clock_that_was_synchronised_is_right_at_once(shell: Shell, server: EmbeddedServer) -> None:
    """An open client is accepted as soon as its clock is synchronised: it does not stay in the future that was
    refused."""
    ahead_ms = 86_400_000
    async with shell.client(server.url, clock=lambda: _shifted(ahead_ms)) as store:
        for _ in range(3):
            with pytest.raises(RequestClockSkewError, match="system clocks are synchronized") as caught:
                await store.set("k", b"1")
        assert not caught.value.may_have_been_applied
        ahead_ms = 120_000
        with pytest.raises(RequestClockSkewError):
            await store.lock("k").try_acquire()
        ahead_ms = 0
        assert await store.set("k", b"2")
        assert (await store.get("k")).value == b"2"


async def test_an_open_client_whose_machine_is_set_back_goes_on(shell: Shell, server: EmbeddedServer) -> None:
    """After the clock of client and server is set back, keys are written and the lock's token is still good."""
    behind_ms = 0
    async with shell.client(server.url, clock=lambda: _shifted(-behind_ms)) as store:
        lease = await store.lock("job", lease=30.0).acquire()
        await store.guarded(lease).set("k", b"1")
        behind_ms = 3_600_000
        server.clock.step_wall(-3_600)
        assert await store.set("other", b"1")
        assert await store.guarded(lease).set("k", b"2")
        assert await store.set("k", b"3", fencing_token=lease.fencing_token)
        assert store.stats.clock_drift > 0


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "gone"])
async def test_a_watch_goes_on_when_the_store_begins_anew_in_the_past(
    shell: Shell, server: EmbeddedServer, *, is_there: bool
) -> None:
    """A watch goes on when a server in memory restarts an hour in the past: no smaller version counts as old, and no
    request is refused."""
    behind_ms = 0
    async with shell.client(server.url, clock=lambda: _shifted(-behind_ms)) as store, store.watch("k") as watch:
        await store.set("k", b"1")
        assert (await watch.get(timeout=10)).value == b"1"
        behind_ms = 3_600_000
        server.clock.step_wall(-3_600)
        server.restart(keep_state=False)
        if is_there:
            async with shell.client(server.url, clock=lambda: _shifted(-behind_ms)) as other:
                await other.set("k", b"2")
        event = await watch.get(timeout=10)
        if is_there and event.value is None:  # it looked before the other client wrote
            event = await watch.get(timeout=10)
        assert event.value == (b"2" if is_there else None)
        for value in (b"3", b"4"):
            assert await store.set("k", value)
            assert (await watch.get(timeout=10)).value == value


def _shifted(wall_ms: int) -> Instant:
    moment = now()
    return Instant(moment.monotonic, moment.wall_ms + wall_ms)
