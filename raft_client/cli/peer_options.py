"""Peers and their cluster on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from raft_client.wire.configuration import Peer, Peers, is_tcp_url

F = TypeVar("F", bound=Callable[..., object])


def to_peer(_context: click.Context, _option: click.Parameter, value: str) -> Peer:
    """One peer."""
    peer_id, _, url = value.partition("=")
    if not peer_id or not is_tcp_url(url):
        raise click.BadParameter(f"{value!r} is not ID=URL, as 1=tcp://10.0.0.1:8047")
    return Peer(peer_id, url)


def _to_peers(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> Peers:
    """The members of a cluster."""
    peers = tuple(to_peer(context, option, value) for value in values)
    if len({peer.id for peer in peers}) < len(peers) or len({peer.url for peer in peers}) < len(peers):
        raise click.BadParameter("two peers with the same ID or URL")
    return peers


def members_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """``--peer ID=URL``, once for each member; the argument ``peers``."""
    return click.option(
        "--peer", "peers", callback=_to_peers, metavar="ID=URL", multiple=True, required=required, help=text
    )


def cluster_option(text: str) -> Callable[[F], F]:
    """``--cluster``, which the environment has, too."""
    return click.option(
        "--cluster", default="", envvar="ZMQRAFT_CLUSTER", help=f"{text} Default: ZMQRAFT_CLUSTER, or empty."
    )
