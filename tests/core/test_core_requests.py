"""Requests: what leaves, the window, replies, acknowledgements."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest
from machine_driver import RESPONSES, Acknowledge, MachineDriver, Resolve

from statestore_client.core.actions import WatchEvent
from statestore_client.core.arguments import token_of
from statestore_client.core.request import RequestProperties
from statestore_client.core.results import DeleteResult, Item, KeyPage, SetResult
from statestore_client.errors import (
    CounterOverflowError,
    InvalidArgumentError,
    NotAuthorizedError,
    QuotaExceededError,
    TransportError,
    UnexpectedReplyError,
    UnknownServerError,
)
from statestore_client.mqtt.client_connection import PublishFrames
from statestore_client.wire.commands import Command, Condition, Del, Get, KeyNotify, Scan, Set, VDel, encode_payload
from statestore_client.wire.hlc import MAX_COUNTER, HlcTimestamp
from statestore_client.wire.messages import OutgoingMessage, whole
from statestore_client.wire.protocol import MAX_PACKET_SIZE

SET = Set(b"k", b"v")
VERSION = HlcTimestamp(1_696_374_425_000, 0, "CLIENT")
TS = ("__ts", "1696374425000:0:CLIENT")  # state store protocol, "Versioning and hybrid logical clocks"


# -- what leaves -------------------------------------------------------------------------------------------------------


def test_a_request_is_what_the_official_sdks_send(driver: MachineDriver) -> None:
    """A SET has the topic, payload and properties that the official SDKs send (state store facts, 1.1; protocol, "SET
    request")."""
    driver.submit(Set(b"SETKEY2", b"VALUE5", Condition.NX, 60_000), "w", fencing_token=VERSION)
    message = driver.published[0].message
    assert message.envelope.topic == "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
    assert message.payload == (
        b"*6\r\n$3\r\nSET\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n60000\r\n"
    )
    assert message.envelope.response_topic == RESPONSES
    assert len(message.correlation_data) == 16
    assert message.message_expiry_s == 10
    properties = dict(message.user_properties + message.envelope.user_properties)
    assert properties.pop("__ts").endswith(":00000:me")
    assert properties == {
        "__ft": "001696374425000:00000:CLIENT",
        "__srcId": "me",
        "__protVer": "1.0",
        "$partition": "me",
        "$high_priority": "",
    }


def test_a_mark_of_persistence_is_a_property_of_its_request_alone(driver: MachineDriver) -> None:
    """A SET that asks for it has the property ``aio-persistence: true``, and none has it ``false`` (facts, 1.1); a
    fencing token that requests share is a property of each of them."""
    driver.submit(Set(b"k", b"v", persist=True), "a", fencing_token=VERSION)
    driver.submit(Set(b"k", b"v"), "b")
    driver.submit(Set(b"k", b"v"), "c", fencing_token=VERSION)
    marked, plain, fenced = (dict(publication.message.user_properties) for publication in driver.published)
    assert marked.keys() == {"__ts", "__ft", "aio-persistence"}
    assert marked["aio-persistence"] == "true"
    assert plain.keys() == {"__ts"}
    assert fenced.keys() == {"__ts", "__ft"}
    assert marked["__ft"] == fenced["__ft"] == str(VERSION)


@pytest.mark.parametrize(
    "text", ["1696374425000:1:StateStore", "001696374425000:00001:StateStore", "1696374425000:001:State Store"]
)
def test_a_version_goes_back_as_a_fencing_token_byte_for_byte(driver: MachineDriver, text: str) -> None:
    """A version goes back "unmodified" as a fencing token, byte for byte, however the server wrote it."""
    driver.submit(SET, "lock")
    driver.answer(b"+OK\r\n", ("__ts", text))
    seen = driver.watch(b"k", "watch")
    driver.suback()
    while driver.on_the_wire:
        driver.answer(b"+OK\r\n")
    driver.notify(b"k", b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n", text)
    event = seen[-1]
    assert isinstance(event, WatchEvent)
    for token in (driver.outcome("lock").version, event.version, token_of(text)):
        driver.submit(SET, "write", fencing_token=token)
        assert ("__ft", text) in driver.published[-1].message.user_properties
        driver.answer(b"+OK\r\n", ("__ts", text))


@pytest.mark.parametrize(
    ("timeout", "expiry"), [(0.001, 1), (1.0, 1), (1.001, 2), (10, 10), (1e10, 2**31 - 1), (None, 2**31 - 1)]
)
def test_the_deadline_travels_as_message_expiry(driver: MachineDriver, timeout: float | None, expiry: int) -> None:
    """The time-out travels as message expiry in whole seconds, rounded up, at least one."""
    driver.submit(SET, "w", timeout=timeout)
    assert driver.published[0].message.message_expiry_s == expiry


@pytest.mark.parametrize(
    ("left", "told"), [(7.99998, "8"), (7.9973, "8"), (0.25, "0.25"), (0.00123, "0.0012"), (86_400, "86400")]
)
def test_what_was_left_of_a_time_is_rounded(driver: MachineDriver, left: float, told: str) -> None:
    """A time-out that is the rest of another one is told without the digits that nobody gave."""
    driver.submit(SET, "w", timeout=left)
    driver.after(left + 0.001)
    assert f"no answer within {told} s: " in str(driver.outcome("w"))


def test_a_request_above_the_brokers_limit_is_not_sent(driver: MachineDriver) -> None:
    """The check against the broker's limit counts every byte: a longer packet is refused."""
    driver.cut(maximum_packet_size=1000)
    driver.submit(Set(b"k", b"v" * 300), "fits")
    driver.submit(Set(b"k", b"v" * 700), "too long")
    assert driver.outcomes["fits"] == []
    error = driver.outcome("too long")
    assert isinstance(error, InvalidArgumentError)
    assert not error.may_have_been_applied
    driver.cut()
    assert driver.machine.request_table.max_packet_size == MAX_PACKET_SIZE


@pytest.mark.parametrize("token", [None, VERSION])
@pytest.mark.parametrize("command", [Get(b"k"), Set(b"k" * 300, b"v" * 20_000, persist=True)])
@pytest.mark.parametrize("client_id", ["me", "Größe/10 µm"])
def test_the_size_is_that_of_the_packet(client_id: str, command: Command, token: HlcTimestamp | None) -> None:
    """The told size of a request is right to 5 bytes, for lengths of variable size and the digits of a version."""
    properties = RequestProperties(client_id, client_id)
    version = HlcTimestamp(1_696_374_425_000, 0, client_id)
    pairs, size = properties.of(command, version, token)
    payload = encode_payload(command)
    message = OutgoingMessage(properties.envelope, payload, bytes(16), 10, pairs)
    outbox: list[bytes] = []
    assert PublishFrames(alias_maximum=0, maximum_size=268_435_460).put(message, outbox, 1)
    assert abs(size + len(whole(payload)) - sum(map(len, outbox))) <= 5


def test_an_exhausted_clock_rejects_until_the_next_millisecond(driver: MachineDriver) -> None:
    """A clock whose counter is full rejects requests, and stamps them again a millisecond later."""
    driver.clock.merge(HlcTimestamp(driver.wall_ms, MAX_COUNTER - 1, "other"), driver.wall_ms)
    driver.submit(SET, "w1")
    assert isinstance(driver.outcome("w1"), CounterOverflowError)
    driver.after(0.001)
    driver.submit(SET, "w2")
    assert driver.outcomes["w2"] == []
    assert len(driver.on_the_wire) == 1


# -- window ------------------------------------------------------------------------------------------------------------


def test_no_more_requests_than_the_window_are_in_flight(driver: MachineDriver) -> None:
    """With a window of four, the fifth request waits for the first answer."""
    for i in range(6):
        driver.submit(Set(b"k", b"%d" % i), i)
    assert len(driver.on_the_wire) == 4
    driver.answer(b"+OK\r\n")
    assert [p.message.payload[-3:-2] for p in driver.on_the_wire] == [b"1", b"2", b"3", b"4"]


def test_the_brokers_receive_maximum_is_kept_whatever_the_callers_do(driver: MachineDriver) -> None:
    """Requests that timed out or were cancelled count against Receive Maximum until their PUBACK (MQTT 5.0, 3.3.4)."""
    driver.cut(receive_maximum=2)
    one = driver.submit(SET, "one")
    driver.submit(SET, "two", timeout=1)
    driver.submit(SET, "three")
    driver.machine.request_table.cancel(one, driver.now)
    driver.after(1)
    assert len(driver.published) == 2
    driver.puback()
    assert len(driver.published) == 3
    driver.submit(SET, "four")
    assert len(driver.published) == 3
    driver.puback()
    assert len(driver.published) == 4


# -- replies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "payload", "result"),
    [
        (SET, b"+OK\r\n", SetResult(True, VERSION)),
        (SET, b":-1\r\n", SetResult(False, VERSION)),
        (SET, b"-1\r\n", SetResult(False, VERSION)),
        (SET, b"$-1\r\n", SetResult(False, VERSION)),
        (SET, b":0\r\n", SetResult(False, VERSION)),
        (Get(b"k"), b"$4\r\n1234\r\n", Item(b"1234", VERSION)),
        (Get(b"k"), b"$-1\r\n", None),
        (Del(b"k"), b":1\r\n", DeleteResult(1, VERSION)),
        (Del(b"k"), b":0\r\n", DeleteResult(0, VERSION)),
        (VDel(b"k", b"v"), b":1\r\n", DeleteResult(1, VERSION)),
        (VDel(b"k", b"v"), b":-1\r\n", DeleteResult(0, VERSION, matched=False)),
        (VDel(b"k", b"v"), b"-1\r\n", DeleteResult(0, VERSION, matched=False)),
        (Scan(b"*"), b"*2\r\n*1\r\n$1\r\nk\r\n$2\r\nto\r\n", KeyPage((b"k",), b"to")),
        (KeyNotify(b"k"), b"+OK\r\n", True),
        (KeyNotify(b"k", stop=True), b":0\r\n", False),
    ],
)
def test_each_reply_becomes_its_result(driver: MachineDriver, command: Command, payload: bytes, result: Any) -> None:
    """Each reply becomes its result in either dialect (state store protocol, "Response format"; facts 1.2)."""
    driver.submit(command, "w")
    driver.answer(payload, TS, ("__stat", "200"))
    assert driver.outcome("w") == result


@pytest.mark.parametrize(
    ("payload", "stamp"),
    [(p, "") for p in (b"$4\r\n1234\r\n", b":7\r\n", b"", b"nonsense", b"*1\r\n", b"$99\r\nx\r\n", b"+\xff\r\n")]
    + [(b"+OK\r\n", stamp) for stamp in ("NotValid", "1:2", "-1:0:x", "99999999999999999999:0:x", "")],
)
def test_a_reply_that_cannot_be_read_may_mean_anything(driver: MachineDriver, payload: bytes, stamp: str) -> None:
    """A reply that fits another command, or whose version is unreadable, may have been applied."""
    driver.submit(SET, "w")
    driver.answer(payload, *([("__ts", stamp)] if payload == b"+OK\r\n" else []))
    error = driver.outcome("w")
    assert isinstance(error, UnexpectedReplyError)
    assert error.may_have_been_applied


@pytest.mark.parametrize("stamp", ["9999999999999:0:server", f"1700000000000:{MAX_COUNTER}:server"])
def test_a_version_that_our_clock_cannot_follow_is_still_a_version(driver: MachineDriver, stamp: str) -> None:
    """A version too far ahead for our clock is still returned, and our own clock stays where it is."""
    driver.submit(SET, "w")
    before = driver.clock.last
    driver.answer(b"+OK\r\n", ("__ts", stamp))
    assert driver.outcome("w") == SetResult(True, HlcTimestamp.parse(stamp))
    assert driver.clock.last == before
    assert driver.machine.request_table.stats.clock_drift == 1


def test_our_clock_follows_the_servers(driver: MachineDriver) -> None:
    """The next request is stamped later than the version that was seen in a reply."""
    driver.submit(SET, "w")
    driver.answer(b"+OK\r\n", ("__ts", f"{driver.wall_ms + 5000}:3:server"))
    driver.submit(SET, "w2")
    stamp = HlcTimestamp.parse(dict(driver.published[1].message.user_properties)["__ts"])
    assert stamp > HlcTimestamp(driver.wall_ms + 5000, 3, "server")


def test_a_refusal_is_its_typed_error(driver: MachineDriver) -> None:
    """A refusal raises its typed error, which says that nothing was applied."""
    driver.submit(SET, "w")
    driver.answer(b"-ERR the quota has been exceeded\r\n")
    assert isinstance(driver.outcome("w"), QuotaExceededError)
    assert driver.outcome("w").quota is None
    driver.submit(SET, "quota")
    driver.answer(b"-ERR the quota has been exceeded\r\n", ("__stMsg", "keys: at most 1"))
    error = driver.outcome("quota")
    assert (error.quota, copy(error).quota) == ("keys: at most 1",) * 2  # as pickle does it
    assert str(error) == "the quota has been exceeded (SET of 'k'): keys: at most 1"
    driver.submit(SET, "w2")
    driver.answer(b"-ERR the moon is full\r\n")
    assert isinstance(driver.outcome("w2"), UnknownServerError)
    assert driver.outcome("w2").message == "the moon is full"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *(("200", SetResult), ("399", SetResult)),
        *(("404", UnknownServerError), ("9" * 5000, UnknownServerError), ("abc", UnexpectedReplyError)),
    ],
)
def test_the_status_decides_before_the_payload(driver: MachineDriver, status: str, kind: type) -> None:
    """A ``__stat`` of 400 or more is an error whatever the payload (state store facts, 1.2 and "Variants tried")."""
    driver.submit(SET, "w")
    driver.answer(b"+OK\r\n", ("__stat", status), ("__stMsg", "why"))
    outcome = driver.outcome("w")
    assert isinstance(outcome, kind)
    if isinstance(outcome, UnknownServerError):
        assert str(outcome) == f"status {status}: why (SET of 'k')"  # as any refusal, it says what was refused


