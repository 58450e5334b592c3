"""One malformed or forbidden packet after the other, with the reason code that MQTT 5.0 answers.

Sections are those of MQTT 5.0 unless they say otherwise. The offset counts from the packet's first byte.
"""

from __future__ import annotations

import pytest

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import PacketDecoder

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82

CONNECT = "0004 4D515454"

# name, version, bytes, reason code, offset
CASES: list[tuple[str, int | None, str, int, int]] = [
    # -- fixed header (2.1)
    ("type 0", 5, "00 00", PROTOCOL_ERROR, 0),
    ("AUTH in 3.1.1", 4, "F0 00", PROTOCOL_ERROR, 0),
    ("reserved flags of PINGREQ", 5, "C1 00", MALFORMED, 0),
    ("reserved flags of SUBSCRIBE", 5, "80 06 0001 00 0000 00", MALFORMED, 0),
    ("reserved flags of UNSUBSCRIBE", 4, "A0 05 0001 0001 61", MALFORMED, 0),
    ("reserved flags of PUBREL", 5, "60 02 0001", MALFORMED, 0),
    ("reserved flags of CONNECT", None, "11 0D 0004 4D515454 04 02 003C 0001 63", MALFORMED, 2),
    ("reserved flags of a second CONNECT", 5, "1F 00", MALFORMED, 0),
    ("PUBLISH with QoS 3", 5, "36 06 0001 61 0001 00", MALFORMED, 0),
    ("PUBLISH with DUP and QoS 0", 5, "38 04 0001 61 00", MALFORMED, 0),
    ("remaining length of five bytes", 5, "30 80 80 80 80 01", MALFORMED, 1),
    ("remaining length of four bytes that go on", 4, "30 FF FF FF FF", MALFORMED, 1),
    ("remaining length longer than needed", 5, "C0 80 00", MALFORMED, 1),
    ("remaining length longer than needed, CONNECT", None, f"10 8E 00 {CONNECT} 05 02 003C 00 0001 63", MALFORMED, 1),
    ("body of PINGREQ", 5, "C0 01 00", MALFORMED, 2),
    ("body of PINGRESP", 4, "D0 01 00", MALFORMED, 2),
    ("larger than agreed", 5, "30 E9 07", 0x95, 1),
    # -- CONNECT (3.1)
    ("first packet is PUBLISH", None, "30 04 0001 61 00", PROTOCOL_ERROR, 0),
    ("empty CONNECT", None, "10 00", MALFORMED, 2),
    ("protocol MQIsdp, version 4", None, "10 0F 0006 4D5149736470 04 02 003C 0001 63", 0x84, 10),
    ("MQTT 3.1 without a client identifier", None, "10 0E 0006 4D5149736470 03 02 003C 0000", 0x85, 16),
    ("protocol name in lower case", None, "10 0D 0004 6D717474 04 02 003C 0001 63", MALFORMED, 2),
    ("client identifier with U+0001", None, f"10 0D {CONNECT} 04 02 003C 0001 01", 0x85, 15),
    ("user name with U+009F", None, f"10 11 {CONNECT} 04 82 003C 0001 63 0002 C29F", 0x86, 19),
    ("will topic with U+007F", None, f"10 12 {CONNECT} 04 06 003C 0001 63 0001 7F 0000", 0x90, 18),
    ("protocol version 3", None, f"10 0D {CONNECT} 03 02 003C 0001 63", 0x84, 8),
    ("protocol version 6", None, f"10 0E {CONNECT} 06 02 003C 00 0001 63", 0x84, 8),
    ("reserved connect flag", None, f"10 0E {CONNECT} 05 03 003C 00 0001 63", MALFORMED, 9),
    ("will QoS 3", None, f"10 0E {CONNECT} 05 1E 003C 00 0001 63", MALFORMED, 9),
    ("will QoS without will", None, f"10 0E {CONNECT} 05 0A 003C 00 0001 63", MALFORMED, 9),
    ("will retain without will", None, f"10 0E {CONNECT} 05 22 003C 00 0001 63", MALFORMED, 9),
    ("password without user name, 3.1.1", None, f"10 10 {CONNECT} 04 42 003C 0001 63 0001 70", MALFORMED, 9),
    ("user name flag without user name", None, f"10 0E {CONNECT} 05 82 003C 00 0001 63", MALFORMED, 16),
    ("bytes after CONNECT", None, f"10 0F {CONNECT} 05 02 003C 00 0001 63 00", MALFORMED, 16),
    ("client identifier is not UTF-8", None, f"10 0E {CONNECT} 05 02 003C 00 0001 FF", MALFORMED, 15),
    ("will topic with wildcard", None, f"10 14 {CONNECT} 05 06 003C 00 0001 63 00 0001 23 0000", 0x90, 17),
    ("empty will topic", None, f"10 13 {CONNECT} 05 06 003C 00 0001 63 00 0000 0000", MALFORMED, 17),
    ("receive maximum 0", None, f"10 11 {CONNECT} 05 02 003C 03 21 0000 0001 63", PROTOCOL_ERROR, 13),
    ("maximum packet size 0", None, f"10 13 {CONNECT} 05 02 003C 05 27 00000000 0001 63", PROTOCOL_ERROR, 13),
    ("request problem information 2", None, f"10 10 {CONNECT} 05 02 003C 02 17 02 0001 63", PROTOCOL_ERROR, 13),
    ("request response information 2", None, f"10 10 {CONNECT} 05 02 003C 02 19 02 0001 63", PROTOCOL_ERROR, 13),
    ("authentication data alone", None, f"10 12 {CONNECT} 05 02 003C 04 16 0001 61 0001 63", PROTOCOL_ERROR, 12),
    ("will delay among CONNECT's", None, f"10 13 {CONNECT} 05 02 003C 05 18 00000000 0001 63", PROTOCOL_ERROR, 13),
    ("session expiry twice", None, f"10 18 {CONNECT} 05 02 003C 0A 1100000001 1100000001 0001 63", PROTOCOL_ERROR, 18),
    ("properties longer than CONNECT", None, f"10 0E {CONNECT} 05 02 003C 04 0001 63", MALFORMED, 13),
    # -- CONNACK (3.2)
    ("reserved CONNACK flag", 5, "20 03 02 00 00", MALFORMED, 2),
    ("session present with a refusal", 5, "20 03 01 87 00", PROTOCOL_ERROR, 2),
    ("CONNACK reason code 1", 5, "20 03 00 01 00", PROTOCOL_ERROR, 3),
    ("CONNACK return code 6", 4, "20 02 00 06", PROTOCOL_ERROR, 3),
    ("session present with a refusal, 3.1.1", 4, "20 02 01 05", PROTOCOL_ERROR, 2),
    ("CONNACK without properties", 5, "20 02 00 00", MALFORMED, 4),
    ("CONNACK of three bytes, 3.1.1", 4, "20 03 00 00 00", MALFORMED, 4),
    ("maximum QoS 2", 5, "20 05 00 00 02 24 02", PROTOCOL_ERROR, 5),
    ("retain available 2", 5, "20 05 00 00 02 25 02", PROTOCOL_ERROR, 5),
    ("server receive maximum 0", 5, "20 06 00 00 03 21 0000", PROTOCOL_ERROR, 5),
    # -- PUBLISH (3.3)
    ("empty PUBLISH", 5, "30 00", MALFORMED, 2),
    ("empty PUBLISH, 3.1.1", 4, "30 00", MALFORMED, 2),
    ("topic longer than PUBLISH", 5, "30 04 0009 61 00", MALFORMED, 4),
    ("topic longer than PUBLISH, 3.1.1", 4, "30 04 0009 61 00", MALFORMED, 4),
    ("topic with +", 5, "30 04 0001 2B 00", MALFORMED, 2),
    ("topic with #", 5, "30 06 0003 612F23 00", MALFORMED, 2),
    ("topic with #, 3.1.1", 4, "30 05 0003 612F23", MALFORMED, 2),
    ("no topic and no alias", 5, "30 03 0000 00", PROTOCOL_ERROR, 2),
    ("no topic, 3.1.1", 4, "30 02 0000", PROTOCOL_ERROR, 2),
    ("topic with U+0000", 5, "30 04 0001 00 00", MALFORMED, 4),
    ("topic with U+0000, 3.1.1", 4, "30 03 0001 00", MALFORMED, 4),
    ("topic with a surrogate", 5, "30 06 0003 EDA080 00", MALFORMED, 4),
    ("topic with an overlong NUL", 5, "30 05 0002 C080 00", MALFORMED, 4),
    ("topic cut inside a character", 4, "30 04 0002 61C3", MALFORMED, 5),
    ("packet identifier 0", 5, "32 06 0001 61 0000 00", PROTOCOL_ERROR, 5),
    ("packet identifier 0, 3.1.1", 4, "32 05 0001 61 0000", PROTOCOL_ERROR, 5),
    ("QoS 1 without packet identifier", 4, "32 03 0001 61", MALFORMED, 5),
    ("no property length", 5, "30 03 0001 61", MALFORMED, 5),
    ("property length of five bytes", 5, "30 08 0001 61 80808080 01", MALFORMED, 5),
    ("property length longer than needed", 5, "30 05 0001 61 80 00", MALFORMED, 5),
    ("property length cut", 5, "30 04 0001 61 80", MALFORMED, 5),
    ("properties longer than PUBLISH", 5, "30 05 0001 61 02 01", MALFORMED, 6),
    ("property cut by the property length", 5, "30 09 0001 61 01 0200000001", MALFORMED, 7),
    ("unknown property", 5, "30 06 0001 61 02 7F 00", MALFORMED, 6),
    ("property identifier of two bytes", 5, "30 07 0001 61 03 8100 00", MALFORMED, 6),
    ("session expiry in PUBLISH", 5, "30 09 0001 61 05 11 00000001", PROTOCOL_ERROR, 6),
    ("payload format 2", 5, "30 06 0001 61 02 01 02", PROTOCOL_ERROR, 6),
    ("payload format twice", 5, "30 08 0001 61 04 01 01 01 01", PROTOCOL_ERROR, 8),
    ("message expiry twice", 5, "30 0E 0001 61 0A 0200000001 0200000001", PROTOCOL_ERROR, 11),
    ("content type twice", 5, "30 0C 0001 61 08 03000161 03000161", PROTOCOL_ERROR, 10),
    ("content type with U+0000", 5, "30 08 0001 61 04 03 0001 00", MALFORMED, 9),
    ("response topic twice", 5, "30 0C 0001 61 08 08000161 08000161", PROTOCOL_ERROR, 10),
    ("response topic with wildcard", 5, "30 08 0001 61 04 08 0001 2B", PROTOCOL_ERROR, 6),
    ("empty response topic", 5, "30 07 0001 61 03 08 0000", PROTOCOL_ERROR, 6),
    ("correlation data twice", 5, "30 0C 0001 61 08 09000161 09000161", PROTOCOL_ERROR, 10),
    ("correlation data too long", 5, "30 08 0001 61 04 09 0002 61", MALFORMED, 9),
    ("subscription identifier 0", 5, "30 06 0001 61 02 0B 00", PROTOCOL_ERROR, 6),
    ("topic alias 0", 5, "30 07 0001 61 03 23 0000", 0x94, 6),
    ("topic alias twice", 5, "30 0A 0001 61 06 230001 230001", PROTOCOL_ERROR, 9),
    ("user property without value", 5, "30 08 0001 61 04 26 0001 61", MALFORMED, 10),
    ("user property value is not UTF-8", 5, "30 0B 0001 61 07 26 0001 61 0001 FF", MALFORMED, 12),
    ("user property name with U+0000", 5, "30 0B 0001 61 07 26 0001 00 0001 61", MALFORMED, 9),
    # -- PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7)
    ("PUBACK with packet identifier 0", 5, "40 02 0000", PROTOCOL_ERROR, 2),
    ("PUBACK with packet identifier 0, 3.1.1", 4, "40 02 0000", PROTOCOL_ERROR, 2),
    ("PUBACK of one byte", 5, "40 01 00", MALFORMED, 2),
    ("PUBACK of three bytes, 3.1.1", 4, "40 03 0001 00", MALFORMED, 4),
    ("PUBACK with a code of PUBREL", 5, "40 03 0001 92", PROTOCOL_ERROR, 4),
    ("PUBREC with an unknown code", 5, "50 03 0001 55", PROTOCOL_ERROR, 4),
    ("PUBREL with a code of PUBREC", 5, "62 03 0001 10", PROTOCOL_ERROR, 4),
    ("PUBCOMP with a code of PUBREC", 5, "70 03 0001 97", PROTOCOL_ERROR, 4),
    ("PUBACK with bytes behind its properties", 5, "40 05 0001 00 00 00", MALFORMED, 6),
    ("PUBACK with a property of PUBLISH", 5, "40 06 0001 00 02 01 01", PROTOCOL_ERROR, 6),
    ("reason string twice", 5, "40 0C 0001 00 08 1F000161 1F000161", PROTOCOL_ERROR, 10),
    # -- SUBSCRIBE and SUBACK (3.8, 3.9)
    ("SUBSCRIBE without filter", 5, "82 03 0001 00", MALFORMED, 5),
    ("SUBSCRIBE without filter, 3.1.1", 4, "82 02 0001", MALFORMED, 4),
    ("SUBSCRIBE with packet identifier 0", 5, "82 07 0000 00 0001 61 00", MALFORMED, 2),
    ("SUBSCRIBE without options", 5, "82 06 0001 00 0001 61", MALFORMED, 8),
    ("reserved subscription options", 5, "82 07 0001 00 0001 61 40", MALFORMED, 8),
    ("subscription QoS 3", 5, "82 07 0001 00 0001 61 03", MALFORMED, 8),
    ("subscription QoS 3, 3.1.1", 4, "82 06 0001 0001 61 03", MALFORMED, 7),
    ("subscription options of 5.0, 3.1.1", 4, "82 06 0001 0001 61 04", MALFORMED, 7),
    ("retain handling 3", 5, "82 07 0001 00 0001 61 30", MALFORMED, 8),
    ("no local on a shared subscription", 5, "82 10 0001 00 000A 2473686172652F672F61 04", PROTOCOL_ERROR, 17),
    ("share group without a filter", 5, "82 0E 0001 00 0008 2473686172652F67 00", PROTOCOL_ERROR, 5),
    ("empty filter", 5, "82 06 0001 00 0000 00", MALFORMED, 5),
    ("filter with # in the middle", 5, "82 09 0001 00 0003 232F61 00", MALFORMED, 5),
    ("filter with a+", 4, "82 07 0001 0002 612B 00", MALFORMED, 4),
    ("subscribe with subscription identifier 0", 5, "82 09 0001 02 0B00 0001 61 00", MALFORMED, 5),
    ("subscription identifier twice", 5, "82 0B 0001 04 0B01 0B02 0001 61 00", PROTOCOL_ERROR, 7),
    ("subscription identifier longer than needed", 5, "82 0A 0001 03 0B8100 0001 61 00", MALFORMED, 6),
    ("SUBACK without codes", 5, "90 03 0001 00", PROTOCOL_ERROR, 5),
    ("SUBACK with code 3", 5, "90 05 0001 00 00 03", PROTOCOL_ERROR, 6),
    ("SUBACK with a code of 5.0, 3.1.1", 4, "90 03 0001 87", PROTOCOL_ERROR, 4),
    # -- UNSUBSCRIBE and UNSUBACK (3.10, 3.11)
    ("UNSUBSCRIBE without filter", 5, "A2 03 0001 00", MALFORMED, 5),
    ("UNSUBSCRIBE without filter, 3.1.1", 4, "A2 02 0001", MALFORMED, 4),
    ("subscription identifier in UNSUBSCRIBE", 5, "A2 08 0001 02 0B01 0001 61", MALFORMED, 5),
    ("UNSUBSCRIBE with packet identifier 0", 4, "A2 05 0000 0001 61", MALFORMED, 2),
    ("UNSUBACK without codes", 5, "B0 03 0001 00", PROTOCOL_ERROR, 5),
    ("UNSUBACK with code 1", 5, "B0 04 0001 00 01", PROTOCOL_ERROR, 5),
    ("UNSUBACK with codes, 3.1.1", 4, "B0 03 0001 00", MALFORMED, 4),
    # -- DISCONNECT and AUTH (3.14, 3.15)
    ("body of DISCONNECT, 3.1.1", 4, "E0 01 00", MALFORMED, 2),
    ("DISCONNECT with code 1", 5, "E0 01 01", PROTOCOL_ERROR, 2),
    ("DISCONNECT with receive maximum", 5, "E0 05 00 03 21 0001", PROTOCOL_ERROR, 4),
    ("bytes after DISCONNECT", 5, "E0 03 00 00 00", MALFORMED, 4),
    ("AUTH with code 1", 5, "F0 02 01 00", PROTOCOL_ERROR, 2),
    ("AUTH of one byte", 5, "F0 01 18", MALFORMED, 3),
    ("AUTH without method", 5, "F0 02 18 00", PROTOCOL_ERROR, 2),
]


@pytest.mark.parametrize(
    ("version", "text", "reason_code", "offset"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_refused(version: int | None, text: str, reason_code: int, offset: int) -> None:
    """A malformed or forbidden packet is refused with its reason code at its byte, also if more packets follow in the
    chunk."""
    data = bytes.fromhex(text)
    for rest in (b"", b"\xc0\x00" * 300):
        with pytest.raises(PacketError) as caught:
            PacketDecoder(version=version, max_packet_size=1000).feed(data + rest)
        assert (hex(caught.value.reason_code), caught.value.offset) == (hex(reason_code), offset)
