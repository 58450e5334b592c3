"""Connections among the servers of a cluster: their secret, who is at the other end, dialling and listening.

From the secret that they share come the keys, and TLS between them.

Python's TLS knows no pre-shared keys before 3.13, so the receiver of a connection shows a certificate whose private key
is made from the secret. Nobody without the secret can show it, and who dials has the same one to compare. That the
dialler has the secret, too, is proven inside by a code (:class:`Hello`): no one else is in between then.

While the secret is changed a server has two: it shows and proves the first one, and accepts either of the other side.
So servers agree if each one's first is among the other's: the second is added everywhere, then put first, and then the
other one is left out.

Source: HKDF of RFC 5869; TLS 1.3 of RFC 8446; Ed25519 certificates of RFC 8410.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hmac
import json
import os
import secrets
import ssl
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, cast

import attrs
import msgpack

from raft_client._common import event_loops
from statestore_client.errors import RemoteProtocolError, SettingsError
from statestore_client.server.runtime.observability.logs import LOGGER
from statestore_client.server.runtime.transport.peers import peer_name
from statestore_client.server.runtime.transport.sockets import set_options

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable

    from statestore_client.server.runtime.fairness import RoundRobin
    from statestore_client.server.runtime.observability.logs import RefusalLog
    from statestore_client.server.runtime.transport.peers import Peers

_SALT: Final = b"statestore internal 2"
#: It is the same in each server and each of its lives: made from the secret alone.
_SERIAL: Final = 1
_FROM: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)  # RFC 5280: none that is known


def derive(salt: bytes, secret: bytes, info: bytes) -> bytes:
    """32 bytes for the purpose that ``info`` names: HKDF of RFC 5869 with SHA-256, one block."""
    return hmac.digest(hmac.digest(salt, secret, "sha256"), info + b"\1", "sha256")


#: A file with two secrets begins with one of these lines, and has them in Base64 on the next two: the first one is
#: used, both are accepted. Another file is a secret as a whole.
SECOND_COMES: Final = b"# statestore: two secrets, of which the second one comes\n"
SECOND_GOES: Final = b"# statestore: two secrets, of which the second one goes\n"


def secrets_in(key: bytes) -> tuple[bytes, ...]:
    """Of what a file has without spaces around it: one, or two; an empty one if there is none. Raises SettingsError."""
    head, _, rest = key.partition(b"\n")
    if head + b"\n" not in (SECOND_COMES, SECOND_GOES):
        return (key,)
    try:
        first, second = (base64.b64decode(line.strip(), validate=True) for line in rest.splitlines())
    except ValueError:
        raise SettingsError("a file with two secrets has each of them in Base64 on a line") from None
    return (first, second)


def fingerprint(secret: bytes) -> str:
    """By which people tell secrets apart that they do not see."""
    return derive(_SALT, secret, b"fingerprint")[:4].hex()


class ClusterSecret:
    """One, two, or none: without one, which is for servers on one machine, codes keep nobody out and nothing is
    encrypted.
    """

    def __init__(self, key: bytes) -> None:
        self._secrets: Final = secrets_in(key)
        #: The keys of codes, for each secret.
        self.keys: Final = tuple(derive(_SALT, each, b"codes") for each in self._secrets)
        #: That of the first one, which proves that this side has it.
        self.key: Final = self.keys[0]

    def __bool__(self) -> bool:
        return bool(self._secrets[0])

    @property
    def fingerprints(self) -> list[str]:
        """Of the secrets, in their order; none without."""
        return [fingerprint(each) for each in self._secrets if each]

    @cached_property
    def receiver_tls(self) -> ssl.SSLContext:
        """Raises SettingsError if the certificate cannot be made."""
        certificate, private = _pem(self._secrets[0])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with _file_for_openssl() as (file, path):
            file.write(certificate + private)
            file.flush()
            context.load_cert_chain(path)
        return context

    @cached_property
    def dialler_tls(self) -> ssl.SSLContext:
        """Trusts nothing but that certificate, of each secret. Raises SettingsError if it cannot be made."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the handshake inside names the address
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # find the very certificate: both have the same name
        context.load_verify_locations(cadata=b"".join(_pem(each)[0] for each in self._secrets).decode())
        return context


