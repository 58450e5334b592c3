"""``a=host,b=host,c=host:port``: what is a cluster, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore_client import SettingsError
from statestore_client.server import ReplicaSettings


def in_cluster(nodes: object, **options: object) -> ReplicaSettings:
    """Of the server ``a``."""
    return ReplicaSettings.in_cluster(nodes, **{"id": "a", "data": "data", **options})  # type: ignore[arg-type]


def test_each_server_has_three_ports() -> None:
    """Of its peer, of what that broadcasts, and of the server itself."""
    settings = in_cluster("a=127.0.0.1, b=127.0.0.1:9000, c=[::1]:9100")
    assert settings.log == ("tcp://127.0.0.1:8047", "tcp://127.0.0.1:9000", "tcp://[::1]:9100")
    assert settings.peer is not None
    assert (settings.peer.host, settings.peer.publisher_port) == ("127.0.0.1", 8048)
    assert (settings.internal_host, settings.internal_port) == ("127.0.0.1", 8049)
    assert settings.internal_address == "127.0.0.1:8049"
    assert settings.peer.data == Path("data")


def test_it_may_listen_elsewhere_than_the_others_connect() -> None:
    """Behind a translation of addresses, for example."""
    settings = in_cluster({"a": "plant1.example", "b": "plant2.example", "c": "plant3.example"}, listen="::")
    assert settings.peer is not None
    assert settings.peer.host == "[::]"
    assert settings.internal_host == "::"
    assert settings.internal_address == "plant1.example:8049"


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("a=1.1.1.1,b=1.1.1.2", "3 to 9 servers, not 2"),
        ("a=1.1.1.1", "3 to 9 servers, not 1"),
        (",".join(f"n{i}=1.1.1.{i}" for i in range(1, 11)), "3 to 9 servers, not 10"),
        ("a=1.1.1.1,a=1.1.1.2,c=1.1.1.3", "the same id"),
        ("b=1.1.1.1,c=1.1.1.2,d=1.1.1.3", "'a' is none of the servers of the cluster: b, c, d"),
        ("a=1.1.1.1,b=1.1.1.1:8049,c=1.1.1.3", "a and b would share ports of 1.1.1.1"),
        ("a=1.1.1.1,b=1.1.1.1,c=1.1.1.3", "a and b would share ports"),
        ("a=127.0.0.1,b=1.1.1.2,c=1.1.1.3", "this machine only"),
        ("a,b=1.1.1.2,c=1.1.1.3", "a= is not ID=HOST"),
        ("a=1.1.1.1:x,b=1.1.1.2,c=1.1.1.3", "a=1.1.1.1:x is not ID=HOST"),
        ("a=tcp://1.1.1.1:8047,b=1.1.1.2,c=1.1.1.3", "is not ID=HOST"),
        ("a=1.1.1.1:65534,b=1.1.1.2,c=1.1.1.3", "from 1 to 65533"),
        ("a=1.1.1.1:0,b=1.1.1.2,c=1.1.1.3", "from 1 to 65533"),
        ("a/b=1.1.1.1,b=1.1.1.2,c=1.1.1.3", "letters, digits"),
        ("", "is not ID=HOST"),
        ({"a": 1}, "is not ID=HOST"),
    ],
)
def test_what_is_no_cluster(nodes: object, reason: str) -> None:
    """The error says what is wrong."""
    with pytest.raises(SettingsError, match=reason):
        in_cluster(nodes)


def test_a_name_that_others_would_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems know their own name as 127.0.1.1. Listening there would help nobody; so would no address at all."""
    nodes = "a=plant1,b=plant2,c=plant3"
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.1.1", 8047))])
    with pytest.raises(SettingsError, match=r"plant1 is 127\.0\.1\.1 on this machine"):
        in_cluster(nodes)

    def fails(*_: object, **__: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", fails)
    with pytest.raises(SettingsError, match="the own host plant1 has no address: Name or service not known"):
        in_cluster(nodes)
