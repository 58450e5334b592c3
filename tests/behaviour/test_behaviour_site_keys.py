"""Sites and clients with CURVE keys, on sockets: who comes in, who does not, and what is said about it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zmq
from support.keys import add_client, add_peer, make_keys
from support.proxy import Proxy
from support.sites import SHELLS, Looped, SiteThread
from support.waiting import eventually, until

from statestore_client.errors import InvalidArgumentError, RequestTimeoutError, SettingsError
from statestore_client.kvstore import ClientKeys
from statestore_client.server.runtime.settings import SiteEndpoints
from statestore_client.server.runtime.sites import SitePeering
from statestore_client.wire.kvstore.codec import decode, encode
from statestore_client.wire.kvstore.messages import PROTOCOL_VERSION, CompareRanges, Hello, Refusal, RefusalReason


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The keys of two sites and of a client."""
    return make_keys(tmp_path / "keys", ("bonn", "rome"))


@pytest.fixture
def bonn(keys: Path) -> Iterator[SiteThread]:
    """A site with keys."""
    with SiteThread("bonn", keys=keys) as site:
        yield site


@pytest.fixture(params=SHELLS, ids=lambda shell: shell.__name__)
def client_of(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients of one shell, and closes them."""
    with contextlib.ExitStack() as made:

        def make(url: str, keys: ClientKeys | None, timeout_s: float = 20.0) -> Any:
            client = request.param(url, keys=keys, timeout_s=timeout_s)
            if isinstance(client, Looped):
                made.callback(client.runner.close)
            made.callback(client.close)
            return client

        yield make


def keys_of(folder: Path, client: str = "app", site: str = "bonn") -> ClientKeys:
    """As the client reads them."""
    return ClientKeys.read(folder.parent / f"{client}.key_secret", folder / f"{site}.key")


def peer(site: SiteThread) -> str:
    """How it is dialled by a site with keys."""
    return f"bonn={site.url}"


def logged(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """How many lines of the log say this."""
    return sum(text in record.getMessage() for record in caplog.records)


def test_sites_and_clients_with_keys_share(keys: Path, bonn: SiteThread, client_of: Callable[..., Any]) -> None:
    """Two sites exchange their keys, a client reads, writes and follows through a further connection."""
    with SiteThread("rome", peer(bonn), keys=keys) as rome:
        here, there = client_of(bonn.url, keys_of(keys)), client_of(rome.url, keys_of(keys, site="rome"))
        here.persist("k", b"v")
        eventually(lambda: there.get("k"))
        assert there.differs({}, timeout_s=20)
        peers = there.peers()
        assert peers.peers["bonn"].is_connected
        assert (bonn.peering.refused_handshakes, rome.peering.refused_handshakes) == (0, 0)


def stranger(folder: Path, kind: str) -> ClientKeys | None:
    """Keys of a client that does not come in."""
    good = keys_of(folder)
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return {
        "no keys": None,
        "an unknown key": ClientKeys(
            curve_server_key=good.curve_server_key, curve_public_key=public, curve_secret_key=secret
        ),
        "another key for the site": keys_of(folder, site="rome"),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "told", "place"),
    [
        ("no keys", "oes it want keys", "from an address that libzmq does not tell"),
        ("an unknown key", "it does not know the key of this client", "from 127.0.0.1: its key is not in"),
        ("another key for the site", "is curve_server_key its own", "from an address that libzmq does not tell"),
    ],
)
@pytest.mark.attack("sites", "come in without a key")
def test_a_stranger_is_refused(
    keys: Path,
    bonn: SiteThread,
    client_of: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    kind: str,
    told: str,
    place: str,
) -> None:
    """It is told why, the site logs it once and counts each time, and others come in as before."""
    for _ in range(2):
        with pytest.raises(RequestTimeoutError, match=told) as late:
            client_of(bonn.url, stranger(keys, kind), timeout_s=0.4).set("k", b"stranger")
        assert not late.value.may_have_been_applied
    assert logged(caplog, f"site bonn refuses connections {place}") == 1
    assert bonn.peering.refused_handshakes >= 2
    assert client_of(bonn.url, keys_of(keys)).get("k") is None


def test_a_client_with_keys_does_not_talk_to_a_site_without(keys: Path, client_of: Callable[..., Any]) -> None:
    """Nothing is said in the clear."""
    with SiteThread("bonn") as site:
        with pytest.raises(RequestTimeoutError, match="the handshake fails; has it keys"):
            client_of(site.url, keys_of(keys), timeout_s=0.4).set("k", b"v")
        assert client_of(site.url, None).get("k") is None


def test_a_client_comes_in_when_its_key_is_there(keys: Path, bonn: SiteThread, client_of: Callable[..., Any]) -> None:
    """A client that was refused goes on trying: nobody has to be started again."""
    add_client(keys, "late")
    public = (keys / "clients" / "late.key").rename(keys.parent / "late.key")
    client = client_of(bonn.url, keys_of(keys, "late"), timeout_s=0.4)
    with pytest.raises(RequestTimeoutError, match="does not know the key"):
        client.get("k")
    shutil.copy(public, keys / "clients")

    def comes_in() -> bool:
        with contextlib.suppress(RequestTimeoutError):
            return client.get("k") is None
        return False

    eventually(comes_in)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        ("no keys", "the handshake fails; this site has no keys, does that one want some"),
        ("another key for the peer", "the handshake fails; has that site keys, and is the key"),
        ("an unknown key", "that site does not know the key of this one"),
    ],
)
@pytest.mark.ci
def test_a_site_that_is_refused_says_why_and_comes_in_later(
    keys: Path, tmp_path: Path, bonn: SiteThread, caplog: pytest.LogCaptureFixture, spoil: str, told: str
) -> None:
    """A line for each reason and one figure; it tries again, and is a peer when the keys are right."""
    own = shutil.copytree(keys, tmp_path / "own")
    if spoil == "another key for the peer":
        shutil.copy(keys / "clients" / "app.key", own / "bonn.key")
        shutil.rmtree(own / "clients")
    if spoil == "an unknown key":
        for end in ("key", "key_secret"):
            (own / f"rome.{end}").unlink()
        add_peer(own, "rome")
    has_keys = spoil != "no keys"
    with SiteThread("rome", peer(bonn) if has_keys else bonn.url, keys=own if has_keys else None) as rome:
        eventually(lambda: rome.peering.refused_handshakes >= 2)
        assert logged(caplog, f"site rome cannot connect to {rome.peering._sockets.dialled[0]}: {told}") == 1
        assert bonn.peering.refused_handshakes
        assert "bonn" not in rome.peering.site.replicas["default"].peers
        if not has_keys:
            return
        shutil.copy(keys / "bonn.key", own / "bonn.key")
        shutil.copy(own / "rome.key", keys / "rome.key")
        bonn.set_many({"k": b"v"})
        eventually(lambda: "k" in rome.peering.site.replicas["default"].contents.store)


@pytest.mark.attack("sites", "speak in the name of another site")
def test_nobody_speaks_in_the_name_of_another_site(keys: Path, bonn: SiteThread) -> None:
    """A client's key is enough for no hello, and the key of a site for no other name than its own."""
    add_peer(keys, "oslo")
    hello = encode(Hello(PROTOCOL_VERSION, "rome", 1, ("default",), (), False))
    with zmq.Context() as context:
        for file, is_taken in (("app", False), ("keys/oslo", False), ("keys/rome", True)):
            pair = ClientKeys.read(keys.parent / f"{file}.key_secret", keys / "bonn.key")
            with context.socket(zmq.DEALER) as socket:
                socket.linger = 0
                socket.curve_serverkey = pair.curve_server_key.encode()
                socket.curve_publickey = pair.curve_public_key.encode()
                socket.curve_secretkey = pair.curve_secret_key.encode()
                socket.connect(bonn.url)
                socket.send(hello)
                assert socket.poll(20_000)
                reply = decode(socket.recv())
            assert isinstance(reply, Hello) is is_taken
            if isinstance(reply, Refusal):
                assert reply.reason == RefusalReason.ANOTHER_KEY


def test_a_route_that_was_a_sites_is_nobody_elses(keys: Path, bonn: SiteThread) -> None:
    """What comes on a connection of a site counts only with the key of that site, whatever route it has taken."""

    def say(user: str) -> bool:
        site = bonn.peering.site
        now = asyncio.get_running_loop().time()
        site.receive(b"route", encode(Hello(PROTOCOL_VERSION, "rome", 1, ("default",), (), False)), now, "rome")
        site.output.clear()
        site.receive(b"route", encode(CompareRanges(9, "default", 0, (0,), 5)), now, user)
        return bool(site.output)

    assert [bonn.call(lambda user=user: say(user)) for user in ("", "oslo", "rome")] == [False, False, True]


async def test_what_cannot_work_ends_the_start(keys: Path) -> None:
    """Addresses without a name, names without a key, and what is no directory: each with an error that says so."""
    for folder, url, told in (
        (keys, "tcp://127.0.0.1:1", "say whose key is expected at"),
        (keys, "bonn=x", "no site can be at"),
        (keys, "oslo=tcp://127.0.0.1:1", r"there is no .*oslo\.key"),
        (keys, "bonn=http://a:1", "no site can be at"),
        (keys / "nowhere", "bonn=tcp://127.0.0.1:1", "there is none"),
    ):
        with pytest.raises(SettingsError, match=told):
            SitePeering.of(SiteEndpoints(name="rome", peers=(url,), curve_keys=folder), Random(1), 0)
    with pytest.raises(InvalidArgumentError, match="curve_keys"):
        SiteEndpoints(name="a", listen="tcp://127.0.0.1:1", curve_keys="keys")  # type: ignore[arg-type]


def test_a_client_cannot_have_a_site_dial_what_has_no_key(
    keys: Path, bonn: SiteThread, client_of: Callable[..., Any]
) -> None:
    """It is told what is wrong; with a name whose key is there, the site dials."""
    client = client_of(bonn.url, keys_of(keys))
    for url, told in (("tcp://127.0.0.1:1", "whose key"), ("oslo=tcp://127.0.0.1:1", "there is no")):
        with pytest.raises(InvalidArgumentError, match=told):
            client.add_peer(url)
    with SiteThread("rome", keys=keys) as rome:
        client.add_peer(f"rome={rome.url}")
        eventually(lambda: client.peers().peers.get("rome"))


async def test_a_key_that_is_taken_away_is_told(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A site that was refused, and then has no key for its peer, goes on looking for one."""
    with SiteThread("bonn") as in_the_clear:
        peering = SitePeering.of(
            SiteEndpoints(name="rome", peers=(f"bonn={in_the_clear.url}",), curve_keys=keys), Random(1), 0
        )
        (keys / "bonn.key").unlink()
        await until(lambda: logged(caplog, "there is no bonn.key that can be used"))
        peering.close()


@pytest.mark.ci
async def test_wrong_keys_cost_at_most_twice_what_an_idle_peering_costs(keys: Path, tmp_path: Path) -> None:
    """Counted over the first seconds, when attempts come fastest: each is begun later than the one before."""
    stranger = shutil.copytree(keys, tmp_path / "stranger")
    for end in ("key", "key_secret"):
        (stranger / f"rome.{end}").unlink()
    add_peer(stranger, "rome")
    mistaken = shutil.copytree(keys, tmp_path / "mistaken")
    (mistaken / "clients" / "app.key").rename(mistaken / "bonn.key")
    async with contextlib.AsyncExitStack() as made:
        links: list[Proxy] = []
        for own in (keys, stranger, mistaken):
            bonn = SitePeering.of(SiteEndpoints(name="bonn", listen="tcp://127.0.0.1:*", curve_keys=keys), Random(1), 0)
            made.callback(bonn.close)
            link = await made.enter_async_context(Proxy(int(str(bonn.url).rpartition(":")[2])))
            address = f"bonn=tcp://127.0.0.1:{link.url.rpartition(':')[2]}"
            rome = SitePeering.of(SiteEndpoints(name="rome", peers=(address,), curve_keys=own), Random(2), 0)
            made.callback(rome.close)
            links.append(link)
        idle, *refused = links
        await until(lambda: all(each.connections >= 3 for each in refused), "attempts that are repeated")
        await asyncio.sleep(4.0)  # the window in which the bytes are counted
        assert idle.connections == 1
        assert [each.connections <= 5 and 0 < each.bytes <= 2 * idle.bytes for each in refused] == [True, True]
