"""Both packages read directories of keys, and refuse the same in the same words."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
import zmq.auth
from support.keys import add_peer, make_keys

import raft_client
import statestore_client
from raft_client.server.runtime.curve_keys import CurveKeys
from statestore_client.kvstore import ClientKeys
from statestore_client.server.runtime.security.site_keys import SiteKeys

GOOD = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"  # a key out of ZeroMQ's own documentation (zmq_curve(7))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The keys of three, and of a client."""
    return make_keys(tmp_path / "keys")


def write(name: str, text: str) -> Callable[[Path], object]:
    """Another content of a file."""
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree,
        lambda folder: (folder / "1.key_secret").unlink(),
        lambda folder: (folder / "1.key_secret").chmod(0o640),
        write("1.key_secret", ""),
        write("1.key_secret", f'public-key = "{GOOD}"\n'),
        write("1.key_secret", f'public-key = "{GOOD}"\nsecret-key = "short"'),
        write("1.key_secret", f'public-key = "{GOOD}"\nsecret-key = "{GOOD}"'),
        write("1.key", f'public-key = "{GOOD}"\n'),
        write("2.key", ""),
        write("2.key", 'public-key = "' + "#" * 40 + '"'),
        write("2.key", 'public-key = "' + "é" * 20 + '"'),
        write("clients/app.key", "x"),
        lambda folder: shutil.copy(folder / "2.key", folder / "clients"),
    ],
)
def test_both_packages_refuse_the_same(folder: Path, spoil: Callable[[Path], object]) -> None:
    """Keys that are missing, malformed, open to others or those of two; the error names the file, and no key."""
    assert CurveKeys(folder, "1").of_peer("2") == SiteKeys(folder, "1").of_site("2") is not None
    spoil(folder)
    with pytest.raises(raft_client.SettingsError) as of_peers:
        CurveKeys(folder, "1")
    with pytest.raises(statestore_client.SettingsError) as of_sites:
        SiteKeys(folder, "1")
    assert str(of_sites.value) == str(of_peers.value)
    assert str(folder) in str(of_sites.value)
    assert GOOD not in str(of_sites.value)


def test_both_packages_know_the_same_owners(folder: Path) -> None:
    """A site or a peer by its name, a client without one; names open no files."""
    peers, sites = CurveKeys(folder, "1"), SiteKeys(folder, "1")
    for file, owner in (("2.key", "2"), ("clients/app.key", "")):
        key = zmq.auth.load_certificate(folder / file)[0]
        assert sites.user(key) == owner
        assert peers.user(key) == file.removesuffix(".key"), "which says where the key is, to look whether it still is"
    assert sites.user(zmq.curve_keypair()[0]) is None
    assert sites.of_site("clients/app") is None
    with pytest.raises(statestore_client.SettingsError, match="no file can have its name"):
        SiteKeys(folder, "../1")


def test_the_directory_is_read_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is added or taken away counts a second later; a file that cannot be used is logged once."""
    keys = SiteKeys(folder, "1")
    keys.refresh(10.0)
    add_peer(folder, "4")
    (folder / "2.key").unlink()
    (folder / "3.key").write_text("nonsense")
    keys.refresh(10.9)
    assert [keys.of_site(name) is not None for name in "234"] == [True, True, False]
    keys.refresh(11.0)
    keys.refresh(12.0)
    assert [keys.of_site(name) is not None for name in "234"] == [False, False, True]
    assert ["3.key cannot be used" in record.getMessage() for record in caplog.records] == [True]


def test_keys_of_clients_are_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no key, what does not belong together, and a libzmq without CURVE: an error; no secret is shown."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    keys = ClientKeys(curve_server_key=GOOD, curve_public_key=public, curve_secret_key=secret)
    assert secret not in repr(keys)
    for wrong, told in (
        ({"curve_server_key": "short"}, "curve_server_key must be a CURVE key: 40 characters of Z85"),
        ({"curve_secret_key": 3}, "curve_secret_key must be a CURVE key"),
        ({"curve_public_key": GOOD}, "does not belong to curve_secret_key"),
    ):
        given = {"curve_server_key": GOOD, "curve_public_key": public, "curve_secret_key": secret} | wrong
        with pytest.raises(statestore_client.SettingsError, match=told):
            ClientKeys(**given)  # type: ignore[arg-type]
    own = folder.parent / "app.key_secret"
    for site, told in (("4.key", "4.key cannot be used: Invalid certificate file"), ("1.key", "")):
        if told:
            with pytest.raises(statestore_client.SettingsError, match=told):
                ClientKeys.read(own, folder / site)
        else:
            assert ClientKeys.read(own, folder / site).curve_server_key.encode() == SiteKeys(folder, "2").of_site("1")
    own.chmod(0o604)
    with pytest.raises(statestore_client.SettingsError, match="can be read by other users: chmod 600"):
        ClientKeys.read(own, folder / "1.key")
    monkeypatch.setattr(zmq, "has", lambda _what: False)
    with pytest.raises(statestore_client.SettingsError, match="CURVE is not in this libzmq"):
        ClientKeys.read(own, folder / "1.key")
