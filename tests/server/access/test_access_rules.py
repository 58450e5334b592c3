"""Access rules: the file, and what its patterns cover."""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import RequestSyntaxError, SettingsError
from statestore_client.server import AccessRules
from statestore_client.server.access import KeyPattern, OwnTopics, filter_covers
from statestore_client.wire.commands import Command, Del, Get, KeyNotify, Scan, Set, VDel

FILE = """
# Users and their rights.
everybody
  subscribe status/#

user pump-?
  client-id pump-*
  read      line1/*
  write     line1/setpoint
  watch     line1/s*
  publish   telemetry/+/temperature
  subscribe alarms/+

user pump-1
  write     only one

client dashboard*
  read      *
"""


def may(rules: AccessRules, user: str | None, client_id: str) -> set[str]:
    """Which of some commands are permitted."""
    commands: dict[str, Command] = {
        "get": Get(b"line1/x"),
        "get other": Get(b"line2/x"),
        "set": Set(b"line1/setpoint", b""),
        "set other": Set(b"line1/x", b""),
        "set only one": Set(b"only one", b""),
        "del": Del(b"line1/setpoint"),
        "vdel": VDel(b"line1/setpoint", b""),
        "del other": Del(b"line1/x"),
        "watch": KeyNotify(b"line1/setpoint"),
        "watch other": KeyNotify(b"line1/x"),
        "stop": KeyNotify(b"line1/x", stop=True),
        "scan": Scan(b"line1/*"),
        "scan all": Scan(b"*"),
    }
    permissions = rules.permissions(user, client_id)
    return {name for name, command in commands.items() if permissions.may_run(command)}


def test_what_a_file_allows() -> None:
    """All sections about a client count together, and what no line allows is forbidden."""
    rules = AccessRules.parse(FILE)
    assert may(rules, "pump-1", "pump-1a") == {
        "get", "set", "set only one", "del", "vdel", "watch", "stop", "scan",
    }  # fmt: skip
    assert may(rules, "pump-2", "pump-1") == {"get", "set", "del", "vdel", "watch", "stop", "scan"}
    assert may(rules, "pump-10", "pump-10") == {"stop"}
    assert may(rules, None, "dashboard-3") == {"get", "get other", "scan", "scan all", "stop"}
    assert may(rules, None, "pump-1") == {"stop"}


def test_a_client_identifier_gives_no_rights_to_a_user() -> None:
    """A user's sections count for a client that has proved its name, and those of client identifiers do not: it could
    choose any."""
    assert may(AccessRules.parse(FILE), "pump-1", "dashboard") == may(AccessRules.parse(FILE), "pump-1", "x")


def test_topics() -> None:
    """Publishing and subscribing are allowed by filters, and a shared subscription by the filter behind the group."""
    pump = AccessRules.parse(FILE).permissions("pump-1", "pump-1")
    assert pump.may_publish("telemetry/line1/temperature")
    assert not pump.may_publish("telemetry/line1/pressure")
    assert not pump.may_publish("status/x")
    assert pump.may_subscribe("status/+/x")
    assert pump.may_subscribe("$share/group/alarms/1")
    assert not pump.may_subscribe("$share/group/telemetry/1")
    assert not pump.may_subscribe("alarms/#")
    assert not pump.may_subscribe("#")


def test_client_identifiers() -> None:
    """A user may be bound to client identifiers; under rules, none has the levels or wildcards of topics."""
    rules = AccessRules.parse(FILE)
    assert rules.permissions("pump-1", "pump-7").refusal is None
    refusal = rules.permissions("pump-1", "valve-7").refusal
    assert refusal is not None
    assert refusal.reason_code == 0x87
    assert rules.permissions("anybody", "valve-7").refusal is None
    for client_id in ("a/b", "+", "a#"):
        refusal = rules.permissions("anybody", client_id).refusal
        assert refusal is not None
        assert refusal.reason_code == 0x85


