"""Certificates, passwords, tokens and access rules, with both shells and both drivers against the secured server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.keys import Certificates
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    ClosedError,
    ConnectionLostError,
    ConnectionState,
    ConnectRefusedError,
    NotAuthorizedError,
    RequestTimeoutError,
    StateStoreError,
)
from statestore_client.mqtt import native as native_driver
from statestore_client.server import AccessRules, EmbeddedServer, ServerTls
from statestore_client.server.runtime.security.passwords import remove_user, set_password

FAST = {"reconnect_delay": 0.01, "max_reconnect_delay": 0.05}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("client-tls"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another authority, which nobody trusts."""
    return Certificates(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="module")
def mutual(certificates: Certificates) -> Iterator[EmbeddedServer]:
    """A server that wants to see a certificate of every client."""
    files = ServerTls(
        cert_file=certificates.server_file, key_file=certificates.server_key_file, ca_file=certificates.ca_file
    )
    with EmbeddedServer(tls=files) as server:
        yield server


@pytest.fixture(params=["sync", "aio"])
def native(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> Shell:
    """Only the native driver knows enhanced authentication."""
    return Shell(request.param, "native", executor)


async def works(store: Any) -> None:
    """The client connects, writes and closes."""
    async with store:
        await store.set("k", "v")


async def fails(store: Any, error: type[StateStoreError], match: str) -> None:
    """The first attempt fails for good, at once."""
    with pytest.raises(error, match=match):
        await asyncio.wait_for(store.open(), 10)
    assert store.state is ConnectionState.CLOSED


# -- certificates ------------------------------------------------------------------------------------------------------


async def test_a_client_certificate(shell: Shell, mutual: EmbeddedServer, certificates: Certificates) -> None:
    """A client with a certificate of the right authority can open."""
    files = {"tls_cert_file": certificates.client_file, "tls_key_file": certificates.client_key_file}
    await works(shell.client(mutual.url, tls_ca_file=certificates.ca_file, **files))


async def test_an_encrypted_key(
    shell: Shell, mutual: EmbeddedServer, certificates: Certificates, tmp_path: Path
) -> None:
    """A key that is encrypted is read with the password from a file."""
    cert, key = certificates.issue("encrypted-client", "c@example.org", key_password="open sesame")
    word = tmp_path / "word"
    word.write_text("open sesame\n")
    files = {"tls_cert_file": cert, "tls_key_file": key, "tls_key_password_file": str(word)}
    await works(shell.client(mutual.url, tls_ca_file=certificates.ca_file, **files))


async def test_certificates_to_trust(
    shell: Shell, certificates: Certificates, strangers: Certificates, tmp_path: Path
) -> None:
    """Any certificate in a directory of authorities is trusted, whatever its file is called, and the broker's own can
    be the one to trust, with each version of Python."""
    for name, file in (("0", strangers.ca_file), ("ca.crt", certificates.ca_file)):
        shutil.copy(file, tmp_path / name)
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    with EmbeddedServer(tls=tls) as server:
        await works(shell.client(server.url, tls_ca_dir=str(tmp_path)))
        await works(shell.client(server.url, tls_ca_file=certificates.server_file))


async def test_no_client_certificate(shell: Shell, mutual: EmbeddedServer, certificates: Certificates) -> None:
    """Without the client certificate that the broker asks for, open() fails for good and names the setting."""
    store = shell.client(mutual.url, tls_ca_file=certificates.ca_file)
    await fails(store, ConnectionLostError, r"certificate required\); see tls_cert_file")


async def test_client_certificates_that_are_not_accepted(
    shell: Shell, mutual: EmbeddedServer, certificates: Certificates, strangers: Certificates
) -> None:
    """A client certificate of another authority, or out of date, is refused."""
    past = datetime(2020, 1, 1, tzinfo=UTC)
    expired = certificates.issue("expired-client", "c@example.org", not_before=past, not_after=past.replace(year=2021))
    for (cert, key), reason in (
        ((strangers.client_file, strangers.client_key_file), "unknown ca"),
        (expired, "certificate expired"),
    ):
        store = shell.client(
            mutual.url,
            tls_ca_file=certificates.ca_file,
            tls_cert_file=cert,
            tls_key_file=key,
        )
        await fails(store, ConnectionLostError, rf"\({reason}\); see tls_cert_file")


@pytest.mark.parametrize("flaw", ["authority", "name", "expired"])
@pytest.mark.attack("clients", "a server without the right certificate")
async def test_server_certificates_that_are_not_trusted(
    shell: Shell, certificates: Certificates, strangers: Certificates, flaw: str
) -> None:
    """A server certificate of an unknown authority, for another name or out of date ends the client, with why and what
    to do."""
    past = datetime(2020, 1, 1, tzinfo=UTC)
    if flaw == "authority":
        cert, key = strangers.server_file, strangers.server_key_file
    elif flaw == "name":
        cert, key = certificates.issue("elsewhere", "broker.example.org")
    else:
        times = {"not_before": past, "not_after": past.replace(year=2021)}
        cert, key = certificates.issue("expired-server", "127.0.0.1", **times)
    advice = {
        "authority": r"certificate is not trusted \(.*issuer.*\); see tls_ca_file",
        "name": r"certificate is for another name \(IP address mismatch.*\); use a host name or address that it has",
        "expired": r"certificate is out of date \(certificate has expired\); renew it there, or set the clock",
    }[flaw]
    with EmbeddedServer(tls=ServerTls(cert_file=cert, key_file=key)) as server:
        store = shell.client(server.url, tls_ca_file=certificates.ca_file)
        await fails(store, ConnectionLostError, advice)


async def test_no_exception_for_localhost(shell: Shell, strangers: Certificates, certificates: Certificates) -> None:
    """The name in the server's certificate is verified for localhost too; the official SDK for Go does not (facts
    3.4)."""
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    with EmbeddedServer(tls=tls) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        store = shell.client(url, tls_ca_file=certificates.ca_file)
        await fails(store, ConnectionLostError, r"certificate is for another name \(Hostname mismatch")


# -- passwords ---------------------------------------------------------------------------------------------------------


async def test_a_wrong_password_is_final(shell: Shell) -> None:
    """CONNACK 0x86 ends the first attempt with a typed error."""
    with EmbeddedServer(passwords={"pump": "secret"}) as server:
        for options, code in (
            ({"username": "pump", "password": "wrong"}, 0x86),
            ({"username": "nobody", "password": "secret"}, 0x86),
            ({}, 0x87),
        ):
            store = shell.client(server.url, **options)
            with pytest.raises(ConnectRefusedError) as caught:
                await asyncio.wait_for(store.open(), 10)
            assert caught.value.reason_code == code
            assert "secret" not in str(caught.value)
        assert server.counters.refused_connects == 3


async def test_a_password_is_rotated(shell: Shell, tmp_path: Path) -> None:
    """After a change of both password files a connection goes on, and a reconnect uses the new password."""
    users, secret = tmp_path / "users", tmp_path / "secret"
    set_password(users, "pump", b"old")
    secret.write_text("old\n")
    with EmbeddedServer(passwords=users) as server:
        async with (
            Proxy(server.port) as proxy,
            shell.client(proxy.url, username="pump", password_file=str(secret)) as store,
        ):
            await store.set("k", "1")
            set_password(users, "pump", b"new")
            secret.write_text("new\n")
            await store.set("k", "2")
            assert proxy.connections == 1
            proxy.cut()
            await store.set("k", "3", timeout=10)
            assert proxy.connections == 2


async def test_a_user_is_removed(shell: Shell, tmp_path: Path) -> None:
    """When a user is removed, its connection ends within a second or so; a client that gives up on refusals ends, and
    the other one is back when the user is."""
    users = tmp_path / "users"
    set_password(users, "pump", b"secret")
    seen: list[StateStoreError | None] = []

    def on_state(state: ConnectionState, error: StateStoreError | None) -> None:
        if state is ConnectionState.CLOSED:
            seen.append(error)

    with EmbeddedServer(passwords=users) as server:
        known = {"username": "pump", "password": "secret"}
        hasty = shell.client(server.url, on_state=on_state, give_up_on=ConnectRefusedError, **known)
        async with shell.client(server.url, **FAST, **known) as patient:
            await hasty.open()
            remove_user(users, "pump")
            await until(lambda: seen)
            (error,) = seen
            assert isinstance(error, ConnectRefusedError)
            assert error.reason_code == 0x86
            with pytest.raises(ClosedError, match="bad user name or password"):
                await hasty.get("k")
            await hasty.close()
            await until(lambda: "bad user name or password" in (patient.trouble or ""))
            assert patient.state is ConnectionState.SUSPENDED
            set_password(users, "pump", b"secret")
            await patient.set("k", "v", timeout=10)


# -- access rules ------------------------------------------------------------------------------------------------------

RULES = """
user pump
  client-id pump-*
  read  a/*
  write a/setpoint
  watch a/setpoint
  write lock
  read  lock
  watch lock
user boss
  read *
  write *
"""
PASSWORDS = {"pump": "x", "boss": "y"}


@pytest.fixture
def guarded() -> Iterator[EmbeddedServer]:
    """A server with rules."""
    with EmbeddedServer(passwords=PASSWORDS, acl=AccessRules.parse(RULES)) as server:
        yield server


async def test_rules(shell: Shell, guarded: EmbeddedServer) -> None:
    """What the rules allow works, locks and watches included; the rest raises NotAuthorizedError and changes
    nothing."""
    pump = shell.client(guarded.url, client_id="pump-1", username="pump", password="x")
    boss = shell.client(guarded.url, username="boss", password="y")
    async with pump, boss:
        await boss.set("a/other", "kept")
        await boss.set("b", "secret")
        async with pump.watch("a/setpoint") as events:
            await pump.set("a/setpoint", "21")
            assert (await events.get(timeout=5)).value == b"21"
        assert (await pump.get("a/other")).value == b"kept"
        async with pump.lock("lock", lease=5) as lease:
            assert lease.fencing_token
        for forbidden in (
            pump.set("a/other", "x"),
            pump.delete("a/other"),
            pump.get("b"),
            pump.set("b", "x"),
        ):
            with pytest.raises(NotAuthorizedError):
                await forbidden
        with pytest.raises(NotAuthorizedError):
            async with pump.watch("b") as events:
                await events.get(timeout=5)
        assert (await boss.get("a/other")).value == b"kept"
        assert (await boss.get("b")).value == b"secret"


async def test_a_client_id_that_a_user_may_not_have(shell: Shell, guarded: EmbeddedServer) -> None:
    """A client id that the user may not have is refused for good, because locks are held by client ids."""
    store = shell.client(guarded.url, client_id="valve-1", username="pump", password="x")
    await fails(store, ConnectRefusedError, "may not have this client identifier")


# -- service account tokens --------------------------------------------------------------------------------------------


def verifier(token: bytes) -> str | None:
    return "pump" if token in (b"first", b"second") else None


async def test_a_token_is_rotated(native: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new token is presented on the connection that stands, and a watch does not notice."""
    monkeypatch.setattr(native_driver, "LOOK_EVERY_S", 0.02)
    file = tmp_path / "token"
    file.write_text("first")
    seen: list[bytes] = []
    loop, again = asyncio.get_running_loop(), asyncio.Event()

    def remembering(token: bytes) -> str | None:
        seen.append(token)
        if token == b"second":
            loop.call_soon_threadsafe(again.set)
        return verifier(token)

    with EmbeddedServer(token_verifier=remembering) as server:
        states: list[ConnectionState] = []
        store = native.client(server.url, sat_file=str(file), on_state=lambda state, _: states.append(state))
        async with store, store.watch("k") as events:
            file.write_text("second")
            await asyncio.wait_for(again.wait(), 10)
            await store.set("k", "v")
            assert (await events.get(timeout=5)).value == b"v"
            assert seen == [b"first", b"second"]
            assert states == [ConnectionState.CONNECTING, ConnectionState.CONNECTED]


async def test_a_token_that_is_no_longer_accepted(
    native: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that is no longer accepted ends the connection (0x87); the client is back with the next good one."""
    monkeypatch.setattr(native_driver, "LOOK_EVERY_S", 0.02)
    file = tmp_path / "token"
    file.write_text("first")
    with EmbeddedServer(token_verifier=verifier) as server:
        async with native.client(server.url, sat_file=str(file), **FAST) as store:
            file.write_text("third")
            await until(lambda: "not authorized (0x87)" in (store.trouble or ""))
            assert store.state is ConnectionState.SUSPENDED
            with pytest.raises(RequestTimeoutError, match=r"not authorized \(0x87\)"):
                await store.get("k", timeout=0.1)
            file.write_text("second")
            await store.set("k", "v", timeout=10)


@pytest.mark.parametrize("has_verifier", [True, False])
async def test_tokens_that_are_refused(native: Shell, tmp_path: Path, has_verifier: bool) -> None:
    """A bad token (0x87), or a broker that does not know the method (0x8C), ends the client."""
    file = tmp_path / "token"
    file.write_text("bad")
    with EmbeddedServer(token_verifier=verifier if has_verifier else None) as server:
        store = native.client(server.url, sat_file=str(file))
        await fails(store, ConnectRefusedError, "0x87" if has_verifier else "0x8C")


async def test_a_verifier_that_is_down_for_a_moment(native: Shell, tmp_path: Path) -> None:
    """CONNACK 0x88, when the verifier is down, is tried again, and the client gets in when it is back."""
    file = tmp_path / "token"
    file.write_text("first")
    asked: list[bytes] = []

    def flaky(token: bytes) -> str | None:
        asked.append(token)
        if len(asked) < 3:
            raise OSError("no route to the API server")
        return verifier(token)

    with EmbeddedServer(token_verifier=flaky) as server:
        store = native.client(server.url, sat_file=str(file), retry_first_connect=True, reconnect_delay=0.01)
        async with asyncio.timeout(10):
            await works(store)
    assert len(asked) == 3
