"""Directories of keys, as peers have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import zmq.auth

from raft_client import Peer, RaftSettings

__all__ = ["add_client", "add_peer", "make_keys", "settings_for"]


def make_keys(folder: Path, peers: Iterable[str] = "123") -> Path:
    """Keys of the peers, secret ones, too, and of a client named ``app``, whose secret key is beside the folder."""
    folder.mkdir()
    for peer_id in peers:
        add_peer(folder, peer_id)
    add_client(folder, "app")
    return folder


def add_peer(folder: Path, peer_id: str) -> None:
    """A key pair for this peer."""
    zmq.auth.create_certificates(folder, peer_id)
    (folder / f"{peer_id}.key_secret").chmod(0o600)


def add_client(folder: Path, name: str) -> tuple[str, str]:
    """A key pair for a client that is let in; the public and the secret key."""
    (folder / "clients").mkdir(exist_ok=True)
    zmq.auth.create_certificates(folder / "clients", name)
    secret_file = (folder / "clients" / f"{name}.key_secret").rename(folder.parent / f"{name}.key_secret")
    secret_file.chmod(0o600)
    return _pair(secret_file)


def settings_for(folder: Path, peers: Iterable[Peer], client: str = "app") -> RaftSettings:
    """How this client reaches these peers."""
    public, secret = _pair(folder.parent / f"{client}.key_secret")
    peers = tuple(peers)
    return RaftSettings(
        seeds=tuple(peer.url for peer in peers),
        curve_peer_keys={peer.url: zmq.auth.load_certificate(folder / f"{peer.id}.key")[0].decode() for peer in peers},
        curve_public_key=public,
        curve_secret_key=secret,
    )


def _pair(file: Path) -> tuple[str, str]:
    public, secret = zmq.auth.load_certificate(file)
    assert secret is not None
    return public.decode(), secret.decode()
