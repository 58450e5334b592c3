"""Decide whether a client is the user that it says it is: the server's gatekeeper, and its threads.

================================================  =====================================================================
what a client shows                               who it is
================================================  =====================================================================
method ``K8S-SAT`` and a token                    whom the token verifier names
user name and password                            the user, if there are passwords and they say so
no user name, a certificate                       the common name of the certificate; nobody, if it has none
nothing                                           nobody; welcome if there are neither passwords nor a token verifier,
                                                  or if anonymous clients are allowed all the same
================================================  =====================================================================

Refusals: 0x8C for another method, 0x86 for a wrong user name or password, 0x87 for everything else; 0x88, which clients
try again, when nobody could say.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from statestore_client.errors import SettingsError
from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.access import ClientPermissions
from statestore_client.server.broker import Admitted, Credentials, Refusal, Verdict
from statestore_client.server.broker.quotas import network_of
from statestore_client.server.runtime.fairness import Throttle
from statestore_client.server.runtime.observability.logs import log_event
from statestore_client.server.runtime.security.files import AccessRules
from statestore_client.server.runtime.security.passwords import Passwords

if TYPE_CHECKING:
    import asyncio
    import os

    from statestore_client.server.broker import Credentials, PendingAuth, Verdict
    from statestore_client.server.runtime.clock import Clock
    from statestore_client.server.runtime.observability.logs import RefusalLog

#: Source: state store facts, 3.4.
SERVICE_ACCOUNT_TOKEN: Final = "K8S-SAT"  # noqa: S105 - the name of a method

#: A token to the user that it proves, None for a bad one; anything else admits nobody. Called in a thread; an exception
#: means that nobody knows.
TokenVerifier: TypeAlias = Callable[[bytes], str | None]

_WRONG_PASSWORD: Final = Refusal(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong user name or password")
_UNKNOWN_METHOD: Final = Refusal(ReasonCode.BAD_AUTHENTICATION_METHOD, "this method of authentication is not available")
_BAD_TOKEN: Final = Refusal(ReasonCode.NOT_AUTHORIZED, "the token is not accepted")
_NOTHING_SHOWN: Final = Refusal(ReasonCode.NOT_AUTHORIZED, "anonymous clients are not allowed")


class Security:
    """Passwords, tokens and access rules. Its methods are called in the event loop, :meth:`verify` in threads."""

    def __init__(
        self,
        *,
        passwords: Passwords | None = None,
        acl: AccessRules | None = None,
        token_verifier: TokenVerifier | None = None,
        allow_anonymous: bool = False,
    ) -> None:
        self._passwords = passwords
        self._acl = acl
        self._token_verifier = token_verifier
        self._allows_anonymous = allow_anonymous or (passwords is None and token_verifier is None)
        self._gone: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        *,
        passwords: str | os.PathLike[str] | Mapping[str, str] | None = None,
        acl: str | os.PathLike[str] | AccessRules | None = None,
        token_verifier: TokenVerifier | None = None,
        allow_anonymous: bool = False,
    ) -> Security:
        """From files, or from what tests have at hand. Raises SettingsError that names file and line."""
        loaded = (
            None
            if passwords is None
            else Passwords.given(passwords)
            if isinstance(passwords, Mapping)
            else Passwords.load(passwords)
        )
        rules = acl if acl is None or isinstance(acl, AccessRules) else AccessRules.load(acl)
        return cls(passwords=loaded, acl=rules, token_verifier=token_verifier, allow_anonymous=allow_anonymous)

    @property
    def has_rules(self) -> bool:
        """Whether not everybody may do everything."""
        return self._acl is not None

    @property
    def has_passwords(self) -> bool:
        """Whether a user can prove who he is with a password."""
        return self._passwords is not None

    @property
    def requires_identity(self) -> bool:
        """Whether clients have something to prove, were it only by choice."""
        return self._passwords is not None or self._token_verifier is not None

    # -- Gatekeeper ---------------------------------------------------------------------------------------------------

    def authenticate(self, credentials: Credentials) -> Verdict | None:
        """See :class:`~statestore_client.server.broker.Gatekeeper`."""
        if credentials.method is not None:
            if credentials.method != SERVICE_ACCOUNT_TOKEN or self._token_verifier is None:
                return _UNKNOWN_METHOD
            return None if credentials.data else _BAD_TOKEN
        username, passwords = credentials.username, self._passwords
        if username is None:
            is_welcome = credentials.certificate is not None or self._allows_anonymous
            return Admitted(credentials.certificate or None) if is_welcome else _NOTHING_SHOWN
        if passwords is not None:
            self._refresh_passwords(passwords)  # a password that was just set counts from now
            return Admitted(username) if passwords.remembers(username, credentials.password or b"") else None
        # Nobody can say whether it is true. A name that was not proved is not believed.
        return Admitted(credentials.certificate or None) if self._allows_anonymous else _WRONG_PASSWORD

    def permissions(self, user: str | None, client_id: str) -> ClientPermissions | None:
        """See :class:`~statestore_client.server.broker.Gatekeeper`."""
        return None if self._acl is None else self._acl.permissions(user, client_id)

    @property
    def rules(self) -> object:
        """See :class:`~statestore_client.server.broker.Gatekeeper`."""
        return None if self._acl is None else self._acl.rules

    # -- slow things --------------------------------------------------------------------------------------------------

    def verify(self, credentials: Credentials) -> Verdict:
        """What :meth:`authenticate` left open. It may take long. An exception is one of the token verifier."""
        if credentials.method is not None:
            if self._token_verifier is None or credentials.data is None:
                return _BAD_TOKEN
            user: object = self._token_verifier(credentials.data)
            if isinstance(user, str) and user:
                return Admitted(user)
            return _BAD_TOKEN if user is None else _no_name(user)
        username, password = credentials.username, credentials.password
        if self._passwords is None or username is None:
            return _WRONG_PASSWORD
        return Admitted(username) if self._passwords.verify(username, password or b"") else _WRONG_PASSWORD

    # -- changes ------------------------------------------------------------------------------------------------------

    def refresh(self) -> frozenset[str] | None:
        """Read what has changed: the users that are gone, None when the broker need not look at its clients.

        A file with mistakes is logged, and what it said before goes on to count.
        """
        if self._passwords is not None:
            self._refresh_passwords(self._passwords)
        gone, self._gone = self._gone, frozenset()
        has_new_rules = False
        if self._acl is not None:
            try:
                has_new_rules = self._acl.refresh()
            except SettingsError as error:
                log_event(logging.ERROR, "access rules not changed", reason=str(error))
            if has_new_rules:
                log_event(logging.INFO, "access rules changed")
        return gone if gone or has_new_rules else None

    def _refresh_passwords(self, passwords: Passwords) -> None:
        try:
            gone = passwords.refresh()
        except SettingsError as error:
            log_event(logging.ERROR, "passwords not changed", reason=str(error))
            return
        if gone is not None:
            self._gone |= gone
            log_event(logging.INFO, "passwords changed", users_gone=len(gone))


def _no_name(returned: object) -> Refusal:
    """A mistake of the program, which nobody may profit from: its users and its operator read what it is."""
    what = "an empty name" if returned == "" else f"a {type(returned).__name__}"
    reason = f"the server's token_verifier returned {what}, neither a user's name nor None"
    return Refusal(ReasonCode.NOT_AUTHORIZED, reason)


# -- verifier threads --------------------------------------------------------------------------------------------------
#
# Verdicts that take time, in threads: a password hash on purpose, a token verifier because it asks somebody else.
#
# Daemon threads, not an executor: a verifier that never returns must not keep the process from ending. It keeps its
# place, however, so that there are never more threads than places.
#
# Addresses take turns, so that whoever guesses from one of them holds up nobody at another; and an address with too
# many failed attempts is refused for a while, without any work.


#: Verifications at the same time: as many passwords take 64 MiB, and a few processors.
_MOST_THREADS: Final = 4

#: Refused in one go; then others are served.
_REFUSED_AT_ONCE: Final = 16

#: Those that nobody waits for any more are looked for when so many wait: clients come and go faster than they are
#: verified.
_LEAST_SWEEP: Final = 256

_NOBODY_KNOWS: Final = Refusal(ReasonCode.SERVER_UNAVAILABLE, "the credentials could not be verified")
_TOO_MANY: Final = Refusal(ReasonCode.CONNECTION_RATE_EXCEEDED, "too many failed attempts from this address")


class VerifierThreads:
    """Belongs to one event loop, in which ``done`` is called. Verifications that nobody waits for are skipped.

    Invariant: no queue is empty, and ``_count`` is the sum of their lengths.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        verify: Callable[[Credentials], Verdict],
        done: Callable[[PendingAuth, Verdict], None],
        *,
        clock: Clock,
        throttle: Throttle,
        refusals: RefusalLog,
    ) -> None:
        self._loop = loop
        self._verify = verify
        self._done = done
        self._clock = clock
        self._throttle = throttle
        self._refusals = refusals
        self._waiting: dict[str, deque[PendingAuth]] = {}  # by address; whose turn it is in front
        self._count = 0
        self._sweep_at = _LEAST_SWEEP
        self._running = 0
        self._is_scheduled = False

    def __len__(self) -> int:
        """How many wait for a place."""
        return self._count

    def start(self, verification: PendingAuth) -> None:
        """Begin, or wait for a place."""
        self._waiting.setdefault(_address(verification), deque()).append(verification)
        self._count += 1
        if self._count >= self._sweep_at:
            self._sweep()
        if not self._is_scheduled:
            self._fill()

    def _sweep(self) -> None:
        """Forget those that nobody waits for. As many as there are clients that wait stay."""
        current = {
            address: deque(verification for verification in queue if verification.is_current)
            for address, queue in self._waiting.items()
        }
        self._waiting = {address: queue for address, queue in current.items() if queue}
        self._count = sum(map(len, self._waiting.values()))
        self._sweep_at = max(_LEAST_SWEEP, 2 * self._count)

    def _fill(self) -> None:
        self._is_scheduled = False
        for _ in range(_REFUSED_AT_ONCE):
            if not self._waiting or self._running >= _MOST_THREADS:
                return
            verification = self._next()
            if not verification.is_current:
                continue
            if self._throttle.is_used_up(_address(verification), self._clock().monotonic):
                self._done(verification, _TOO_MANY)
            else:
                self._begin(verification)
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._fill)

    def _next(self) -> PendingAuth:
        """Of the address whose turn it is. Its next one comes behind the other addresses."""
        address = next(iter(self._waiting))
        queue = self._waiting.pop(address)
        verification = queue.popleft()
        self._count -= 1
        if queue:
            self._waiting[address] = queue
        return verification

    def _begin(self, verification: PendingAuth) -> None:
        thread = threading.Thread(target=self._run, args=(verification,), name="statestore-verify", daemon=True)
        self._running += 1
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads for now; the others wait for their place
            self._running -= 1
            self._fail("no thread for a verifier", verification, error)
            self._done(verification, _NOBODY_KNOWS)

    def _run(self, verification: PendingAuth) -> None:
        verdict: Verdict | Exception
        try:
            verdict = self._verify(verification.credentials)
        except Exception as error:  # noqa: BLE001 - the user's code
            verdict = error
        with suppress(RuntimeError):  # the loop is closed: nobody is left who waits
            self._loop.call_soon_threadsafe(self._finish, verification, verdict)

    def _fail(self, what: str, verification: PendingAuth, error: Exception) -> None:
        """A client that shows tokens in a loop on which the verifier fails must not fill the disk."""
        self._refusals.line(what, verification.connection.peer, level=logging.ERROR, error=error)

    def _finish(self, verification: PendingAuth, verdict: Verdict | Exception) -> None:
        self._running -= 1
        if isinstance(verdict, Exception):
            self._fail("the verifier failed", verification, verdict)
            verdict = _NOBODY_KNOWS
        elif isinstance(verdict, Refusal):
            self._throttle.used(_address(verification), self._clock().monotonic)
        self._done(verification, verdict)
        if not self._is_scheduled:
            self._fill()


def _address(verification: PendingAuth) -> str:
    """All Unix sockets together are one."""
    return network_of(verification.connection.peer) or ""
