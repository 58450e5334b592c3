"""Time of the packet codec on state store requests. Run by hand: ``python tests/bench/bench_packets.py``."""

from __future__ import annotations

import statistics
import sys
import timeit
from collections.abc import Callable

from measure import Options

from statestore_client.mqtt.packets import PacketDecoder, Puback, Publish, PublishProperties, encode

RUNS = 7
REQUESTS = 3000  # all different, as a server sees them: own timestamp, packet identifier and correlation data


def request(number: int) -> Publish:
    """A request as the official SDKs send it."""
    return Publish(
        "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke",
        b"*3\r\n$3\r\nSET\r\n$8\r\nsome-key\r\n$90\r\n" + b"v" * 90 + b"\r\n",
        qos=1,
        packet_id=number + 1,
        properties=PublishProperties(
            payload_format=0,
            message_expiry=10,
            content_type="application/octet-stream",
            response_topic=(
                "clients/line-7-controller/services/statestore/v1/"
                "FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response"
            ),
            correlation_data=number.to_bytes(16, "big"),
            user_properties=(
                ("__ts", f"{1696374425000 + number:015d}:00000:line-7-controller"),
                ("__ft", "001696374425000:00000:line-7-controller"),
                ("__srcId", "line-7-controller"),
                ("__protVer", "1.0"),
                ("$partition", "line-7-controller"),
                ("$high_priority", ""),
            ),
        ),
    )


def reply(number: int) -> Publish:
    return Publish(
        "clients/line-7-controller/services/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response",
        b"+OK\r\n",
        qos=1,
        packet_id=number + 1,
        properties=PublishProperties(
            content_type="application/octet-stream",
            correlation_data=number.to_bytes(16, "big"),
            user_properties=(
                ("__ts", f"{1696374425000 + number:015d}:00000:server"),
                ("__stat", "200"),
                ("__protVer", "1.0"),
            ),
        ),
    )


def report(name: str, operation: Callable[[], object], count: int) -> None:
    """Print the median time of one of the ``count`` operations that a call makes."""
    loops = max(1, 20_000 // count)
    times = [timeit.timeit(operation, number=loops) / loops / count * 1e6 for _ in range(RUNS)]
    sys.stdout.write(f"{name:44} {statistics.median(times):7.2f} µs\n")


def main() -> int:
    Options.parse(__doc__)
    requests = [request(n) for n in range(REQUESTS)]
    replies = [reply(n) for n in range(REQUESTS)]
    pubacks = [Puback(n + 1) for n in range(REQUESTS)]
    request_bytes = [encode(packet) for packet in requests]
    puback_bytes = [encode(packet) for packet in pubacks]
    stream, puback_stream = b"".join(request_bytes), b"".join(puback_bytes)
    decoder = PacketDecoder(version=5, max_packet_size=1 << 20)
    feed = decoder.feed
    forwarded = feed(stream)
    one_byte = [stream[i : i + 1] for i in range(len(stream))]
    report("decode request, one per chunk", lambda: [feed(data) for data in request_bytes], REQUESTS)
    report("decode request, all in one chunk", lambda: feed(stream), REQUESTS)
    report("decode request, byte by byte", lambda: [feed(byte) for byte in one_byte], REQUESTS)
    report("encode request (to forward it)", lambda: [encode(packet) for packet in forwarded], REQUESTS)
    report("encode one message for many", lambda: [encode(forwarded[0]) for _ in range(REQUESTS)], REQUESTS)
    report("encode reply", lambda: [encode(packet) for packet in replies], REQUESTS)
    report("encode reply, built anew", lambda: [encode(reply(n)) for n in range(REQUESTS)], REQUESTS)
    plain = encode(Publish("plant/line-7/temperature", b"v" * 100, qos=1, packet_id=7), 4)
    old_feed = PacketDecoder(version=4, max_packet_size=1 << 20).feed
    report("decode PUBLISH of 3.1.1, 100 bytes", lambda: old_feed(plain * REQUESTS), REQUESTS)
    report("encode PUBACK", lambda: [encode(packet) for packet in pubacks], REQUESTS)
    report("decode PUBACK, one per chunk", lambda: [feed(data) for data in puback_bytes], REQUESTS)
    report("decode PUBACK, all in one chunk", lambda: feed(puback_stream), REQUESTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
