"""What is remembered of strings that repeat is bounded, whatever peers send."""

from __future__ import annotations

from statestore_client.mqtt.packets.bounded_cache import BoundedCache


def test_cache_is_bounded() -> None:
    """A cache of encoded strings keeps few of them and no long ones, whatever passes, and stays right."""
    cache: BoundedCache[bytes, int] = BoundedCache(len)
    for number in range(5000):
        assert cache[b"%d" % number] == len(str(number))
        assert len(cache) <= BoundedCache.ENTRIES
    before = len(cache)
    assert cache[b"x" * 1000] == 1000
    assert len(cache) == before
