"""Sites as processes that are killed, or stand still, in the middle of a full sync."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from site_processes import Links, SiteProcess
from support.waiting import eventually

from statestore_client.kvstore import SiteClient, Value

_KEYS = 10_000


def _keys(site: SiteProcess) -> int:
    with SiteClient(site.url, timeout_s=20) as client:
        return client.summary().areas["default"]["keys"]


def _begun(site: SiteProcess) -> bool:
    """Wait until a site has a tenth of the keys, or more. Returns whether it lacks others."""
    found = 0

    def has_some() -> bool:
        nonlocal found
        found = _keys(site)
        return found > _KEYS // 10

    eventually(has_some)
    return found < _KEYS


def _dies(site: SiteProcess, _neighbour: SiteProcess) -> None:
    site.end(signal.SIGKILL)
    site.start()


def _stands_still(site: SiteProcess, neighbour: SiteProcess) -> None:
    """Until it is missed: what was under way is lost, and it does not know."""
    site.signal(signal.SIGSTOP)
    eventually(lambda: not neighbour.knows(site.name))
    site.signal(signal.SIGCONT)


@pytest.mark.parametrize("happens", [_dies, _stands_still])
def test_sites_that_are_stopped_in_the_middle_of_a_sync_get_everything(
    site: Callable[..., SiteProcess], links: Links, happens: Callable[[SiteProcess, SiteProcess], None]
) -> None:
    """Of a line of three the middle one is stopped while it gets the keys and passes them on, then the last one.

    What others had of the sync is no obstacle to the next one: in the end all have the same.
    """
    oslo, bonn, rome = [site(name) for name in ("oslo", "bonn", "rome")]
    links.join(bonn, oslo)
    links.join(rome, bonn)
    links.slow_down(0.05)
    oslo.start(), rome.start()
    with SiteClient(oslo.url, timeout_s=20) as client:
        assert client.merge({f"line/{n}": Value(1, "oslo", b"%0100d" % n) for n in range(_KEYS)}) == {}
        bonn.start()
        in_the_middle = 0
        for each, neighbour in ((bonn, oslo), (rome, bonn)):
            in_the_middle += _begun(each)
            happens(each, neighbour)
        assert in_the_middle
        eventually(lambda: _keys(bonn) == _keys(rome) == _KEYS)
        wanted = client.hashes()
    for each in (bonn, rome):
        with SiteClient(each.url, timeout_s=20) as client:
            assert client.hashes() == wanted
