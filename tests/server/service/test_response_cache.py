"""Responses to requests that may arrive twice: whose are kept when there is no room for all."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.service.response_cache import ResponseCache, ResponseCacheLimits

OK = b"+OK\r\n"


class Cache:
    """A cache, and what was put into it that it has to have or may have forgotten."""

    def __init__(self, **limits: int) -> None:
        self.limits = ResponseCacheLimits(**limits)
        self.cache = ResponseCache(self.limits)
        self.asked: list[tuple[str, bytes]] = []

    def put(self, client: str, count: int = 1, *, now: float = 0.0, payload: bytes = OK) -> None:
        for _ in range(count):
            request = (client, len(self.asked).to_bytes(16))
            self.asked.append(request)
            self.cache.put(request, 1, payload, None, now)

    def kept(self, now: float = 0.0) -> Counter[str]:
        """How many responses to each client there are."""
        return Counter(request[0] for request in self.asked if self.cache.get(request, 1, now))


def test_a_busy_client_drives_nobody_else_out() -> None:
    """All of a quiet client's three responses are kept while another sends ten times as many requests as there is room
    for."""
    cache = Cache(max_entries=100)
    cache.put("quiet", 3)
    cache.put("busy", 1_000)
    assert cache.kept() == {"quiet": 3, "busy": 97}


def test_a_busy_client_drives_nobody_else_out_by_bytes() -> None:
    """A quiet client's responses are kept while another's long ones fill the bytes."""
    cache = Cache(max_bytes=100_000)
    cache.put("quiet", 3)
    cache.put("busy", 1_000, payload=b"-" * 2_000)
    kept = cache.kept()
    assert kept["quiet"] == 3
    assert 0 < kept["busy"] < 50


def test_of_one_client_the_oldest_makes_room() -> None:
    """Of one client's responses the oldest makes room, because the last requests are those that may be repeated."""
    cache = Cache(max_entries=3)
    cache.put("busy", 5)
    assert [cache.cache.get(request, 1, 0.0) is not None for request in cache.asked] == [False] * 2 + [True] * 3


@pytest.mark.parametrize("limits", [{"max_entries": 120}, {"max_bytes": 60_000}])
def test_busy_clients_share(limits: dict[str, int]) -> None:
    """A client that fills the cache gives way to later ones, until each has about the same number."""
    cache = Cache(**limits)
    cache.put("first", 500)
    for _ in range(500):
        cache.put("second")
        cache.put("third")
    kept = cache.kept()
    assert max(kept.values()) <= 2 * min(kept.values())
    assert kept.keys() == {"first", "second", "third"}


def test_clients_without_number_are_bounded() -> None:
    """When many clients have one response each, the one that has waited longest makes room."""
    cache = Cache(max_entries=50)
    for number in range(200):
        cache.put(str(number))
    assert list(cache.kept()) == [str(number) for number in range(150, 200)]


def test_what_is_outdated_goes_in_slices() -> None:
    """A tick removes a bounded number of outdated responses, of one client and of many, and every client has its
    turn."""
    cache = Cache()
    cache.put("busy", 3_000)
    for number in range(300):
        cache.put(str(number))
    sizes = [len(cache.cache)]
    while sizes[-1] and len(sizes) < 100:
        cache.cache.drop_old(301.0)
        sizes.append(len(cache.cache))
    assert sizes[-1] == 0
    assert all(0 < before - after <= 1_000 for before, after in pairwise(sizes))


def test_what_is_not_outdated_stays() -> None:
    """Of a client that goes on, only outdated responses go, two for each that comes."""
    cache = Cache()
    cache.put("client", 3, now=0.0)
    cache.put("client", 3, now=200.0)
    cache.put("other", 1, now=300.0)
    cache.cache.drop_old(400.0)
    assert cache.kept(400.0) == {"client": 3, "other": 1}
    cache.put("client", now=400.0)
    assert (len(cache.cache), cache.kept(400.0)) == (6, {"client": 4, "other": 1})
    cache.put("client", now=400.0)
    assert (len(cache.cache), cache.kept(400.0)) == (6, {"client": 5, "other": 1})


@pytest.mark.parametrize("limits", [{"max_entries": 300}, {"max_bytes": 330_000}])
def test_who_left_long_ago_makes_room_first(limits: dict[str, int]) -> None:
    """Clients that left long ago make room first, and a client that goes on keeps all that it may repeat."""
    cache = Cache(**limits)
    for number in range(300):
        cache.put(str(number), now=float(number))
    cache.put("goes on", 100, now=10_000.0)
    assert cache.kept(10_000.0) == {"goes on": 100}


def test_long_names_count() -> None:
    """A client id counts with its up to 64 kB as long as a response to its client is kept."""
    cache = Cache(max_bytes=1_000_000)
    for number in range(100):
        cache.put("\u00fc" * 30_000 + str(number))
    assert 10 < len(cache.cache) < 17


steps = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 5_000)), max_size=40)


@given(steps, st.integers(0, 20), st.integers(500, 30_000))
def test_nobody_with_little_makes_room(changes: list[tuple[str, int, int]], entries: int, size: int) -> None:
    """The cache stays within its limits, and a client that uses less than a 2n-th of all that n clients use loses
    nothing."""
    cache = Cache(max_entries=entries, max_bytes=size)
    inside = cache.cache
    for client, count, length in changes:
        for _ in range(count):
            used = {name: share.used_bytes for name, share in inside._shares.items() if name != client}
            before, clients = cache.kept(), len({*used, client})
            cache.put(client, payload=b"-" * length)
            after = cache.kept()
            lost = sum(before[name] - after[name] for name in used)
            assert len(inside) == sum(after.values()) <= entries
            assert inside._used_bytes == sum(share.used_bytes for share in inside._shares.values()) <= size
            if not lost:
                continue
            for name, its_bytes in used.items():
                assert after[name] == before[name] or its_bytes * 2 * clients >= inside._used_bytes
