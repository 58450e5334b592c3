"""Keys of other sites in a durable server: nothing of them is on the disk, and nothing older comes back either."""

from __future__ import annotations

import pytest
from store_life import ASKED, WALL_MS, Life, refusal, value
from support.durable_broker import MemoryStorage

from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.server.broker.application import Deliver, Deny, Route, Series
from statestore_client.server.store import KEEP_ALL, Persistence, SiteStore
from statestore_client.wire.commands import Command, Del, KeyNotify, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.topics import COMMAND_TOPIC

KEY = b"sites/oslo/k"
TOKEN = HlcTimestamp(WALL_MS, 6, "a")


class SiteLife(Life):
    """Of a server with a bridge."""

    def __init__(self, storage: MemoryStorage, after_s: float = 0.0, persistence: Persistence = KEEP_ALL) -> None:
        at = WALL_MS + round(after_s * 1000)
        super().__init__(storage, wall_ms=at, monotonic=50.0 + after_s, persistence=persistence, is_site=True)

    @property
    def site_store(self) -> SiteStore:
        assert isinstance(self.store, SiteStore)
        return self.store


def test_an_import_is_not_there_after_a_restart() -> None:
    """Its version was: no later one is smaller."""
    first = SiteLife(MemoryStorage())
    assert first.site_store.put_import(KEY, b"1", first.now)
    entry = first.site_store.entry(KEY, first.now)
    assert entry is not None
    first.commit()
    second = SiteLife(first.storage, -60.0)
    assert value(second, KEY) is None
    later = second.apply(Set(b"mine", b"x")).version
    assert later is not None
    assert later > entry.version


@pytest.mark.parametrize("token", [None, TOKEN])
def test_what_a_client_had_set_there_does_not_come_back(token: HlcTimestamp | None) -> None:
    """The import has replaced it on the disk, too, with its mark and its expiry."""
    before = Life(MemoryStorage())
    before.apply(Set(KEY, b"old", expiry_ms=60_000), token)
    site = SiteLife(before.storage, 1.0)
    assert value(site, KEY) == b"old"
    assert site.site_store.put_import(KEY, b"new", site.now)
    site.commit()
    after = Life(site.storage, monotonic=60.0, wall_ms=WALL_MS + 10_000)
    assert value(after, KEY) is None
    assert after.store.next_deadline() is None
    assert refusal(after.apply(Set(KEY, b"anyone")).reply) is None


def test_a_mark_that_a_client_had_left_there_ends() -> None:
    """A value that was forgotten has left its mark: after an import, and a restart, nobody needs its token."""
    before = Life(MemoryStorage(), persistence=ASKED)
    before.apply(Set(KEY, b"old"), TOKEN)
    site = SiteLife(before.storage, 1.0, ASKED)
    assert site.site_store.put_import(KEY, b"new", site.now)
    assert site.store.next_deadline() is None
    site.site_store.drop_import(KEY, site.now)
    site.apply(Set(b"other", b"x", persist=True))
    after = Life(site.storage, monotonic=60.0, wall_ms=WALL_MS + 10_000, persistence=ASKED)
    assert refusal(after.apply(Set(KEY, b"anyone")).reply) is None


def test_what_observers_are_told_of_imports_is_not_written_down() -> None:
    """It may be lost with the server, as the import is. What they are told of other keys may not."""
    life = SiteLife(MemoryStorage())
    for key in (KEY, b"mine"):
        life.apply(KeyNotify(key))
    life.site_store.put_import(KEY, b"1", life.now)
    life.site_store.drop_import(KEY, life.now)
    (one, other) = life.service.announce(life.site_store.take_changes())
    told = [effect for series in (one, other) if isinstance(series, Series) for effect in series.effects]
    assert [isinstance(effect, Deliver) and effect.is_fleeting for effect in told] == [True, True]
    (series,) = life.service.announce(life.apply(Set(b"mine", b"x")).changes)
    assert isinstance(series, Series)
    assert [isinstance(effect, Deliver) and effect.is_fleeting for effect in series.effects] == [False]


@pytest.mark.parametrize("command", [Set(KEY, b"x"), Del(KEY), VDel(KEY, b"1")])
def test_clients_change_no_import(command: Command) -> None:
    """The answer says so, and the import is as it was."""
    life = SiteLife(MemoryStorage())
    life.site_store.put_import(KEY, b"1", life.now)
    properties = PublishProperties(
        response_topic="clients/client/r", correlation_data=b"c", user_properties=(("__ts", f"{WALL_MS}:0:client"),)
    )
    request = Publish(COMMAND_TOPIC, command.encode(), 1, packet_id=1, properties=properties)
    answer, denial = life.service.handle("client", request, life.now)
    assert isinstance(answer, Route)
    assert answer.message.payload == b"-ERR not authorized\r\n"
    assert isinstance(denial, Deny)
    assert (denial.action, denial.what) == ("write", "sites/oslo/k")
    assert value(life, KEY) == b"1"
