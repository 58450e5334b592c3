"""Topic names and filters, after the examples of MQTT 5.0 sections 4.7 and 4.8.2."""

from __future__ import annotations

import pytest

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import (
    split_shared_filter,
    topic_filter_problem,
    validate_topic_filter,
    validate_topic_name,
)


@pytest.mark.parametrize(
    "topic_filter",
    [
        *("sport/tennis/player1/#", "#", "sport/tennis/#", "+", "+/tennis/#", "sport/+/player1", "/finance", "/"),
        *("+/+", "/+", "$SYS/#", "$SYS/monitor/+", "$share/consumer1/sport/tennis/+"),
        *("$share/consumer2/sport/tennis/+", "$share/consumer1//finance", "$shared/x", "Accounts payable"),
    ],
)
def test_filters_of_the_standard(topic_filter: str) -> None:
    """Every filter that the standard calls valid is accepted."""
    validate_topic_filter(topic_filter)


@pytest.mark.parametrize(
    "topic_filter",
    [
        *("sport/tennis#", "sport/tennis/#/ranking", "sport+", "sport/+x/y", "##", "#/", "", "a\0b", "\ud800"),
        *("x" * 65_536, "$share/", "$share/group", "$share/group/", "$share//a", "$share/g+/a", "$share/g#/a"),
        *("$share/g/a#",),
    ],
)
def test_filters_that_are_refused(topic_filter: str) -> None:
    """Every filter that the standard calls invalid is refused."""
    with pytest.raises(InvalidArgumentError):
        validate_topic_filter(topic_filter)


@pytest.mark.parametrize("topic", ["a", "/", " ", "$SYS/x", "Größe/10 µm", "x" * 65_535])
def test_names(topic: str) -> None:
    """A topic name is any text without wildcards."""
    validate_topic_name(topic)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a#b", "\0", "\udfff", "ß" * 32_768])
def test_names_that_are_refused(topic: str) -> None:
    """A topic name is not empty, has no wildcards, and fits a string."""
    with pytest.raises(InvalidArgumentError):
        validate_topic_name(topic)


def test_shared_filters_come_apart() -> None:
    """The group and the filter of a shared subscription are told apart."""
    assert split_shared_filter("$share/consumer1//finance") == ("consumer1", "/finance")
    assert split_shared_filter("$shared/x") is None


def test_no_shared_subscriptions_in_3_1_1() -> None:
    """MQTT 3.1.1 knows no share groups: the prefix is an ordinary level."""
    assert topic_filter_problem("$share/x", shared=False) is None
    assert topic_filter_problem("$share/x") is not None
