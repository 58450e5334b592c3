"""``statestore check --broker``: what a broker has, and lacks, for a state store that is its client.

Nothing is believed that can be tried: messages are sent to a topic of this check alone, and what comes back is compared
with what was sent. Limits are what the broker says of itself in CONNACK. One connection, a second or two, and nothing
is left behind; a store that runs there is not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import attrs

from raft_client._common.command_line import print_json, print_line
from statestore_client.errors import ConnectRefusedError, StateStoreError
from statestore_client.mqtt.packets import (
    DEFAULT_RECEIVE_MAXIMUM,
    SHARE_PREFIX,
    Publish,
    PublishProperties,
    ReasonCode,
)
from statestore_client.mqtt.probe import BrokerProbe
from statestore_client.wire.protocol import FIRST_ERROR, QOS

if TYPE_CHECKING:
    from statestore_client.settings import ConnectionSettings

#: Below it, all topics of the check; the client id follows.
TOPICS: Final = "statestore/check"
#: How long a message may be on its way (seconds). A broker that does not pass it on costs this time.
_PATIENCE_S: Final = 2.0
#: Asked for, to see what the broker grants (seconds).
_SESSION_S: Final = 3600


class State(StrEnum):
    """What a check found."""

    YES = "yes"
    NO = "no"
    #: It could not be tried; ``detail`` says why.
    UNKNOWN = "unknown"


@attrs.frozen
class Check:
    """One line of the table."""

    name: str
    state: State
    is_needed: bool
    detail: str = ""


class BrokerCheck:
    """Connected for the time of a ``with``. Raises TransportError if the broker cannot be reached."""

    def __init__(self, settings: ConnectionSettings) -> None:
        client_id = settings.client_id or f"statestore-check-{uuid4().hex[:16]}"
        settings = settings.evolve(client_id=client_id, clean_start=True, session_expiry=_SESSION_S, driver="native")
        self._probe = BrokerProbe(settings, client_id=client_id, patience=_PATIENCE_S)
        self._topic = f"{TOPICS}/{client_id}"

    def run(self) -> list[Check]:
        """All lines of the table, in order."""
        try:
            self._probe.connect()
        except ConnectRefusedError as error:
            if error.reason_code != ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
                raise
            return [_no_mqtt_5(str(error))]
        except StateStoreError:
            if not self._probe.is_older:
                raise
            return [_no_mqtt_5("the broker answers as MQTT 3.1.1 does")]
        try:
            return [*self._checks()]
        finally:
            self._probe.close()

    # -- the lines -----------------------------------------------------------------------------------------------------

    def _checks(self) -> Iterator[Check]:
        limits = self._probe.connack
        yield Check("MQTT 5", State.YES, is_needed=True, detail=self._probe.mistakes)
        yield from self._passing_on()
        yield from self._subscriptions()
        yield self._nobody()
        yield self._retained()
        expiry = _SESSION_S if limits.session_expiry is None else limits.session_expiry
        kept = f"kept for {expiry} s, of {_SESSION_S} s asked for"
        yield Check("sessions", _state(expiry > 0), is_needed=False, detail=kept)
        window = limits.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
        yield Check("Receive Maximum", State.YES, is_needed=False, detail=f"{window} messages at a time")
        size = limits.maximum_packet_size
        largest = "no limit named" if size is None else f"{size} bytes, a key with its value"
        yield Check("Maximum Packet Size", State.YES, is_needed=False, detail=largest)
        aliases = limits.topic_alias_maximum or 0
        yield Check("topic aliases", _state(aliases > 0), is_needed=False, detail=f"{aliases} at a time")

    def _passing_on(self) -> Iterator[Check]:
        """A message with all that a request has, to this client itself."""
        sent = PublishProperties(
            payload_format=0,
            message_expiry=60,
            content_type="application/octet-stream",
            response_topic=f"{self._topic}/answer",
            correlation_data=bytes(range(0xF8, 0x100)) * 2,
            user_properties=(("__ts", "1:0:check"), ("a", "1"), ("a", "2"), ("é", "")),
        )
        got, why = self._echo(f"{self._topic}/request", f"{self._topic}/request", sent)
        properties = None if got is None else got.properties
        yield Check("QoS 1", State.UNKNOWN if got is None else _state(got.qos == QOS), is_needed=True, detail=why)
        names = {
            "response topic": "response_topic",
            "correlation data": "correlation_data",
            "user properties": "user_properties",
            "content type": "content_type",
        }
        for name, attribute in names.items():
            expected, found = getattr(sent, attribute), getattr(properties, attribute, None)
            is_needed = attribute != "content_type"
            if properties is None:
                yield Check(name, State.UNKNOWN, is_needed, why)
            elif found == expected:
                yield Check(name, State.YES, is_needed)
            elif attribute == "user_properties" and _is_within(expected, properties.user_properties):
                more = len(properties.user_properties) - len(expected)
                yield Check(name, State.YES, is_needed, f"and the broker adds {more}")
            else:
                yield Check(name, State.NO, is_needed, f"sent {expected!r}, came {found!r}")

    def _subscriptions(self) -> Iterator[Check]:
        wildcards, shares = f"{self._topic}/notify/+", f"{SHARE_PREFIX}check/{self._topic}/shared"
        for name, filter_, topic, is_needed in (
            ("wildcard subscriptions", wildcards, f"{self._topic}/notify/6B", True),
            ("shared subscriptions", shares, f"{self._topic}/shared", False),
        ):
            got, why = self._echo(filter_, topic, PublishProperties())
            yield Check(name, _state(got is not None), is_needed, why)

    def _nobody(self) -> Check:
        name, detail = "says when nobody is subscribed", ""
        code = self._probe.publish(f"{self._topic}/nobody", PublishProperties())
        if code is None or code >= FIRST_ERROR:
            return Check(name, State.UNKNOWN, is_needed=False, detail=_refusal(code, "a publication"))
        is_told = code == ReasonCode.NO_MATCHING_SUBSCRIBERS
        if not is_told:
            detail = (
                "requests to a store that is away end with their time-out; watches of clients that left stay a while"
            )
        return Check(name, _state(is_told), is_needed=False, detail=detail)

    def _retained(self) -> Check:
        name, topic = "retained messages", f"{self._topic}/retained"
        if self._probe.connack.retain_available == 0:
            return Check(name, State.NO, is_needed=False, detail="the broker says so")
        self._probe.publish(topic, PublishProperties(), payload=b"1", retain=True)
        try:
            why = self._subscribe(topic)
            got = None if why else self._probe.message(topic)
        finally:
            self._probe.publish(topic, PublishProperties(), payload=b"", retain=True)
        return Check(name, _state(got is not None and got.retain), is_needed=False, detail=why)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _echo(self, topic_filter: str, topic: str, properties: PublishProperties) -> tuple[Publish | None, str]:
        """A message to ``topic`` as it comes back through ``topic_filter``; or why it does not."""
        if why := self._subscribe(topic_filter):
            return None, why
        code = self._probe.publish(topic, properties)
        if code is None or code >= FIRST_ERROR:
            return None, _refusal(code, f"a publication to {topic}")
        got = self._probe.message(topic)
        return got, "" if got is not None else f"no message came within {_PATIENCE_S:g} s"

    def _subscribe(self, topic_filter: str) -> str:
        """Why it was refused, empty if it was not."""
        code = self._probe.subscribe(topic_filter)
        return "" if code is not None and code < FIRST_ERROR else _refusal(code, f"a subscription to {topic_filter}")


def _is_within(expected: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
    """Whether all that was sent came, in order; a broker may add properties of its own."""
    rest = iter(found)
    return all(any(pair == other for other in rest) for pair in expected)


def _refusal(code: int | None, what: str) -> str:
    return f"{what} had no answer" if code is None else f"{what} was refused with reason code 0x{code:02X}"


def _no_mqtt_5(detail: str) -> Check:
    return Check("MQTT 5", State.NO, is_needed=True, detail=detail)


def _state(is_so: bool) -> State:
    return State.YES if is_so else State.NO


def lacking(checks: list[Check]) -> list[str]:
    """What is needed, and is not there or could not be shown."""
    return [check.name for check in checks if check.is_needed and check.state is not State.YES]


def print_checks(url: str, checks: list[Check], *, json_output: bool) -> None:
    """The table, or one JSON object."""
    missing = lacking(checks)
    if json_output:
        lines = [
            {"name": c.name, "state": c.state.value, "needed": c.is_needed, "detail": c.detail or None} for c in checks
        ]
        print_json({"url": url, "suffices": not missing, "lacking": missing, "checks": lines})
        return
    verdict = f"lacks for a state store: {', '.join(missing)}" if missing else "has what a state store needs"
    print_line(f"{url} {verdict}")
    width = max(len(check.name) for check in checks)
    for check in checks:
        need = "needed" if check.is_needed else "useful"
        print_line(f"{check.name:{width}}  {need}  {check.state:7}  {check.detail}".rstrip())