def test_the_right_to_administer() -> None:
    """Only users of a section that says so have the right to administer."""
    rules = AccessRules.parse("user op-*\n  admin\nuser *\n  read *\n")
    assert [rules.permissions(user, "op-1").may_administer for user in ("op-1", "pump", None)] == [True, False, False]
    assert rules.permissions("op-1", "c") != AccessRules.parse("user *\n  read *\n").permissions("op-1", "c")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("read *", "rules, line 1: 'read' needs a line with everybody, user or client before it"),
        ("everybody\n  reed *", "rules, line 2: 'reed' is not a word of this file; known are everybody, user, client"),
        ("pump:$scrypt$ln=14$ff01", "line 1: what it begins with is not a word of this file"),  # a password's hash
        ("everybody\n  READ *", "line 2: 'READ' is not a word of this file"),
        ("everybody all", "line 1: nothing may follow 'everybody'"),
        ("user", "line 1: 'user' needs a name or a pattern after it"),
        ("client [", "line 1: '[' is not a pattern for names"),
        ("user a\n\n# again\nuser  a", "line 4: 'user  a' is in line 1 already"),
        ("user a\n  read", "line 2: '' is not a pattern for keys"),
        ("user a\n  read a[", "line 2: 'a[' is not a pattern for keys"),
        ("user a\n  publish a/#/b", "line 2: 'a/#/b' is not a topic filter"),
        ("user a\n  subscribe", "line 2: '' is not a topic filter"),
        ("user a\n  subscribe $share/g/t", "line 2: name the topics alone"),
        ("client a\n  client-id a", "line 2: 'client-id' is for users"),
        ("client a\n  admin", "line 2: 'admin' is for users"),
        ("everybody\n  admin", "line 2: 'admin' is for users"),
        ("user a\n  admin *", "line 2: nothing may follow 'admin'"),
    ],
)
def test_mistakes_in_a_file(text: str, complaint: str) -> None:
    """The message about a mistake in a file names file, line and reason."""
    with pytest.raises(SettingsError) as caught:
        AccessRules.parse(text, "rules")
    assert complaint in str(caught.value)


def test_changes_of_a_file(tmp_path: Path) -> None:
    """New rules count when the file is read again, and a file with mistakes changes nothing."""
    path = tmp_path / "rules"
    path.write_text("user u\n  read a\n")
    rules = AccessRules.load(path)
    before = rules.permissions("u", "c")
    assert not rules.refresh()
    path.write_text("user u\n  read a\n\n# a comment\n")
    assert rules.refresh()
    assert rules.permissions("u", "c") == before
    path.write_text("user u\n  read bb\n  nonsense")
    with pytest.raises(SettingsError, match="line 3"):
        rules.refresh()
    assert rules.permissions("u", "c") == before
    path.write_text("user u\n  read bb\n")
    assert rules.refresh()
    assert rules.permissions("u", "c") != before
    with pytest.raises(SettingsError, match="nowhere cannot be read"):
        AccessRules.load(tmp_path / "nowhere")


# -- topics ------------------------------------------------------------------------------------------------------------

LEVELS = ["", "a", "b", "$a"]
#: Every topic of up to four levels, which is one level more than any filter below has. The empty one, which the
#: standard does not allow, is what `/#` would match as the parent of its last level.
TOPICS = ["/".join(levels) for n in (1, 2, 3, 4) for levels in itertools.product(LEVELS, repeat=n)]
FILTERS = st.lists(st.sampled_from([*LEVELS, "+", "+"]), min_size=1, max_size=3).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels[:2], "#"])])
)


