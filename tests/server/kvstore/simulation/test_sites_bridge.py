"""State stores of several sites, joined by their bridges: whatever happens, each ends up with what the others chose."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sites_node import Node
from sites_world import Edge, World

from statestore_client.server.bridge import RESERVED_BYTES, Bridge, BridgeOptions, owner_of
from statestore_client.server.store import RequestContext, SiteStore
from statestore_client.wire.commands import Command, Condition, Del, Set
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant

TTL_MS = 5_000
_WALL_MS = 1_696_374_425_000
_LEASE_MS = 600_000
_EXAMPLES = int(os.environ.get("BRIDGE_SCHEDULES", "25"))
#: "s" is a prefix of "sites/", and must not take anything along.
_OPTIONS = BridgeOptions((b"x/", b"s"), imports=True)
_NAMES = ("oslo", "rome", "bern")
#: What was lost is repaired, keys of dead sites have ended, and four errors in a row cost 32 s.
_CALM_S = 45.0 + 2 * TTL_MS / 1000

SITES = st.integers(0, 2)
KEYS = st.sampled_from([b"x/1", b"x/2", b"s1", b"y/1", b"x/\xff"])
VALUES = st.sampled_from([b"", b"1", b"2"])
STEPS = st.one_of(
    st.tuples(st.just("put"), SITES, KEYS, VALUES),
    st.tuples(st.sampled_from(["fence", "lock", "delete"]), SITES, KEYS, st.none()),
    st.tuples(st.sampled_from(["cut", "mend"]), SITES, st.none(), st.none()),
    st.tuples(st.sampled_from(["stop", "lose", "start"]), SITES, st.none(), st.none()),
    st.tuples(st.just("run"), SITES, st.none(), st.sampled_from([0.02, 0.3, 2.0, 7.0])),
)


class BridgedNode(Node):
    """Its state store survives a restart, or does not, as the test says."""

    def __init__(self, world: World, name: str, options: BridgeOptions) -> None:
        self._options = options
        self.bridge: Bridge | None = None
        self.state = self._empty()
        super().__init__(world, name, ("ranges",), None, TTL_MS)

    def _empty(self) -> SiteStore:
        return SiteStore(clock=HybridLogicalClock("StateStore", guard=nullcontext()))

    def start(self) -> None:
        """A new incarnation of the site, and a new bridge to its state store."""
        if self.bridge is not None:
            self.bridge.close()
            self.bridge = None
        super().start()
        self.bridge = Bridge(self.state, self.area, self.name, self._options, lambda: None)
        self.turn()

    def lose_everything(self) -> None:
        """What the state store has, as if there were no disk. For the time while it is stopped."""
        self.state = self._empty()

    def lose_imports(self) -> None:
        """As a durable server does that starts again."""
        for key in self.keys():
            if key.startswith(RESERVED_BYTES):
                self.state.drop_import(key, self.instant)

    def turn(self) -> None:
        """The bridge between what the site has received and what it sends."""
        self._work()
        super().turn()
        if self._work():
            self._set_timer()

    def _work(self) -> bool:
        has_worked = False
        while self.bridge is not None and self.bridge.has_work:
            self.bridge.step(self.instant, self.now)
            has_worked = True
        return has_worked

    # -- clients of the state store ------------------------------------------------------------------------------------

    @property
    def instant(self) -> Instant:
        """By the clocks of the state store."""
        return Instant(self.world.now, _WALL_MS + int(self.world.now * 1000))

    def _apply(self, command: Command, *, token: bool = False) -> None:
        stamp = HlcTimestamp(self.instant.wall_ms, 0, "client")
        self.state.apply(command, RequestContext("client", stamp, stamp if token else None, self.instant))
        if self.is_alive:
            self.turn()

    def put(self, key: bytes, value: bytes, *, token: bool = False) -> None:
        """A plain value, or one with a fencing mark."""
        self._apply(Set(key, value), token=token)

    def lock(self, key: bytes) -> None:
        """As the clients' locks do it."""
        self._apply(Set(key, b"holder", Condition.NX, _LEASE_MS))

    def delete(self, key: bytes) -> None:
        """If no mark protects it."""
        self._apply(Del(key))

    def keys(self) -> list[bytes]:
        """All of the state store."""
        return list(self.state.keys_from(b"", inclusive=True))

    def contents(self, *, imports: bool) -> dict[bytes, bytes]:
        """What clients read: imports, or what crosses to other sites."""
        found = {}
        for key in self.keys():
            entry = self.state.entry(key, self.instant)
            if entry is None or key.startswith(RESERVED_BYTES) is not imports:
                continue
            is_plain = entry.expires_at is None and entry.fence is None
            if imports or (key.startswith(self._options.exports) and is_plain):
                found[key] = entry.value
        return found


