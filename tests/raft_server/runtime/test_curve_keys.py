"""The directory of keys of a peer: what is in it, and what is refused."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
import zmq.auth
from support.keys import add_client, add_peer, make_keys

from raft_client import RaftClient, SettingsError
from raft_client.server.runtime.curve_keys import CurveKeys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The keys of three peers and of a client."""
    return make_keys(tmp_path / "keys")


def public_key(file: Path) -> bytes:
    """The one in it."""
    return zmq.auth.load_certificate(file)[0]


def test_keys_say_whose_they_are(folder: Path) -> None:
    """The key of a peer is known by the peer's id, and that of a client is let in without one."""
    keys = CurveKeys(folder, "1")
    assert keys.peer_ids == {"1", "2", "3"}
    assert keys.of_peer("2") == public_key(folder / "2.key")
    assert keys.of_peer("4") is None
    assert keys.user(public_key(folder / "2.key")) == "2"
    assert keys.user(public_key(folder / "clients" / "app.key")) == ""
    assert keys.user(zmq.curve_keypair()[0]) is None


def test_names_of_peers_open_no_files(folder: Path) -> None:
    """A peer that is named as a path is not looked for: there is no key for it."""
    assert CurveKeys(folder, "1").of_peer("clients/app") is None


def test_the_directory_is_read_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is added or taken away counts a second later; a file that cannot be used is logged once, and lets nobody
    in."""
    keys = CurveKeys(folder, "1")
    keys.refresh(10.0)
    add_peer(folder, "4")
    (folder / "2.key").unlink()
    (folder / "3.key").write_text("nonsense")
    keys.refresh(10.9)
    assert keys.peer_ids == {"1", "2", "3"}
    with caplog.at_level(logging.WARNING, "raft_client.server"):
        for now in (11.0, 12.0):
            keys.refresh(now)
    assert keys.peer_ids == {"1", "4"}
    assert ["3.key cannot be used" in record.getMessage() for record in caplog.records] == [True]


def write(name: str, text: str) -> Callable[[Path], object]:
    """Another content of a file."""
    return lambda folder: (folder / name).write_text(text)


GOOD = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"  # a key out of ZeroMQ's own documentation (zmq_curve(7))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (shutil.rmtree, "there is none"),
        (lambda folder: (folder / "1.key_secret").unlink(), "1.key_secret cannot be used: No such file"),
        (lambda folder: (folder / "1.key_secret").chmod(0o640), "can be read by other users: chmod 600"),
        (write("1.key_secret", ""), "1.key_secret cannot be used: No public key"),
        (write("1.key_secret", f'public-key = "{GOOD}"\n'), "1.key_secret cannot be used: it has no secret-key"),
        (write("1.key_secret", f'public-key = "{GOOD}"\nsecret-key = "short"'), "not 40 characters of Z85"),
        (write("1.key_secret", f'public-key = "{GOOD}"\nsecret-key = "{GOOD}"'), "does not belong to its secret-key"),
        (write("1.key", f'public-key = "{GOOD}"\n'), "is not the public key of the pair in 1.key_secret"),
        (write("2.key", ""), "2.key cannot be used: No public key"),
        (write("2.key", 'public-key = "' + "#" * 40 + '"'), "2.key cannot be used: a key in it is not 40 characters"),
        (write("2.key", 'public-key = "' + "é" * 20 + '"'), "2.key cannot be used: a key in it is not 40 characters"),
        (write("clients/app.key", "x"), "app.key cannot be used: No public key"),
        (lambda folder: shutil.copy(folder / "2.key", folder / "clients"), "2.key belongs to somebody else, too"),
    ],
)
def test_what_cannot_work_is_refused(folder: Path, spoil: Callable[[Path], object], told: str) -> None:
    """Keys that are missing, malformed, open to others or those of two are refused, and the error names the file, not
    the key."""
    spoil(folder)
    with pytest.raises(SettingsError, match=told) as refused:
        CurveKeys(folder, "1")
    assert "secret-key =" not in str(refused.value)


def test_the_keys_of_members_can_be_asked_for(folder: Path) -> None:
    """A program that knows the members may ask whether each has a key; the error names the file that is missing."""
    keys = CurveKeys(folder, "1")
    keys.check(["1", "2"])
    with pytest.raises(SettingsError, match=r"there is no .*/4\.key"):
        keys.check(["1", "4"])


def test_an_id_that_is_no_name_of_a_file_has_no_keys(folder: Path) -> None:
    """A peer cannot have an id with a slash and a key."""
    with pytest.raises(SettingsError, match="its id is no name of a file"):
        CurveKeys(folder, "../1")


def test_without_libsodium_keys_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where libzmq has no CURVE, a peer and a client that should have keys say so."""
    monkeypatch.setattr(zmq, "has", lambda _what: False)
    with pytest.raises(SettingsError, match="CURVE is not in this libzmq"):
        CurveKeys(folder, "1")
    client = RaftClient("tcp://127.0.0.1:1", curve_server_key=GOOD)
    with pytest.raises(SettingsError, match="CURVE is not in this libzmq"):
        client.open()
    client.close()


def test_a_client_and_a_peer_may_have_the_same_name(folder: Path) -> None:
    """The name of a client is for people: it may be that of a peer, and is no peer's for that."""
    add_client(folder, "1")
    assert CurveKeys(folder, "1").user(public_key(folder / "clients" / "1.key")) == ""
