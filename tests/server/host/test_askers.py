"""Who asks, by the topics and properties that the official SDKs send, and by what a broker adds."""

from __future__ import annotations

import pytest

from statestore_client.mqtt.packets.types import PublishProperties
from statestore_client.server.host.askers import asker_of, is_nobody

_SERVICE = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"


@pytest.mark.parametrize(
    ("topic", "source", "asker"),
    [
        (f"clients/pump-7/services/{_SERVICE}/response", "pump-7", "pump-7"),  # Rust, and this package
        (f"clients/pump-7/{_SERVICE}", "pump-7", "pump-7"),  # .NET
        (f"clients/70756D702D37/{_SERVICE}/response", "pump-7", "pump-7"),  # Go
        (f"clients/70756D702D37/{_SERVICE}/response", None, "70756D702D37"),
        ("clients/pump-7/services/statestore/_any_/command/invoke/response", None, "pump-7"),  # the document
        (f"clients/pump-7/services/{_SERVICE}/response", "pump-8", "pump-7"),  # it may say what it likes
    ],
)
def test_the_response_topic_says_who_asks(topic: str, source: str | None, asker: str) -> None:
    """The second level of the response topic is the client's name, or its hexadecimal digits if the request says so."""
    users = () if source is None else (("__srcId", source),)
    assert asker_of(PublishProperties(response_topic=topic, user_properties=users), None) == asker


@pytest.mark.parametrize(
    ("topic", "source"),
    [("answers", None), ("clients", None), ("clients/pump-7", None), ("clients//x", None), ("clients/a/b/x", "a/b")],
)
def test_other_response_topics_say_nothing(topic: str, source: str | None) -> None:
    """No client has the name that such a request gets."""
    users = () if source is None else (("__srcId", source),)
    assert is_nobody(asker_of(PublishProperties(response_topic=topic, user_properties=users), None))


def test_what_the_broker_adds_comes_last_and_counts() -> None:
    """A property of the same name that the client has sent itself stands before it."""
    users = (("id", "somebody-else"), ("id", "pump-7"))
    properties = PublishProperties(response_topic="clients/forged/x", user_properties=users)
    assert asker_of(properties, "id") == "pump-7"
    assert is_nobody(asker_of(properties, "another"))
