"""What a topic name and a topic filter may look like, and the grammar of shared subscriptions.

Source: MQTT 5.0 section 4.7 and 4.8.2; MQTT 3.1.1 section 4.7 (which knows no shared subscriptions).
"""

from __future__ import annotations

from typing import Final

from statestore_client.errors import InvalidArgumentError

SHARE_PREFIX: Final = "$share/"

#: Strings carry a two-byte length (MQTT 5.0, 1.5.4).
_MAX_UTF8_BYTES: Final = 65_535


def validate_topic_name(topic: str) -> None:
    """Return when ``topic`` may be published to; raise :class:`InvalidArgumentError` with the reason if not."""
    if not isinstance(topic, str):
        raise InvalidArgumentError(f"topic name {topic!r}: it must be a text")
    problem = topic_name_problem(topic) or _text_problem(topic)
    if problem is not None:
        raise InvalidArgumentError(f"topic name {topic!r}: {problem}")


def validate_topic_filter(topic_filter: str) -> None:
    """Return when ``topic_filter`` may be subscribed to; raise :class:`InvalidArgumentError` with the reason if not."""
    if not isinstance(topic_filter, str):
        raise InvalidArgumentError(f"topic filter {topic_filter!r}: it must be a text")
    problem = topic_filter_problem(topic_filter) or _text_problem(topic_filter)
    if problem is not None:
        raise InvalidArgumentError(f"topic filter {topic_filter!r}: {problem}")


def topic_name_problem(topic: str) -> str | None:
    """Why ``topic`` is not a topic name, or None when it is one. (MQTT 5.0, 4.7.1 and 4.7.3)"""
    if not topic:
        return "a topic name has at least one character"
    if "+" in topic or "#" in topic:
        return "wildcards are for filters"
    return None


def topic_filter_problem(topic_filter: str, *, shared: bool = True) -> str | None:
    """Why the text is not a topic filter, or None when it is one. (MQTT 5.0, 4.7.1, 4.7.3 and 4.8.2)

    ``shared=False`` reads ``$share/...`` as the ordinary filter that it is in MQTT 3.1.1.
    """
    if shared and topic_filter.startswith(SHARE_PREFIX):
        return _shared_filter_problem(topic_filter)
    if not topic_filter:
        return "a topic filter has at least one character"
    if "+" not in topic_filter and "#" not in topic_filter:
        return None
    return _wildcard_problem(topic_filter)


def split_shared_filter(topic_filter: str) -> tuple[str, str] | None:
    """``$share/{group}/{filter}`` as (group, filter); None for a filter that is not shared. (MQTT 5.0, 4.8.2)"""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None
    group, _, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    return group, rest


def _shared_filter_problem(topic_filter: str) -> str | None:
    group, _, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not group:
        return "the name of a share group has at least one character"
    if "+" in group or "#" in group:
        return "the name of a share group has no wildcards"
    if not rest:
        return "a shared subscription needs a topic filter after its group"
    return _wildcard_problem(rest)


def _wildcard_problem(topic_filter: str) -> str | None:
    levels = topic_filter.split("/")
    if "#" in topic_filter and ("#" in "/".join(levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#")):
        return "'#' stands alone in the last level"
    if any("+" in level and level != "+" for level in levels):
        return "'+' stands alone in its level"
    return None


def _text_problem(text: str) -> str | None:
    """Why ``text`` cannot travel as an MQTT string. (MQTT 5.0, 1.5.4)"""
    if "\0" in text:
        return "U+0000 is not allowed"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "surrogates are not allowed"
    if size > _MAX_UTF8_BYTES:
        return f"{size} bytes are more than a string may have"
    return None
