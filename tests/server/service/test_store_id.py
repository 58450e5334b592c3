"""The name of the store in each answer: another one only when what was written is gone."""

from __future__ import annotations

import secrets

import pytest
from service_driver import GET, SET, Server
from store_life import ASKED, Life
from support.durable_broker import MemoryStorage

from statestore_client.mqtt.packets import Publish
from statestore_client.server.journal import Stream
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.store import Persistence
from statestore_client.wire.commands import Del, Get, Scan, Set
from statestore_client.wire.protocol import Dialect

TS = "1700000000000:0:client"


def store_id(answer: Publish) -> str:
    (name,) = [value for name, value in answer.properties.user_properties if name == "statestore-id"]
    return name


def test_each_answer_names_the_store() -> None:
    """Answers to all commands, refusals too, have the same name."""
    server = Server(token_key=secrets.token_bytes(TOKEN_KEY_BYTES))
    answers = [server.reply(payload) for payload in (SET, GET, b"*2\r\n$4\r\nPING\r\n$1\r\nx\r\n")]
    assert len({store_id(answer) for answer in answers}) == 1


def test_the_document_knows_no_name() -> None:
    """In the document's dialect there is none."""
    assert [name for name, _ in Server(Dialect.DOCUMENT).reply(SET).properties.user_properties] == ["__ts"]


def test_a_store_that_begins_empty_is_another_one() -> None:
    """Without a journal, each store has a name of its own."""
    names = {store_id(Server(token_key=secrets.token_bytes(TOKEN_KEY_BYTES)).reply(SET)) for _ in range(10)}
    assert len(names) == 10


@pytest.mark.parametrize("command", [Set(b"k", b"v"), Get(b"k"), Del(b"k"), Scan(b"*", None)])
def test_a_durable_store_keeps_its_name(command: Set | Get | Del | Scan) -> None:
    """Whatever was asked first, the name is on the disk when the answer leaves; another disk is another store."""
    storage = MemoryStorage()
    first = store_id(Life(storage).ask(command, b"1" * 16, TS))
    assert len([*storage.load(Stream.TOKENS)]) == 1
    assert [store_id(Life(storage).ask(Get(b"k"), b"2" * 16, TS)) for _ in range(3)] == [first] * 3
    assert store_id(Life(MemoryStorage()).ask(command, b"1" * 16, TS)) != first


@pytest.mark.parametrize("persistence", [ASKED, Persistence.of("none")])
def test_a_store_that_keeps_a_part_is_another_one_after_each_start(persistence: Persistence) -> None:
    """Where a restart loses what is not written down, it changes the name."""
    storage = MemoryStorage()
    lives = [Life(storage, persistence=persistence) for _ in range(3)]
    names = {store_id(life.ask(Set(b"k", b"v"), b"%d" % i * 16, TS)) for i, life in enumerate(lives)}
    assert len(names) == 3
