"""The CURVE keys of one peer, site or client are changed, in a directory of keys: old and new are let in for a time.

::

    one --new--> also/NAME.key: new --all let it in--> NAME.key: new, also/NAME.key: old --NAME has it--> one
    old          NAME.key: old                                                                         new

The directory is the one that its owner copies from. Those who read theirs let in either of the two public keys, and
expect either of them where they connect (``also/``); so they do not have to follow at the same moment, and only NAME is
restarted, once.

Invariant: the public key of ``NAME.key_secret`` is in ``NAME.key`` or in ``also/NAME.key`` whenever a process may end
here, so the directory can be used by whoever has it, and the command goes on where it was.

Source: ZeroMQ RFC 26 (CurveZMQ), zmq_curve(7).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import zmq
import zmq.auth
from zmq.utils.monitor import parse_monitor_message

from raft_client._common.durable_files import replace_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ALSO: Final = "also"
_CLIENTS: Final = "clients/"
_KNOCK_MS: Final = 2000
_LET_IN: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_UNKNOWN: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


class KeyFileError(Exception):
    """A file of keys cannot be read or written; which one, and why."""


@attrs.frozen
class _Pair:
    public: bytes
    secret: bytes = attrs.field(repr=False)


class KeyRotation:
    """Of the pair of ``name`` in ``folder``, as it is now: of a peer, a site, or ``clients/NAME``.

    Raises KeyFileError if there is no such pair, or a file of it cannot be used.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._files = folder / f"{name}.key", folder / f"{name}.key_secret"
        self._also = folder / _ALSO / f"{name}.key", folder / _ALSO / f"{name}.key_secret"
        self._pair = _pair(self._files[1])
        self._new = _pair(self._also[1]) if self._also[1].exists() else None
        second = _public(self._also[0]) if self._also[0].exists() else None
        #: What there is to do after the last step.
        self.advice: str = f"no change of the keys of {name} is under way; --new begins one"
        #: ``one``, ``comes``: the new key is let in, or ``goes``: the old one still is.
        self.step: str = "comes" if self._new is not None else "one" if second is None else "goes"

    @property
    def others(self) -> list[str]:
        """The peers or sites whose public keys are in the directory, without this one."""
        return sorted(file.stem for file in self._folder.glob("*.key") if file != self._files[0])

    def as_json(self) -> dict[str, object]:
        """Return where the change stands, with public keys only."""
        public = [each.public.decode() for each in (self._pair, self._new) if each is not None]
        return {"directory": str(self._folder), "name": self._name, "step": self.step, "public_keys": public}

    def why_not(self, places: Mapping[str, str], not_asked: Iterable[str], *, begins: bool) -> str:
        """Why the next step has to wait, in words; nothing if it has not. ``places`` are the addresses of the others,
        and of this one; those in ``not_asked`` cannot be asked from here.
        """
        if begins and self.step != "one":
            return f"a change of the keys of {self._name} is under way already: give this command without --new"
        if self.step == "one":
            return ""
        if self.step == "comes":
            asked, what = self.others, f"does not let the new key in: put {self._also[0].name} into its also/"
        else:
            asked = [] if self._name.startswith(_CLIENTS) else [self._name]
            what = f"does not have the new key: put {self._files[1].name} in its place, and restart it"
        asked = [name for name in asked if name not in not_asked]
        if unknown := [name for name in asked if name not in places]:
            return f"where is {unknown[0]}? --peer {unknown[0]}=URL says it; --not-asked {unknown[0]} goes on without"
        pair = self._new if self._new is not None else self._pair
        for name in asked:
            if not any(_lets_in(places[name], key, pair) for key in self._keys_of(name)):
                return f"{name}, at {places[name]}, does not answer, or {what}"
        return ""

    def go_on(self, *, begins: bool) -> None:
        """Make the next step, if there is one. Raises KeyFileError; given again it goes on there."""
        try:
            if self._new is not None:
                self._use(self._new)
            elif self.step == "goes":
                self._also[0].unlink()
                sync_folder(self._also[0].parent)
                self.step = "one"
                self.advice = (
                    f"3 of 3: the new key of {self._name} is left alone: copy {self._files[0].name} to the others, and "
                    f"remove also/{self._name}.key there; then the old key opens nothing"
                )
            elif begins:
                self._make()
        except OSError as error:
            raise KeyFileError(f"the keys in {self._folder} cannot be written: {error.strerror or error}") from error

    def _make(self) -> None:
        self._also[0].parent.mkdir(parents=True, exist_ok=True)
        self._new = _Pair(*zmq.curve_keypair())
        _write(self._also[0], self._new, is_secret=False)
        _write(self._also[1], self._new, is_secret=True)
        self.step = "comes"
        self.advice = (
            f"1 of 3: {self._also[0]} is a new key of {self._name}, beside the old one: copy it to also/ in the "
            "directory of each of the others, where it counts a second later; then give this command again"
        )

    def _use(self, new: _Pair) -> None:
        """The old public key is the one of the two that is not the new one: a former attempt may have ended halfway."""
        old = next((key for key in map(_public, self._files[:1]) if key != new.public), None)
        if old is not None:
            _write(self._also[0], _Pair(old, b""), is_secret=False)
            _write(self._files[0], new, is_secret=False)
        _write(self._files[1], new, is_secret=True)
        self._also[1].unlink()
        sync_folder(self._also[1].parent)
        self._pair, self._new, self.step = new, None, "goes"
        self.advice = (
            f"2 of 3: {self._files[1].name} and {self._files[0].name} are the new pair: copy both to {self._name} "
            "alone, and restart it; then give this command again"
        )

    def _keys_of(self, name: str) -> list[bytes]:
        """Which one of these the other side has is not known."""
        if name == self._name:
            return [self._pair.public]
        files = (self._folder / f"{name}.key", self._folder / _ALSO / f"{name}.key")
        return [_public(file) for file in files if file.exists()]


def _lets_in(url: str, server_key: bytes, pair: _Pair) -> bool:
    """Return whether the peer or site at ``url`` has ``server_key``, and accepts a client with ``pair``."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = server_key, pair.public, pair.secret
        with socket.get_monitor_socket(_LET_IN | _UNKNOWN | _FAILED) as monitor:
            try:
                socket.connect(url)
            except zmq.ZMQError as error:
                raise KeyFileError(f"{url} is no address: {error}") from None
            event = parse_monitor_message(monitor.recv_multipart())["event"] if monitor.poll(_KNOCK_MS) else 0
            socket.disable_monitor()
        return bool(event & _LET_IN)


def _pair(file: Path) -> _Pair:
    try:
        public, secret = zmq.auth.load_certificate(file)
        if secret is None or zmq.curve_public(secret) != public:
            raise ValueError("it has no pair that belongs together")
    except (OSError, ValueError, zmq.ZMQError) as error:
        raise KeyFileError(_fault(file, error)) from None
    return _Pair(public, secret)


def _public(file: Path) -> bytes:
    try:
        return zmq.auth.load_certificate(file)[0]
    except (OSError, ValueError) as error:
        raise KeyFileError(_fault(file, error)) from None


def _fault(file: Path, error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"the key file {file} cannot be used: {text}"


def _write(file: Path, pair: _Pair, *, is_secret: bool) -> None:
    text = f'curve\n    public-key = "{pair.public.decode()}"\n'
    if is_secret:
        text += f'    secret-key = "{pair.secret.decode()}"\n'
    replace_file(file, text.encode())
