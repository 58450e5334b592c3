"""Which address is dialled when, with a number for the clock and no sockets."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping, Sequence
from random import Random

import attrs
import pytest

from statestore_client.errors import ConnectionLostError, ConnectRefusedError, SettingsError
from statestore_client.mqtt.addresses import Address, Addresses, Sockaddr
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Others

NEVER = math.inf


def ip(host: str, family: int = socket.AF_INET) -> Sockaddr:
    return (family, socket.SOCK_STREAM, 6, "", (host, 1883))


@attrs.define(slots=False)
class World:
    """What becomes of each dial: it opens after so many seconds, or fails after so many that are negative."""

    url: str
    dials: Mapping[str, float]
    names: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    look_up_s: float = 0.0
    connect_timeout: float = 10.0
    time: float = 1000.0
    done: list[str] = attrs.field(factory=list)  # dialled in this attempt, or with a question mark looked up

    def __attrs_post_init__(self) -> None:
        self.settings = ConnectionSettings.from_url(self.url, connect_timeout=self.connect_timeout)
        self.addresses = Addresses(self.settings)
        self.events: list[tuple[float, Address]] = []

    def attempt(self, *, new_round: bool = True) -> str | None:
        """Which address is in use, if any is; time goes on until then."""
        addresses = self.addresses
        addresses.begin(self.time, new_round=new_round)
        self.done.clear()
        until: float | None = self.time
        while until is not None:
            self.events.sort(key=lambda event: event[0])
            if self.events and self.events[0][0] <= until:
                self.time = max(self.time, self.events[0][0])
                self.happen(self.events.pop(0)[1])
            else:
                self.time = max(self.time, until)
            for late in addresses.late(self.time):
                self.events = [event for event in self.events if event[1] is not late]
                addresses.failed(late, TimeoutError())
            if taken := addresses.take(self.time):
                self.turn = taken[1]
                return self.name(taken[0])
            while due := addresses.due(self.time):
                is_look_up = due.sockaddr is None
                self.done.append(f"{self.name(due)}?" if is_look_up else self.name(due))
                took = self.look_up_s if is_look_up else abs(self.dials[self.name(due)])
                self.events.append((self.time + took, due))
            until = addresses.wait_until(self.time)
        return None

    def happen(self, address: Address) -> None:
        name = self.name(address)
        if address.sockaddr is None:
            self.addresses.found(address, [ip(one) for one in self.names.get(name, [name])])
        elif math.copysign(1, self.dials[name]) < 0:
            self.addresses.failed(address, ConnectionRefusedError(name))
        else:
            self.addresses.opened(address)

    def settle(self) -> None:
        left = self.addresses.settled()
        self.events = [event for event in self.events if event[1] not in left]

    @staticmethod
    def name(address: Address) -> str:
        return address.settings.host if address.sockaddr is None else str(address.sockaddr[4][0])

    @property
    def dialled(self) -> list[str]:
        """In this attempt, in order."""
        return [name for name in self.done if not name.endswith("?")]


def test_an_address_that_swallows_packets_costs_a_tenth_of_a_second() -> None:
    """Two of them cost two, and one that refuses costs nothing."""
    world = World("mqtt://a,b,c,d", {"a": NEVER, "b": -0.0, "c": NEVER, "d": 0.01})
    assert world.attempt() == "d"
    assert world.time == pytest.approx(1000.21)
    assert world.dialled == ["a", "b", "c", "d"]


def test_the_addresses_take_turns() -> None:
    """The one that was dialled longest ago comes first, whatever became of it."""
    world = World("mqtt://a,b,c", {"a": 0.01, "b": NEVER, "c": 0.01})
    used = []
    for _ in range(5):
        used.append(world.attempt())
        world.settle()
    assert used == ["a", "c", "a", "c", "a"]


def test_one_connect_at_a_time_and_the_next_open_one_has_its_turn() -> None:
    """What opens while another one is in use waits for that one's end, and is not dialled again."""
    world = World("mqtt://a,b,c", {"a": 0.25, "b": 0.25, "c": 0.01})
    assert world.attempt() == "c"
    assert world.addresses.others is Others.PENDING
    assert world.turn.deadline == pytest.approx(1000.21 + 10.0 / 3)
    world.time += 0.2
    world.attempt(new_round=False)
    assert world.done == []
    assert world.attempt(new_round=False) == "b"
    assert world.addresses.others is Others.NONE
    assert world.turn.deadline == 1010.0, "the last one has all of the time"