def matches(topic_filter: str, topic: str) -> bool:
    """Matching as the standard words it (MQTT 5.0, 4.7.1 and 4.7.2), by recursion."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False

    def levels_match(wanted: list[str], levels: list[str]) -> bool:
        if wanted == ["#"]:
            return True
        if not wanted or not levels:
            return not wanted and not levels
        return (wanted[0] == "+" or wanted[0] == levels[0]) and levels_match(wanted[1:], levels[1:])

    return levels_match(topic_filter.split("/"), topic.split("/"))


@given(FILTERS, FILTERS)
def test_a_filter_covers_another_one(granted: str, asked: str) -> None:
    """A filter covers another one exactly if no topic matches the other and not the first."""
    if not asked or not granted:
        return
    leak = [topic for topic in TOPICS if matches(asked, topic) and not matches(granted, topic)]
    assert filter_covers(granted, asked) == (not leak), leak[:3]


@given(FILTERS, st.sampled_from(TOPICS))
def test_a_filter_covers_a_topic(granted: str, topic: str) -> None:
    """A filter covers a topic if it matches it."""
    assert not granted or filter_covers(granted, topic) == matches(granted, topic)


def test_own_topics() -> None:
    """Own topics are those that the document and the three official SDKs use (facts 1.1 and 1.5), and nobody else's."""
    service = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
    own = OwnTopics("client-id1")
    name = "636C69656E742D696431"
    responses = [
        "clients/client-id1/services/statestore/_any_/command/invoke/response",
        f"clients/client-id1/services/{service}/command/invoke/response",
        f"clients/{name}/{service}/command/invoke/response",
        f"clients/client-id1/{service}/command/invoke",
    ]
    subscriptions = [
        *responses,
        f"clients/{service}/{name}/command/notify/+",
        f"clients/{service}/{name}/command/notify/534F4D454B4559",
        f"clients/{service}/client-id1/command/notify",
    ]
    assert all(own.is_response_topic(topic) for topic in responses)
    assert all(own.may_subscribe(topic) for topic in subscriptions)
    # Identifiers that look like parts of topics, and like the hexadecimal form of another one.
    for other in ("services", "statestore", "client-id", "client-id11", name):
        assert not any(OwnTopics(other).may_subscribe(topic) for topic in subscriptions), other
    for topic in (
        "#",
        "clients/#",
        "clients/+/services/#",
        f"clients/{service}/+/command/notify/+",
        "clients/client-id1",
    ):
        assert not own.may_subscribe(topic)


# -- keys --------------------------------------------------------------------------------------------------------------

PATTERNS = st.text("ab*?/", min_size=1, max_size=5)
KEYS = ["".join(k) for n in range(1, 5) for k in itertools.product("ab/", repeat=n)]


@given(PATTERNS, st.sampled_from(KEYS))
def test_keys_match_as_in_scan(pattern: str, key: str) -> None:
    """Patterns of keys match as the standard library's globs do, and as in SCAN."""
    assert KeyPattern.of(pattern).matches(key.encode()) == fnmatchcase(key, pattern)


@given(PATTERNS, PATTERNS)
def test_a_scan_never_finds_what_may_not_be_read(granted: str, asked: str) -> None:
    """If a rule covers a SCAN pattern, it covers every key that the pattern finds."""
    if KeyPattern.of(granted).covers(asked.encode()):
        assert all(fnmatchcase(key, granted) for key in KEYS if fnmatchcase(key, asked))


@pytest.mark.parametrize(
    ("granted", "asked", "expected"),
    [
        ("*", "*", True),
        ("*", "a?", True),
        ("a*", "a*", True),
        ("a*", "ab*c", True),
        ("a*", "ab", True),
        ("a*", "*", False),
        ("a*", "?", False),
        ("a?", "a?", True),
        ("a?", "ab", True),
        ("a?", "a*", False),
    ],
)
def test_patterns_of_scan(granted: str, asked: str, expected: bool) -> None:
    """The useful patterns of SCAN are covered."""
    assert KeyPattern.of(granted).covers(asked.encode()) == expected


def test_keys_that_are_no_text() -> None:
    """A star at the end stands for any bytes, and elsewhere patterns are about text."""
    assert KeyPattern.of("*").matches(b"\xff")
    assert KeyPattern.of("a/*").matches(b"a/\xff")
    assert not KeyPattern.of("a?").matches(b"a\xff")
    with pytest.raises(RequestSyntaxError):
        KeyPattern.of("*").covers(b"[")
