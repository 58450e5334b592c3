"""How many lines of the log a peer that is refused has."""

from __future__ import annotations

import logging
import random

from refusal_lines import BYSTANDER, GUESSER, LINES, PAUSE_S, Log, guess
from support.server_clients import Wire
from support.waiting import eventually

from statestore_client.mqtt.packets import (
    Connack,
    ConnectProperties,
    Puback,
    Publish,
)
from statestore_client.server import AccessRules, BrokerLimits, EmbeddedServer
from statestore_client.server.runtime.observability.refusal_log import RefusalLog


def test_a_peer_that_guesses_has_some_lines(log: Log) -> None:
    """A peer that guesses gets some lines, then one every ten seconds with a count; others are not affected."""
    limits = BrokerLimits(failed_attempts=0)
    with EmbeddedServer(passwords={"pump": "right"}, broker_limits=limits) as server:
        driver = server._running()._driver
        for number in range(30):
            guess(server, b"%d" % number)
        guess(server, b"x", source=BYSTANDER)
        assert [fields["peer"].partition(":")[0] for _, fields in log.wait(LINES + 1)] == [GUESSER] * LINES + [
            BYSTANDER
        ]
        eventually(lambda: not driver, "all are gone, and so logged or left out")
        server.clock.advance(PAUSE_S)
        guess(server, b"x")
        guess(server, b"x")
        eventually(lambda: not driver, "both are gone")
        warnings = log.wait(LINES + 2)
        assert len(warnings) == LINES + 2
        assert warnings[-1][1]["left_out"] == 20
        server.clock.advance(PAUSE_S)
        guess(server, b"x")
        assert log.wait(LINES + 3)[-1][1]["left_out"] == 1
    assert not any("left_out" in fields for _, fields in log.warnings[:-2])


def test_refusals_in_one_chunk_are_counted(log: Log) -> None:
    """Hundreds of refusals in one TCP packet are all counted, also those without a line."""
    with EmbeddedServer(acl=AccessRules.parse("")) as server, Wire(server) as wire:
        wire.connect("c")
        wire.send(*[Publish("t", b"", 1, packet_id=n) for n in range(1, 501)])
        assert {wire.receive() for _ in range(500)} == {Puback(n, 0x87) for n in range(1, 501)}
        server.clock.advance(PAUSE_S, keep_alive=False)
        wire.send(Publish("t", b"", 1, packet_id=1))
        warnings = log.wait(LINES + 1)
    assert len(warnings) == LINES + 1
    assert sum(fields.get("left_out", 0) for _, fields in warnings) == 500 - LINES


def test_a_verifier_that_stumbles_does_not_fill_the_disk(log: Log) -> None:
    """Tracebacks of a failing verifier are limited as the other lines are, and have an ERROR each."""

    def verify(_token: bytes) -> str | None:
        raise ValueError("not a token")

    properties = ConnectProperties(authentication_method="K8S-SAT", authentication_data=b"s3cret")
    with EmbeddedServer(token_verifier=verify) as server:
        for _ in range(30):
            with Wire(server) as wire:
                connack = wire.connect("c", properties=properties)
                assert isinstance(connack, Connack)
                assert connack.reason_code == 0x88
    errors = [record for record in log.records if record.levelno == logging.ERROR]
    assert 0 < len(errors) <= len(log.records) <= LINES
    assert all(isinstance(record.exc_info[1], ValueError) for record in errors)


def test_names_of_strangers_stay_on_their_line_and_short(log: Log) -> None:
    """A client id with line separators, a change of direction or a thousand characters stays on its line and is cut."""
    evil = "x\u2028stopped urls=[]\u202e" + "y" * 1_000
    with EmbeddedServer(passwords={"pump": "right"}) as server:
        guess(server, b"wrong", client_id=evil)
        log.wait(1)
    (record,) = log.records
    assert record.getMessage().isprintable()
    assert "x\\u2028stopped urls=[]\\u202eyyy" in record.getMessage()
    assert len(record.getMessage()) < 1000


def test_any_number_of_peers_has_bounded_lines_and_memory(log: Log) -> None:
    """Any number of peers gets a hundred lines and then ten a second, and all else is counted."""
    now = 0.0
    refusals = RefusalLog(lambda: now)
    rng, total, ended = random.Random(1), 100_000, 100.0
    for number in range(total):
        now = number / total * ended
        refusals.line("refused", f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}:1", client="c")
    assert len(refusals._left_out) <= 1000
    assert max(len(refusals._peers), len(refusals._all)) <= 10_000
    assert 1000 <= len(log.warnings) <= 100 + 10 * ended + 1
    told = sum(f.get("left_out", 0) + f.get("left_out_of_others", 0) for _, f in log.warnings)
    kept = sum(refusals._left_out.values()) + refusals._left_out_of_others
    assert len(log.warnings) + told + kept == total


def test_who_counts_as_one_peer(log: Log) -> None:
    """One peer is all ports of an address, an IPv6 network, all Unix sockets, or all absent clients together."""
    refusals = RefusalLog(lambda: 1.0)
    for peers in (
        [f"10.0.0.1:{port}" for port in range(100)],
        [f"2001:db8::{port:x}:1" for port in range(100)],
        ["", "None"] * 50,
        [None] * 100,
    ):
        before = len(log.warnings)
        for peer in peers:
            refusals.line("refused", peer)
        assert len(log.warnings) - before == LINES