def test_a_far_broker_is_not_kept_out_by_a_near_one_that_refuses() -> None:
    """Its dial goes on while the near one is tried in each round."""
    world = World("mqtt://far,near", {"far": 0.35, "near": 0.001})
    used = []
    while "far" not in used:
        used.append(world.attempt())
        world.time += 0.1  # the pause of the back-off
    assert used == ["near", "near", "near", "far"]
    assert world.time - 1000.0 < 0.6


def test_nobody_waits_for_an_address_that_says_nothing_when_another_has_failed() -> None:
    """What refused may accept in a moment: the attempt is over a tenth of a second after the last dial. Where all are
    silent, there is nothing better to do."""
    world = World("mqtt://a,b", {"a": NEVER, "b": -0.0})
    assert world.attempt() is None
    assert world.time == pytest.approx(1000.2)
    assert world.addresses.others is Others.PENDING
    settings, why = world.addresses.failure
    assert (settings.host, type(why)) == ("b", ConnectionRefusedError)
    assert world.attempt() is None
    assert world.dialled == ["b"], "a is being dialled still"
    world.dials = {"a": NEVER, "b": NEVER}
    assert world.attempt() is None
    assert world.time == pytest.approx(1010.3), "when all have had their time"
    assert world.dialled == ["b", "a"], "once more, in this round"
    assert type(world.addresses.failure[1]) is TimeoutError


def test_the_rest_of_a_round_waits_for_those_that_are_late() -> None:
    """Of a client whose failure would be final."""
    world = World("mqtt://a,b", {"a": 3.0, "b": -0.0})
    assert world.attempt() is None
    assert world.attempt(new_round=False) == "a"
    assert world.time == pytest.approx(1003.0)
    dead = World("mqtt://a,b", {"a": NEVER, "b": -0.0})
    assert [dead.attempt(), dead.attempt(new_round=False)] == [None, None]
    assert dead.addresses.others is Others.NONE
    assert dead.time == pytest.approx(1010.0)


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_connection_that_was_accepted_ends_all_dials(is_settled: bool) -> None:
    """And in the same round only those are left that were not dialled; they have their time from then on. So it is when
    SUBACK did not come."""
    world = World("mqtt://a,b,c", {"a": NEVER, "b": 0.01, "c": 0.5}, connect_timeout=2.0)
    assert world.attempt() == "b"
    if is_settled:
        world.settle()
    assert world.addresses.others is Others.UNTRIED
    world.time += 4.0
    assert world.attempt(new_round=False) == "c"
    assert world.dialled == ["c"]


def test_an_error_names_every_address_and_what_it_said() -> None:
    """The most telling comes first, and decides of which kind the error is; who says the same is named in one breath.
    A server that accepts ends all that: what was said before counts no more.
    """
    world = World("mqtt://a,b,c,d", {"a": -0.0, "b": NEVER, "c": 0.01, "d": -0.0})
    assert world.attempt() == "c"
    world.time += 20.0
    refusal = ConnectRefusedError("mqtt://c:1883 refuses: no leader", reason_code=0x88)
    assert world.attempt(new_round=False) is None
    assert world.attempt() == "c"
    told = world.addresses.what_all_said(refusal)
    assert isinstance(told, ConnectRefusedError)
    assert (told.reason_code, refusal.message) == (0x88, "mqtt://c:1883 refuses: no leader")
    assert told.message == (
        "mqtt://c:1883 refuses: no leader; and cannot connect to mqtt://a:1883 and mqtt://d:1883: connection refused; "
        "is the broker running, and is the port right?; and cannot connect to mqtt://b:1883: no answer within 10 s"
    )
    world.settle()
    world.attempt()
    assert "mqtt://b:1883" not in world.addresses.what_all_said(refusal).message