def _pem(secret: bytes) -> tuple[bytes, bytes]:
    """Certificate and private key. Raises SettingsError."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError:
        raise SettingsError(
            "servers with a --cluster-key-file encrypt what they say to each other: "
            "pip install 'statestore-client[cluster]'"
        ) from None
    private = Ed25519PrivateKey.from_private_bytes(derive(_SALT, secret, b"certificate"))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "statestore cluster")])
    certificate = (
        x509.CertificateBuilder(name, name, private.public_key(), _SERIAL, _FROM, _UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, None)
    )
    return (
        certificate.public_bytes(Encoding.PEM),
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


@contextmanager
def _file_for_openssl() -> Iterator[tuple[IO[bytes], str]]:
    """A file that nobody else can read, and its path: OpenSSL reads keys from files only.

    On Linux it is in memory, so the key is on no disk, and no directory has to be writable. Raises OSError.
    """
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("statestore"), "wb") as file:
            yield file, f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as named:  # mode 0600
            yield named, named.name


# -- internal handshake ------------------------------------------------------------------------------------------------
#
# How one replicated server connects to the internal address of another one: bytes <-> values.
#
# ::
#
#     receiver  "statestore internal 2\n"
#     dialler   "E": the receiver repeats it, and TLS begins; or "P": what follows is plain
#     receiver  nonce (32 bytes)
#     dialler   length (2 bytes)  [purpose, id, receiver, endpoint, host, port] in MessagePack  nonce (32)  code (32)
#     receiver  length (2 bytes)  [accepted, text] in MessagePack  code (32)
#
# A code is an HMAC-SHA256 over who says it, both nonces and the array, with a key made from the secret that all these
# servers have. So each side knows that the other one has the secret, now, and means this connection: a code that
# somebody has heard, or passes on to another server, is of no use (``receiver`` is the address that was dialled).
#
# Then, for ``splice``, the bytes of a client go both ways, as its own connection has them: which endpoint it came in
# at, and from where, is in the array. For ``pulse``, which is plain since it holds no secret and comes from a thread,
# the active server says its epoch (8 bytes, big endian), a counter (8) and a code over both, again and again. For
# commands of ``statestore ha`` a line of JSON follows, which any of the servers says; ``endpoint`` is the command's
# argument then.


MAGIC: Final = b"statestore internal 2\n"
#: Of releases before: they proved the secret in one direction only.
_OLD_MAGIC: Final = b"statestore internal 1\n"
ENCRYPTED: Final = b"E"
PLAIN: Final = b"P"
NONCE_BYTES: Final = 32
CODE_BYTES: Final = 32
LENGTH_BYTES: Final = 2
_COUNT_BYTES: Final = 8
PULSE_BYTES: Final = 2 * _COUNT_BYTES + CODE_BYTES
_MOST_BYTES: Final = 1024
_PURPOSES: Final = ("splice", "pulse", "status", "hand-over", "promote", "snapshot", "trim", "format")
_OTHER_KEY: Final = "it has another key: give all servers of one log the same --cluster-key-file"


def check_magic(data: bytes) -> None:
    """Of the receiver. Raises RemoteProtocolError."""
    if data == _OLD_MAGIC:
        raise RemoteProtocolError("what listens there is a server of an older release: upgrade it")
    if data != MAGIC:
        raise RemoteProtocolError("what listens there is no server of this log")


def length_of(data: bytes) -> int:
    """Of the array that follows. Raises RemoteProtocolError if it is too long to be one."""
    length = int.from_bytes(data, "big")
    if length > _MOST_BYTES:
        raise RemoteProtocolError("it does not speak as the servers of a log do")
    return length


@attrs.frozen
class Session:
    """What both sides of a connection know; ``key`` is made from the secret."""

    key: bytes = attrs.field(repr=False)
    receiver_nonce: bytes = attrs.field(repr=False)
    dialler_nonce: bytes = attrs.field(repr=False)

    def pulse(self, epoch: int, count: int) -> bytes:
        """The sign of life with this number, of a server that is active in this epoch."""
        said = epoch.to_bytes(_COUNT_BYTES, "big") + count.to_bytes(_COUNT_BYTES, "big")
        return said + self._code(b"pulse\0", said)

    def epoch_of(self, pulse: bytes, count: int) -> int:
        """Of exactly :data:`PULSE_BYTES`, of which ``count`` were received before. Raises RemoteProtocolError."""
        epoch = int.from_bytes(pulse[:_COUNT_BYTES], "big")
        if not hmac.compare_digest(pulse, self.pulse(epoch, count)):
            raise RemoteProtocolError("a sign of life that the active server did not give")
        return epoch

    def seal(self, role: bytes, packed: bytes) -> bytes:
        """The code of an array; ``role`` says who sends it."""
        return self._code(role, packed)

    def has_sealed(self, role: bytes, packed: bytes, code: bytes) -> bool:
        """Whether the other side has the key, and means this connection."""
        return hmac.compare_digest(code, self._code(role, packed))

    def check(self, role: bytes, packed: bytes, code: bytes) -> None:
        """Raises RemoteProtocolError if the other side does not have the key, or means another connection."""
        if not self.has_sealed(role, packed, code):
            raise RemoteProtocolError(_OTHER_KEY)

    def _code(self, role: bytes, said: bytes) -> bytes:
        return hmac.digest(self.key, role + self.receiver_nonce + self.dialler_nonce + said, "sha256")


_DIALLER: Final = b"dialler\0"
_RECEIVER: Final = b"receiver\0"


@attrs.frozen
class Hello:
    """``id`` is the name of the server that dials, ``receiver`` the address that it dialled. ``endpoint`` is the scheme
    of the one at which a client came in, such as ``mqtts``; ``host`` and ``port`` are the client's own, empty and 0 for
    one without an address. Of a command, ``endpoint`` is its argument; of a server that listens for pulses, the newest
    format of records that it knows.
    """

    purpose: str
    id: str
    receiver: str
    endpoint: str = ""
    host: str = ""
    port: int = 0

    def encode(self, session: Session) -> bytes:
        packed = _packed(attrs.astuple(self))
        return _framed(packed, session.dialler_nonce + session.seal(_DIALLER, packed))

    @classmethod
    def decode(cls, packed: bytes, code: bytes, session: Session) -> Hello:
        """Of the array and its code. Raises RemoteProtocolError."""
        session.check(_DIALLER, packed, code)
        hello = cls(*_unpacked(packed, len(attrs.fields(cls))))
        has_texts = all(type(text) is str for text in attrs.astuple(hello)[1:-1])
        if hello.purpose not in _PURPOSES or not has_texts or type(hello.port) is not int:
            raise RemoteProtocolError("a hello of a newer release")
        return hello


@attrs.frozen
class Answer:
    """``text`` says why the dialler is not let in; otherwise it is the id of the receiver."""

    is_accepted: bool
    text: str

    def encode(self, session: Session) -> bytes:
        packed = _packed(attrs.astuple(self))
        return _framed(packed, session.seal(_RECEIVER, packed))

    @classmethod
    def decode(cls, packed: bytes, code: bytes, session: Session) -> Answer:
        """Of the array and its code. Raises RemoteProtocolError."""
        session.check(_RECEIVER, packed, code)
        is_accepted, text = _unpacked(packed, len(attrs.fields(cls)))
        if type(is_accepted) is not bool or type(text) is not str:
            raise RemoteProtocolError("an answer of a newer release")
        return cls(is_accepted, text)


def _packed(values: tuple[object, ...]) -> bytes:
    packed: bytes = msgpack.packb(values)
    return packed


def _unpacked(packed: bytes, count: int) -> tuple[Any, ...]:
    try:
        values: Any = msgpack.unpackb(packed, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"no array of a handshake: {error}") from error
    if not isinstance(values, tuple) or len(values) != count:
        raise RemoteProtocolError("an array of a newer release")
    return values


def _framed(packed: bytes, rest: bytes) -> bytes:
    return len(packed).to_bytes(LENGTH_BYTES, "big") + packed + rest


# -- internal connection -----------------------------------------------------------------------------------------------
#
# A connection from one replicated server to another one, up to the point where both know who the other is.


#: What the other side may send ahead; more waits in the network.
_MOST_EARLY_BYTES: Final = 64 * 1024


class InternalStream(asyncio.Protocol):
    """Bytes that are awaited, until the transport gets another protocol. Belongs to the event loop."""

    def __init__(self, came: Callable[[InternalStream], None] | None = None) -> None:
        self._came = came
        self._data = bytearray()
        self._changed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self.has_ended: bool = False
        #: Another protocol has the transport now.
        self.is_taken: bool = False

    @property
    def transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise RuntimeError("not connected yet")
        return self._transport

    async def read(self, count: int) -> bytes:
        """Exactly so many. Raises EOFError if fewer come."""
        while len(self._data) < count:
            if self.has_ended:
                raise EOFError
            await self._change()
        return self._take(count)

    async def read_all(self) -> bytes:
        """Up to the end. More than may come ahead is taken as it comes."""
        rest = bytearray()
        while not self.has_ended:
            rest += self.take_rest()
            await self._change()
        return bytes(rest) + self.take_rest()

    def take_rest(self) -> bytes:
        """What came and was not read."""
        return self._take(len(self._data))

    async def start_tls(self, secret: ClusterSecret, *, is_receiver: bool) -> None:
        """Raises OSError, and RemoteProtocolError if something came before TLS: it would count as said inside."""
        if self._data:
            raise RemoteProtocolError("it does not wait for TLS to begin")
        context = secret.receiver_tls if is_receiver else secret.dialler_tls
        secured = await asyncio.get_running_loop().start_tls(self.transport, self, context, server_side=is_receiver)
        if secured is None:
            raise ConnectionResetError("the connection ended in the handshake of TLS")
        self._transport = secured

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """From here on ``protocol`` hears everything itself, as if it had been there from the beginning."""
        self.is_taken = True
        transport, rest = self.transport, self.take_rest()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest and not transport.is_closing():
            protocol.data_received(rest)
        if self.has_ended:
            protocol.connection_lost(None)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _take(self, count: int) -> bytes:
        taken = bytes(self._data[:count])
        del self._data[:count]
        if len(self._data) <= _MOST_EARLY_BYTES and not self.has_ended:
            self.transport.resume_reading()
        return taken

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        set_options(self._transport)
        if self._came is not None:
            self._came(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > _MOST_EARLY_BYTES:
            self.transport.pause_reading()
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.has_ended = True
        self._changed.set()


async def dial(address: str, hello: Hello, secret: ClusterSecret) -> tuple[InternalStream, Session]:
    """Connect to the internal address ``host:port`` of another server, which has proven that it has the secret when
    this returns. Raises OSError, EOFError, and RemoteProtocolError.
    """
    host, _, port = address.rpartition(":")
    stream = InternalStream()
    await asyncio.get_running_loop().create_connection(lambda: stream, host.strip("[]"), int(port))
    try:
        check_magic(await stream.read(len(MAGIC)))
        if secret and hello.purpose != "pulse":
            stream.transport.write(ENCRYPTED)
            if await stream.read(len(ENCRYPTED)) != ENCRYPTED:
                raise RemoteProtocolError("it does not encrypt")
            await stream.start_tls(secret, is_receiver=False)
        else:
            stream.transport.write(PLAIN)
        session = Session(secret.key, await stream.read(NONCE_BYTES), secrets.token_bytes(NONCE_BYTES))
        stream.transport.write(hello.encode(session))
        packed = await stream.read(length_of(await stream.read(LENGTH_BYTES)))
        answer = Answer.decode(packed, await stream.read(CODE_BYTES), session)
        if not answer.is_accepted:
            raise RemoteProtocolError(answer.text)
    except BaseException:
        stream.transport.abort()
        raise
    return stream, session


@attrs.frozen
class Visitor:
    """Who has dialled this server, and has proven to have the secret."""

    hello: Hello
    stream: InternalStream
    session: Session

    def answer(self, reason: str, own_id: str) -> None:
        """Let it in; or refuse it, if there is a ``reason``."""
        self.stream.transport.write(Answer(not reason, reason or own_id).encode(self.session))


async def receive(stream: InternalStream, secret: ClusterSecret) -> Visitor:
    """The other end of :func:`dial`, before its answer. Raises OSError, EOFError, and RemoteProtocolError."""
    stream.transport.write(MAGIC)
    choice = await stream.read(len(ENCRYPTED))
    if choice == ENCRYPTED:
        if not secret:
            raise RemoteProtocolError("it has a key, and this server has none: give all the same --cluster-key-file")
        stream.transport.write(ENCRYPTED)
        await stream.start_tls(secret, is_receiver=True)
    elif choice != PLAIN:
        raise RemoteProtocolError("it does not speak as the servers of a log do")
    nonce = secrets.token_bytes(NONCE_BYTES)
    stream.transport.write(nonce)
    packed = await stream.read(length_of(await stream.read(LENGTH_BYTES)))
    dialler_nonce, code = await stream.read(NONCE_BYTES), await stream.read(CODE_BYTES)
    sessions = [Session(key, nonce, dialler_nonce) for key in secret.keys]
    session = next((each for each in sessions if each.has_sealed(_DIALLER, packed, code)), sessions[0])
    hello = Hello.decode(packed, code, session)
    if secret and choice == PLAIN and hello.purpose != "pulse":
        raise RemoteProtocolError("it has the key, and does not encrypt")
    return Visitor(hello, stream, session)


# -- internal listener -------------------------------------------------------------------------------------------------
#
# Where the other servers connect: for the clients that they pass on, and to hear that this one lives.


#: A stranger has this time to say who he is, and so many may try at once.
_HELLO_S: Final = 2.0
_MOST_STRANGERS: Final = 256


class Sockets(Protocol):
    """All that this server has: the driver of a broker, or a hosted store, which has those of other servers only."""

    peers: Peers
    turns: RoundRobin
    refusals: RefusalLog

    @property
    def now(self) -> float:
        """Monotonic seconds."""


class Router(Protocol):
    """Takes clients that another server passes on: the :mod:`.client_router`, which stands on this module."""

    @property
    def driver(self) -> Sockets:
        """Of the broker that they come to."""

    def protocol(self, scheme: str) -> asyncio.Protocol | None:
        """Of such a client; None if this server is not active, or has no such endpoint."""


class InternalListener:
    """Belongs to the event loop."""

    def __init__(
        self,
        server_id: str,
        router: Router,
        secret: ClusterSecret,
        add_pulse: Callable[[socket.socket, str, int, Session], None],
        command: Callable[[str, str], Awaitable[dict[str, object]]],
    ) -> None:
        """``add_pulse`` takes the socket of a server that listens for signs of life, its id, the newest format that it
        knows, and what its signs of life are sealed with. ``command`` carries out what people ask for, by purpose and
        argument.
        """
        self._id = server_id
        self._router = router
        self._secret = secret
        self._add_pulse = add_pulse
        self._command = command
        self._strangers: dict[InternalStream, None] = {}  # in the order of their arrival
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        #: Where the others find this server, as they have read it in the log: another name is another server's.
        self.address: str = ""

    async def open(self, host: str, port: int) -> int:
        """Returns the port. Raises OSError, and SettingsError if TLS between the servers cannot be had."""
        if self._secret:
            _ = self._secret.receiver_tls, self._secret.dialler_tls
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: InternalStream(self._came), host, port)
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    async def close(self) -> None:
        """Safe to call twice."""
        if self._server is not None:
            await event_loops.stop_accepting(self._server)
        for stranger in tuple(self._strangers):
            stranger.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()

    def _came(self, stranger: InternalStream) -> None:
        self._strangers[stranger] = None
        if len(self._strangers) > _MOST_STRANGERS:
            self._of_the_most_crowded_address().transport.abort()
        task = asyncio.get_running_loop().create_task(self._meet(stranger))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _of_the_most_crowded_address(self) -> InternalStream:
        """The first stranger from there: a flood does not keep another server out."""
        addresses = {each: peer_name(each.transport).rpartition(":")[0] for each in self._strangers}
        ((crowded, _),) = Counter(addresses.values()).most_common(1)
        return next(each for each, address in addresses.items() if address == crowded)

    async def _meet(self, stranger: InternalStream) -> None:
        """Until it is known who it is, and what it wants."""
        try:
            try:
                async with asyncio.timeout(_HELLO_S):
                    visitor = await receive(stranger, self._secret)
            finally:
                self._strangers.pop(stranger, None)
            await self._let_in(visitor)
        except EOFError:
            pass  # it looked whether somebody listens here
        except (OSError, RemoteProtocolError) as error:
            reason = error.message if isinstance(error, RemoteProtocolError) else str(error) or "it is silent"
            self._router.driver.refusals.line("server refused", peer_name(stranger.transport), reason=reason)
        finally:
            if not stranger.is_taken:
                stranger.transport.close()

    async def _let_in(self, visitor: Visitor) -> None:
        hello, stream = visitor.hello, visitor.stream
        if self._secret and hello.receiver != self.address:
            visitor.answer(f"its address is {self.address}: use that one", self._id)
            raise RemoteProtocolError(f"it has dialled {hello.receiver}, which is not {self.address}")
        if hello.purpose == "pulse":
            visitor.answer("", self._id)
            sock = cast("socket.socket", stream.transport.get_extra_info("socket"))
            format_ = int(hello.endpoint) if hello.endpoint.isdecimal() else 1
            self._add_pulse(sock.dup(), hello.id, format_, visitor.session)
            stream.transport.abort()
        elif hello.purpose == "splice":
            self._take_client(visitor)
        else:
            try:
                said = await self._command(hello.purpose, hello.endpoint)
            except Exception as error:  # noqa: BLE001 - our own defect; who has asked is to know
                LOGGER.exception("a command of statestore ha failed")
                visitor.answer(f"the command failed: {error}", self._id)
                return
            visitor.answer("", self._id)
            stream.transport.write(json.dumps(said).encode() + b"\n")

    def _take_client(self, visitor: Visitor) -> None:
        """A client of another server, if this one is active."""
        hello = visitor.hello
        protocol = self._router.protocol(hello.endpoint)
        if protocol is None:
            visitor.answer("this server is not active", self._id)
            return
        visitor.answer("", self._id)
        if hello.host:
            self._router.driver.peers.came_from(visitor.stream.transport, (hello.host, hello.port))
        visitor.stream.hand_over(protocol)
