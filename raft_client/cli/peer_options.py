"""Peers on the command line: ``ID=URL``."""

from __future__ import annotations

import click

from raft_client.wire.configuration import Peer, Peers
from raft_client.wire.peer_urls import is_peer_url

__all__ = ["to_peer", "to_peers"]


def to_peer(_context: click.Context, _option: click.Parameter, value: str) -> Peer:
    """One peer."""
    peer_id, _, url = value.partition("=")
    if not peer_id or not is_peer_url(url):
        raise click.BadParameter(f"{value!r} is not ID=URL, as 1=tcp://10.0.0.1:8047")
    return Peer(peer_id, url)


def to_peers(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> Peers:
    """The members of a cluster."""
    peers = tuple(to_peer(context, option, value) for value in values)
    if len({peer.id for peer in peers}) < len(peers) or len({peer.url for peer in peers}) < len(peers):
        raise click.BadParameter("two peers with the same ID or URL")
    return peers
