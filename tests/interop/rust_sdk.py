"""The official Rust SDK, ``azure_iot_operations_services``: a program on it (``rust_sdk/``), driven from tests.

The program is built with cargo, into ``$STATESTORE_RUST_SDK`` or a folder in the user's cache. That needs Rust 1.88
(Debian: ``cargo-web``), a C compiler, pkg-config and OpenSSL's headers (Debian: ``gcc pkg-config libssl-dev``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs
from support.raft_peers import tool_folder

__all__ = ["Change", "RustClient", "RustSdkError", "build", "why_not"]

_SOURCE: Final = Path(__file__).parent / "rust_sdk"
_OLDEST_CARGO: Final = (1, 88)


def why_not() -> str | None:
    """What is missing on this machine, or None when the program can be built."""
    for tool in ("cargo", "cc", "pkg-config"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed; it is needed to build a program on the official Rust SDK"
    told = subprocess.run(["cargo", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"cargo (\d+)\.(\d+)", told)
    if found is None or tuple(map(int, found.groups())) < _OLDEST_CARGO:
        return f"the official Rust SDK needs Rust 1.88 or newer, and here is {told.strip() or 'a cargo that fails'}"
    if subprocess.run(["pkg-config", "--exists", "openssl"], check=False).returncode:
        return "OpenSSL's headers (Debian: libssl-dev) are not installed; the official Rust SDK needs them"
    return None


def build() -> Path:
    """The program. Cargo builds what is out of date, and lets parallel test runs wait for each other."""
    target = tool_folder("STATESTORE_RUST_SDK", "rust-sdk-1.5.0-beta1")
    command = ["cargo", "build", "--quiet", "--locked", "--manifest-path", str(_SOURCE / "Cargo.toml")]
    done = subprocess.run(
        [*command, "--target-dir", str(target)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise RuntimeError(f"building a program on the official Rust SDK failed:\n{done.stderr}")
    return target / "debug" / "statestore-interop"


class RustSdkError(Exception):
    """The SDK returned an error; the text is its kind as the SDK prints it."""


@attrs.frozen
class Answer:
    """``version`` is the text that the SDK makes of an HLC; None where it has none."""

    value: Any
    version: str | None


@attrs.frozen
class Change:
    """A notification as the SDK gives it to its application; ``value`` is None for a deletion."""

    key: bytes
    value: bytes | None
    version: str


class RustClient:
    """One application on the SDK, a process of its own. Blocking; for one thread. Use as a context manager."""

    def __init__(self, program: Path, port: int, client_id: str) -> None:
        self.client_id = client_id
        self._process = subprocess.Popen(
            [program, str(port), client_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "RUST_BACKTRACE": "1"},
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def kill(self) -> None:
        """End it without any goodbye."""
        self._process.kill()
        self._process.wait()

    def get(self, key: bytes) -> Answer:
        answer = self._ask("get", key)
        return attrs.evolve(answer, value=_bytes(answer.value))

    def set(
        self,
        key: bytes,
        value: bytes,
        *,
        condition: str | None = None,
        expiry_ms: int | None = None,
        token: str | None = None,
    ) -> Answer:
        """``condition`` is ``nx`` or ``nex``."""
        return self._ask("set", key, value, condition, expiry_ms, token)

    def delete(self, key: bytes, *, token: str | None = None) -> Answer:
        return self._ask("del", key, token)

    def vdelete(self, key: bytes, value: bytes, *, token: str | None = None) -> Answer:
        return self._ask("vdel", key, value, token)

    def keys(self, pattern: bytes) -> list[bytes]:
        return [bytes.fromhex(key) for key in self._ask("keys", pattern).value]

    def observe(self, key: bytes) -> None:
        self._ask("observe", key)

    def unobserve(self, key: bytes) -> bool:
        return bool(self._ask("unobserve", key).value)

    def notification(self, key: bytes) -> Change:
        """The next change of an observed key. Waits; AssertionError if the SDK has none for 20 s."""
        told = self._exchange("notification", key)
        assert told is not None, f"{self.client_id} was told of no change of {key!r}"
        return Change(bytes.fromhex(told["key"]), _bytes(told["value"]), told["version"])

    def lock(self, name: bytes, *, expiry_ms: int = 10_000, renewal_ms: int | None = None) -> str:
        """Wait for the lock; its fencing token."""
        return _version(self._ask("lock", name, expiry_ms, renewal_ms))

    def unlock(self, name: bytes) -> None:
        self._ask("unlock", name)

    def acquire(self, name: bytes, *, expiry_ms: int = 10_000, renewal_ms: int | None = None) -> str:
        """Try once, with the SDK's lease client; its fencing token."""
        return _version(self._ask("acquire", name, expiry_ms, renewal_ms))

    def release(self, name: bytes) -> None:
        self._ask("release", name)

    def holder(self, name: bytes) -> bytes | None:
        return _bytes(self._ask("holder", name).value)

    def token(self, name: bytes) -> str | None:
        """The newest fencing token of a lock or lease that this application has; renewals change it."""
        return self._ask("token", name).version

    def _ask(self, command: str, *arguments: bytes | str | int | None) -> Answer:
        told = self._exchange(command, *arguments)
        return Answer(told.get("value"), told.get("version"))

    def _exchange(self, command: str, *arguments: bytes | str | int | None) -> Any:
        words = [argument.hex() if isinstance(argument, bytes) else argument for argument in arguments]
        self._process.stdin.write(json.dumps([command, *words]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the Rust program of {self.client_id} ended: {self._process.poll()}"
        told = json.loads(line)
        if told is not None and "error" in told:
            raise RustSdkError(told["error"])
        return told


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _version(answer: Answer) -> str:
    assert answer.version is not None
    return answer.version
