"""Every accepted socket, from accept to its end: who has how many, and how much of unfinished packets.

Nobody may shut others out. So those who have not said who they are (*unauthenticated*: in a handshake, before CONNECT,
or while their credentials are verified) have a count and a budget of bytes of their own, beside those of the clients.
Over a bound, the offender goes: of the address with most, the oldest connection or the one that holds most.

Invariant: who goes is of an address that has no less than any other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.broker.quotas import network_of
from statestore_client.server.runtime.process import file_limit

if TYPE_CHECKING:
    import asyncio

    from statestore_client.server.broker import BrokerLimits

#: Peers without an address (Unix sockets) count as one.
_NO_ADDRESS: Final = ""

#: Of the files that the process may open, this part is for sockets of strangers; the rest is for clients and data.
_PART_OF_FILES: Final = 4


class Member(Protocol):
    """What may be chosen to go."""

    def drop(self, error: PacketError) -> None:
        """End it, now."""


class _Gone:
    """In place of who would have to end it."""

    def drop(self, error: PacketError) -> None:
        """It has ended."""


_GONE: Final = _Gone()


@attrs.define(eq=False)
class Peer:
    """One accepted socket."""

    name: str  # address and port, for the log
    network: str
    accepted_at: float  # monotonic seconds
    link: Member = attrs.field(repr=False)
    key: object = attrs.field(repr=False)
    group: Group | None = attrs.field(default=None, repr=False)  # None: it is over, or about to be
    held_bytes: int = 0

    @classmethod
    def of(cls, transport: asyncio.BaseTransport, link: Member, now: float, origin: str | None = None) -> Peer:
        """``link`` is who has to end it. ``origin``: where it comes from, if another server passes it on."""
        name = origin or peer_name(transport)
        return cls(name, network_of(name) or _NO_ADDRESS, now, link, _key_of(transport))


@attrs.define(eq=False)
class Group:
    """Peers by network. Invariant: no network is without peers, or in ``_bytes`` with none."""

    count: int = 0
    held_bytes: int = 0
    _peers: dict[str, dict[Peer, None]] = attrs.Factory(dict)  # in the order of their arrival
    _bytes: Counter[str] = attrs.Factory(Counter)

    def add(self, peer: Peer) -> None:
        peer.group = self
        self._peers.setdefault(peer.network, {})[peer] = None
        self.count += 1
        self._add_bytes(peer.network, peer.held_bytes)

    def remove(self, peer: Peer) -> None:
        peer.group = None
        peers = self._peers[peer.network]
        del peers[peer]
        if not peers:
            del self._peers[peer.network]
        self.count -= 1
        self._add_bytes(peer.network, -peer.held_bytes)

    def hold(self, peer: Peer, more: int) -> None:
        """One of them holds this many bytes more, or less."""
        peer.held_bytes += more
        self._add_bytes(peer.network, more)

    def _add_bytes(self, network: str, more: int) -> None:
        self.held_bytes += more
        if more:
            self._bytes[network] += more
            if not self._bytes[network]:
                del self._bytes[network]

    def count_of(self, network: str) -> int:
        return len(self._peers.get(network, ()))

    def oldest_of(self, network: str) -> Peer:
        return next(iter(self._peers[network]))

    def oldest_of_most(self, newcomer: Peer) -> Peer:
        """Of the network with most peers; of several such networks, of the newcomer's."""
        network = max(self._peers, key=lambda name: (len(self._peers[name]), name == newcomer.network))
        return self.oldest_of(network)

    def largest(self, latest: Peer) -> Peer:
        """Of the network that holds most, who holds most; of several such, the latest."""
        network = max(self._bytes, key=lambda name: (self._bytes[name], name == latest.network))
        return max(self._peers[network], key=lambda peer: (peer.held_bytes, peer is latest))


class Peers:
    """All of one server. Belongs to the thread of its event loop."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._by_socket: dict[object, Peer] = {}
        self._origins: dict[object, str] = {}
        files = file_limit()
        most = limits.unauthenticated_connections
        self._most = most if files is None else max(1, min(most, files // _PART_OF_FILES))
        self.unauthenticated: Group = Group()
        self.clients: Group = Group()

    def __len__(self) -> int:
        """Open sockets."""
        return len(self._by_socket)

    @property
    def held_bytes(self) -> int:
        """Of packets that are not complete, or not carried out."""
        return self.unauthenticated.held_bytes + self.clients.held_bytes

    def came_from(self, transport: asyncio.BaseTransport, address: tuple[str, int]) -> None:
        """Call it before :meth:`accepted`, for a client that another server passes on."""
        self._origins[_key_of(transport)] = _name_of(address)

    def accepted(self, transport: asyncio.BaseTransport, link: Member, now: float) -> Peer:
        """A new socket; or one whose handshake of TLS is over, which goes on as who it is. ``link`` is who has to end
        it. Call :meth:`make_room` when that can be done.
        """
        peer = Peer.of(transport, link, now, self._origins.get(_key_of(transport)))
        known = self._by_socket.setdefault(peer.key, peer)
        known.link = link
        if known is peer:
            self.unauthenticated.add(peer)
        return known

    def make_room(self, newcomer: Peer) -> None:
        """Somebody may have to go for a new one, or it has to go itself: then its ``group`` is None."""
        group, limits = self.unauthenticated, self._limits
        network, most = newcomer.network, limits.connections_per_address
        if most and network != _NO_ADDRESS and group.count_of(network) > most:
            reason = "too many connections from this address that have not said who they are"
            self._drop(group.oldest_of(network), reason, ReasonCode.QUOTA_EXCEEDED)
        elif group.count > self._most:
            reason = "too many connections that have not said who they are"
            self._drop(group.oldest_of_most(newcomer), reason, ReasonCode.SERVER_BUSY)

    def authenticated(self, peer: Peer) -> None:
        """It has a session."""
        if peer.group is self.unauthenticated:
            self.unauthenticated.remove(peer)
            self.clients.add(peer)

    def hold(self, peer: Peer, more: int) -> None:
        """It makes the server hold this many bytes more, or less. Over the budget, whoever holds most has to go."""
        group = peer.group
        if group is None:
            return
        group.hold(peer, more)
        limits = self._limits
        limit = limits.unfinished_bytes if group is self.clients else limits.unauthenticated_bytes
        while more > 0 and group.held_bytes > limit:
            self._drop(group.largest(peer), "too many bytes of unfinished packets", ReasonCode.QUOTA_EXCEEDED)

    def gone(self, peer: Peer) -> None:
        """Its socket is closed. Safe to call twice."""
        self._forget(peer)
        peer.link = _GONE  # each knows the other: nothing is left for the garbage collector
        self._by_socket.pop(peer.key, None)
        self._origins.pop(peer.key, None)

    def _forget(self, peer: Peer) -> None:
        if peer.group is not None:
            peer.group.remove(peer)

    def _drop(self, peer: Peer, reason: str, code: ReasonCode) -> None:
        self._forget(peer)
        peer.link.drop(PacketError(reason, reason_code=code))


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Address and port of the other end, for the log."""
    return _name_of(transport.get_extra_info("peername"))


def _name_of(address: object) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) >= 2 else str(address)


def _key_of(transport: asyncio.BaseTransport) -> object:
    """TLS puts another transport in front of the same socket."""
    return transport.get_extra_info("socket") or transport
