"""Hypothesis strategies for every packet of both protocol versions, within what the standards allow."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from statestore_client.mqtt.packets import (
    Auth,
    AuthProperties,
    Connack,
    ConnackProperties,
    Connect,
    ConnectProperties,
    Disconnect,
    DisconnectProperties,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    ReasonProperties,
    Suback,
    Subscribe,
    SubscribeProperties,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    WillProperties,
)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
names = st.text(
    st.characters(codec="utf-8", exclude_characters="+#", exclude_categories=["Cc"]), min_size=1, max_size=20
)
blobs = st.binary(max_size=40)
flags = st.integers(0, 1)
two_bytes = st.integers(0, 0xFFFF)
four_bytes = st.integers(0, 0xFFFF_FFFF)
packet_ids = st.integers(1, 0xFFFF)
subscription_ids = st.integers(1, 268_435_455)
users = st.lists(st.tuples(texts, texts), max_size=4).map(tuple)
qualities = st.integers(0, 2)

levels = st.text(st.characters(codec="utf-8", exclude_characters="\0+#/$"), max_size=5)
plain_filters = st.builds(
    lambda parts, tail: "/".join([*parts, *tail]),
    st.lists(levels | st.just("+"), min_size=1, max_size=4),
    st.sampled_from([(), ("#",)]),
).filter(bool)
shared_filters = st.builds("$share/{}/{}".format, levels.filter(bool), plain_filters)

_KINDS: list[tuple[st.SearchStrategy[Any], str]] = [
    (flags, "payload_format request_response_information request_problem_information maximum_qos retain_available"),
    (flags, "wildcard_subscription_available subscription_ids_available shared_subscription_available"),
    (two_bytes, "topic_alias_maximum server_keep_alive"),
    (st.integers(1, 0xFFFF), "topic_alias receive_maximum"),
    (four_bytes, "message_expiry will_delay session_expiry"),
    (st.integers(1, 0xFFFF_FFFF), "maximum_packet_size"),
    (subscription_ids, "subscription_id"),
    (texts, "content_type assigned_client_id reason_string response_information server_reference"),
    (texts, "authentication_method"),
    (names, "response_topic"),
    (blobs, "correlation_data authentication_data"),
]
_BY_NAME = {name: strategy for strategy, names_of in _KINDS for name in names_of.split()}


def _properties(cls: Any) -> st.SearchStrategy[Any]:
    values: dict[str, st.SearchStrategy[Any]] = {}
    for field in cls.__attrs_attrs__:
        if field.name == "user_properties":
            values[field.name] = users
        elif field.name == "subscription_ids":
            values[field.name] = st.lists(subscription_ids, max_size=3).map(tuple)
        else:
            values[field.name] = st.none() | _BY_NAME[field.name]
    return st.builds(cls, **values)


def _with_method(properties: Any) -> bool:
    return properties.authentication_data is None or properties.authentication_method is not None


def _publish(properties: st.SearchStrategy[PublishProperties]) -> st.SearchStrategy[Publish]:
    def build(qos: int, dup: bool, packet_id: int, **rest: Any) -> Publish:
        return Publish(qos=qos, dup=dup and qos > 0, packet_id=packet_id if qos else 0, **rest)

    return st.builds(
        build,
        qos=qualities,
        dup=st.booleans(),
        packet_id=packet_ids,
        topic=names,
        payload=st.binary(max_size=300),
        retain=st.booleans(),
        properties=properties,
    )


def _will(properties: st.SearchStrategy[WillProperties]) -> st.SearchStrategy[Will]:
    return st.builds(Will, names, blobs, qualities, st.booleans(), properties)


publish_5_0 = _publish(_properties(PublishProperties))

_REASONS = _properties(ReasonProperties)
_PUBLISH_CODES = st.sampled_from([0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99])
_RELEASE_CODES = st.sampled_from([0x00, 0x92])
_SUBACK_CODES = [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2]
_UNSUBACK_CODES = [0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]

packets_5_0: st.SearchStrategy[Packet] = st.one_of(
    publish_5_0,
    st.builds(
        Connect,
        client_id=texts,
        version=st.just(5),
        clean_start=st.booleans(),
        keep_alive=two_bytes,
        username=st.none() | texts,
        password=st.none() | blobs,
        will=st.none() | _will(_properties(WillProperties)),
        properties=_properties(ConnectProperties).filter(_with_method),
    ),
    st.builds(Connack, st.booleans(), st.just(0), _properties(ConnackProperties)),
    st.builds(Connack, st.just(False), st.sampled_from([0x80, 0x84, 0x8C, 0x9F]), _properties(ConnackProperties)),
    *(st.builds(kind, packet_ids, _PUBLISH_CODES, _REASONS) for kind in (Puback, Pubrec)),
    *(st.builds(kind, packet_ids, _RELEASE_CODES, _REASONS) for kind in (Pubrel, Pubcomp)),
    st.builds(
        Subscribe,
        packet_ids,
        st.lists(
            st.builds(Subscription, plain_filters, qualities, st.booleans(), st.booleans(), st.integers(0, 2))
            | st.builds(Subscription, shared_filters, qualities, st.just(False), st.booleans(), st.integers(0, 2)),
            min_size=1,
            max_size=4,
        ).map(tuple),
        _properties(SubscribeProperties),
    ),
    st.builds(Suback, packet_ids, st.lists(st.sampled_from(_SUBACK_CODES), min_size=1).map(tuple), _REASONS),
    st.builds(
        Unsubscribe,
        packet_ids,
        st.lists(plain_filters | shared_filters, min_size=1, max_size=4).map(tuple),
        st.builds(SubscribeProperties, user_properties=users),
    ),
    st.builds(Unsuback, packet_ids, st.lists(st.sampled_from(_UNSUBACK_CODES), min_size=1).map(tuple), _REASONS),
    *(st.just(Pingreq()), st.just(Pingresp())),
    st.builds(Disconnect, st.sampled_from([0x00, 0x04, 0x82, 0x8E, 0xA2]), _properties(DisconnectProperties)),
    st.just(Auth()),
    st.builds(
        Auth,
        st.sampled_from([0x00, 0x18, 0x19]),
        _properties(AuthProperties).filter(lambda p: p.authentication_method is not None),
    ),
)

packets_3_1_1: st.SearchStrategy[Packet] = st.one_of(
    _publish(st.just(PublishProperties())),
    st.builds(
        Connect,
        client_id=texts.filter(bool),
        version=st.just(4),
        clean_start=st.booleans(),
        keep_alive=two_bytes,
        username=texts,
        password=st.none() | blobs,
        will=st.none() | _will(st.just(WillProperties())),
    ),
    st.builds(Connack, st.booleans(), st.just(0)),
    st.builds(Connack, st.just(False), st.sampled_from([0x84, 0x85, 0x86, 0x87, 0x88])),
    *(st.builds(kind, packet_ids) for kind in (Puback, Pubrec, Pubrel, Pubcomp, Unsuback)),
    st.builds(
        Subscribe,
        packet_ids,
        st.lists(st.builds(Subscription, plain_filters, qualities), min_size=1, max_size=4).map(tuple),
    ),
    st.builds(Suback, packet_ids, st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1).map(tuple)),
    st.builds(Unsubscribe, packet_ids, st.lists(plain_filters, min_size=1, max_size=4).map(tuple)),
    *(st.just(kind()) for kind in (Pingreq, Pingresp, Disconnect)),
)