def test_an_error_that_is_of_no_address_stands_alone() -> None:
    """A file that cannot be read is not what a server has said; one address, by two numbers, is named once."""
    world = World("mqtt://name", {"::1": -0.0, "127.0.0.1": -0.0}, names={"name": ["::1", "127.0.0.1"]})
    assert world.attempt() is None
    mistake = SettingsError("there is no tls_ca_file")
    assert world.addresses.what_all_said(mistake) is mistake
    refused = ConnectionLostError(
        "cannot connect to mqtt://name:1883: connection refused; is the broker running, and is the port right?"
    )
    assert world.addresses.what_all_said(refused).message == refused.message


def test_a_name_is_looked_up_in_each_round_and_what_is_new_comes_first() -> None:
    """Its addresses are addresses like those of the URL."""
    world = World("mqtt://plant", {"1": 0.01, "2": 0.01, "3": 0.01}, {"plant": ["1", "2"]}, look_up_s=0.005)
    assert world.attempt() == "1"
    assert world.addresses.others is Others.UNTRIED
    assert world.attempt(new_round=False) == "2"
    world.settle()
    world.names = {"plant": ["1", "2", "3"]}
    assert world.attempt() == "3"
    world.names = {"plant": ["2", "3"]}
    assert world.attempt() == "2"


def test_a_look_up_that_hangs_costs_a_tenth_of_a_second() -> None:
    """The other address is dialled beside it; what it finds later counts later."""
    world = World("mqtt://plant,other", {"1": 0.01, "2": 0.01}, {"plant": ["1"], "other": ["2"]}, look_up_s=0.0)
    slow = World("mqtt://plant,other", {"1": 0.01, "2": 0.01}, {"plant": ["1"], "other": ["2"]}, look_up_s=0.3)
    assert world.attempt() == "1"
    assert slow.attempt() == "1"
    assert slow.done == ["plant?", "other?", "1"]
    assert slow.time == pytest.approx(1000.31)


@pytest.mark.parametrize(
    ("url", "found", "several"),
    [
        ("mqtt://a", [ip("1")], False),
        ("mqtt://a", [ip("1"), ip("1")], False),
        ("mqtt://localhost", [ip("::1", socket.AF_INET6), ip("127.0.0.1")], False),
        ("mqtt://a", [ip("1"), ip("2")], True),
        ("mqtt://a,b", [ip("1")], True),
    ],
)
def test_who_has_several_addresses(url: str, found: list[Sockaddr], several: bool) -> None:
    """A machine has an address of each family; two of one family are taken for two machines."""
    addresses = Addresses(ConnectionSettings.from_url(url))
    addresses.begin(0.0, new_round=True)
    host = addresses.due(0.0)
    assert host is not None
    addresses.found(host, found)
    assert addresses.several is several


@pytest.mark.parametrize("seed", range(200))
def test_no_world_is_waited_for_in_vain(seed: int) -> None:
    """Whatever the addresses do: each is dialled once a round, an attempt ends in time, and a broker that opens within
    a second is reached within a second and a tenth for each address."""
    random = Random(seed)
    hosts = [f"h{number}" for number in range(random.randint(1, 5))]
    outcomes = {host: random.choice((NEVER, -0.0, -0.05, -1.0, 0.001, 0.15, 1.0)) for host in hosts}
    world = World("mqtt://" + ",".join(hosts), outcomes, connect_timeout=5.0)
    for _ in range(20):
        began, in_round, used = world.time, [], None
        is_first = True
        while used is None and (is_first or world.addresses.others is Others.UNTRIED):
            used = world.attempt(new_round=is_first)
            in_round += world.dialled
            is_first = False
        assert world.time - began <= 5.0 + 0.001
        assert len(set(in_round)) == len(in_round)
        if used is not None:
            assert world.turn.deadline <= began + 5.0 + 0.001 or world.events == []
            assert world.time - began <= 1.0 + 0.1 * len(hosts) + 0.001
            world.settle()
        world.time += random.choice((0.0, 0.1, 3.0))
