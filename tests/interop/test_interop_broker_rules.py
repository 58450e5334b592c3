"""The access rules of ``docs/how-to/use-your-broker.md``, on mosquitto."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from foreign_brokers import MOSQUITTO

from statestore_client import ConnectionSettings
from statestore_client.mqtt.packets import PublishProperties
from statestore_client.mqtt.probe import BrokerProbe
from statestore_client.wire.protocol import COMMAND_TOPIC, notification_topic, response_topic

pytestmark = pytest.mark.interop

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-your-broker.md"
#: Of a message that should not come. One that comes takes a few milliseconds.
_PATIENCE_S = 0.5


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """mosquitto with the rules of the page, where nobody chooses a client identifier."""
    if (missing := MOSQUITTO.why_not()) is not None:
        (pytest.fail if os.environ.get("STATESTORE_REQUIRE_TOOLS") else pytest.skip)(missing)
    folder = tmp_path_factory.mktemp("mosquitto")
    found = re.search(r"### mosquitto\n.*?```text\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert found is not None
    (folder / "rules").write_text(found[1])
    with MOSQUITTO.running(folder, f"acl_file {folder / 'rules'}", "use_username_as_clientid true") as broker:
        yield broker


@contextmanager
def connected(url: str, *names: str) -> Iterator[list[BrokerProbe]]:
    """A connection of each user."""
    with ExitStack() as stack:
        probes = []
        for name in names:
            settings = ConnectionSettings.from_url(url, username=name, password="", client_id=name)
            probe = BrokerProbe(settings, client_id=name, patience=_PATIENCE_S)
            probe.connect()
            stack.callback(probe.close)
            probes.append(probe)
        yield probes


def hears(probe: BrokerProbe, sender: BrokerProbe, topic: str) -> bool:
    """Whether what one sends to a topic comes to the other, who subscribes to it."""
    probe.subscribe(topic)
    sender.publish(topic, PublishProperties())
    return probe.message(topic) is not None


def test_a_request_its_answer_and_a_notification_pass(url: str) -> None:
    """A client with the line for its notifications can do all that the store has."""
    with connected(url, "statestore", "pump-7") as (host, client):
        assert hears(host, client, COMMAND_TOPIC)
        assert hears(client, host, response_topic("pump-7"))
        assert hears(client, host, notification_topic("pump-7", b"k"))


def test_a_client_without_a_line_hears_answers_only(url: str) -> None:
    """It can read and write, and not watch."""
    with connected(url, "statestore", "pump-8") as (host, client):
        assert hears(host, client, COMMAND_TOPIC)
        assert hears(client, host, response_topic("pump-8"))
        assert not hears(client, host, notification_topic("pump-8", b"k"))


def test_nobody_hears_what_is_for_others(url: str) -> None:
    """Neither requests nor answers nor notifications."""
    with connected(url, "statestore", "pump-7", "pump-8") as (host, client, other):
        assert not hears(other, host, response_topic("pump-7"))
        assert not hears(other, host, notification_topic("pump-7", b"k"))
        assert not hears(other, client, COMMAND_TOPIC)


def test_nobody_answers_in_the_place_of_the_store(url: str) -> None:
    """What a client sends to another one does not come."""
    with connected(url, "pump-7", "pump-8") as (client, other):
        assert not hears(client, other, response_topic("pump-7"))
        assert not hears(client, other, notification_topic("pump-7", b"k"))


def test_mosquitto_grants_what_its_rules_do_not_allow(url: str) -> None:
    """The page says so: what is missing shows as a time-out."""
    with connected(url, "pump-8") as (other,):
        assert other.subscribe(COMMAND_TOPIC) == 1