def test_late_repeated_and_foreign_replies_reach_nobody(driver: MachineDriver) -> None:
    """Late, repeated and foreign replies are acknowledged, counted and dropped."""
    driver.submit(SET, "w")
    request = driver.on_the_wire[0]
    driver.reply(request, b"+OK\r\n", ack_id=1)
    driver.reply(request, b":-1\r\n", ack_id=2)
    driver.reply(b"somebody else's.", b"+OK\r\n", ack_id=3)
    driver.reply(b"", b"+OK\r\n", ack_id=4)
    assert driver.outcome("w") == SetResult(True, None)
    assert driver.machine.request_table.stats.late_or_unknown_replies == 3
    assert driver.acknowledged == [1, 2, 3, 4]


def test_a_reply_is_taken_in_before_it_is_acknowledged() -> None:
    """A reply is processed before it is acknowledged, so that the broker sends it again after a crash in between; with
    QoS 0 it is not acknowledged."""
    for ack_id, actions in ((7, [Resolve, Acknowledge]), (0, [Resolve])):
        driver = MachineDriver().ready()
        driver.submit(SET, "w")
        found = driver.reply(driver.on_the_wire[0], b"+OK\r\n", ack_id=ack_id)
        assert [type(a) for a in found] == actions


# -- PUBACK ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "kind"), [(0x87, NotAuthorizedError), (0x97, TransportError), (0x83, TransportError)])
def test_a_refused_publication_was_not_applied(driver: MachineDriver, code: int, kind: type) -> None:
    """A request whose PUBACK has an error code was not applied."""
    driver.submit(SET, "w")
    driver.puback(reason_code=code)
    error = driver.outcome("w")
    assert isinstance(error, kind)
    assert not error.may_have_been_applied


def test_a_refused_repetition_may_have_been_applied_the_first_time(driver: MachineDriver) -> None:
    """A repeated request that is refused may have been applied the first time, on the connection before."""
    driver.submit(SET, "w")
    driver.cut()
    driver.puback(reason_code=0x97)
    assert driver.outcome("w").may_have_been_applied