class Continent:
    """Three sites in a line, and what happens to them."""

    def __init__(self) -> None:
        self.world = World(1)
        self.nodes = [BridgedNode(self.world, name, _OPTIONS) for name in _NAMES]
        for number in range(2):
            edge = Edge(number, self.nodes[number], self.nodes[number + 1])
            self.world.edges.append(edge)
            for node in (edge.dialer, edge.listener):
                node.edges.append(edge)
        for node in self.nodes:
            node.start()

    def carry_out(self, step: str, number: int, key: bytes | None, argument: bytes | float | None) -> None:
        """One of the steps."""
        node, edge = self.nodes[number], self.world.edges[number % 2]
        if isinstance(argument, float):
            self.world.run_until(self.world.now + argument)
        elif key is not None:
            if isinstance(argument, bytes):
                node.put(key, argument)
            else:
                {"fence": lambda k: node.put(k, b"f", token=True), "lock": node.lock, "delete": node.delete}[step](key)
        elif step in ("cut", "mend"):
            edge.is_cut = step == "cut"
        elif step == "start":
            self.start(node)
        else:
            node.stop()
            if step == "lose":
                node.lose_everything()

    def start(self, node: BridgedNode) -> None:
        """If it is not running."""
        if not node.is_alive:
            node.lose_imports()
            node.start()

    def calm(self) -> None:
        """All run, and nothing fails any more."""
        for edge in self.world.edges:
            edge.is_cut = False
        for node in self.nodes:
            self.start(node)
        self.world.run_until(self.world.now + _CALM_S)


@settings(max_examples=_EXAMPLES)
@example([("put", 0, b"x/1", b""), ("run", 0, None, 7.0), ("stop", 0, None, None), ("stop", 1, None, None)])
@given(st.lists(STEPS, max_size=25))
@pytest.mark.ci
def test_in_the_end_every_site_has_what_the_others_chose(
    steps: list[tuple[str, int, bytes | None, bytes | float | None]],
) -> None:
    """Sets, locks, deletions, cut lines, restarts with and without a disk: then ``sites/NAME/`` has the chosen plain
    keys of NAME at all other sites, and nothing else; nothing goes in a circle.
    """
    continent = Continent()
    for step in steps:
        continent.carry_out(*step)
    continent.calm()
    assert continent.world.violations == []
    for node in continent.nodes:
        expected = {
            b"sites/%b/%b" % (other.name.encode(), key): value
            for other in continent.nodes
            for key, value in other.contents(imports=False).items()
            if other is not node and key != b"x/\xff"
        }
        assert node.contents(imports=True) == expected, node.name
        bridged = {name for name in node.store if name.startswith("sites/")}
        assert all(owner_of(name) in _NAMES and "/sites/" not in name for name in bridged)
        assert all(0 < entry.ttl_ms <= TTL_MS for name in bridged if (entry := node.store.get(name)) is not None)


def test_a_site_that_is_gone_vanishes_from_the_others() -> None:
    """Its keys end with their time to live, and are there again when it is back."""
    continent = Continent()
    rome = continent.nodes[1]
    rome.put(b"x/1", b"1")
    continent.world.run_until(5.0)
    assert all(node.contents(imports=True) == {b"sites/rome/x/1": b"1"} for node in continent.nodes if node is not rome)
    rome.stop()
    continent.world.run_until(5.0 + TTL_MS / 1000 * 1.1)
    assert all(node.contents(imports=True) == {} for node in continent.nodes)
    rome.start()
    continent.world.run_until(30.0)
    assert all(node.contents(imports=True) == {b"sites/rome/x/1": b"1"} for node in continent.nodes if node is not rome)
    assert continent.world.violations == []
