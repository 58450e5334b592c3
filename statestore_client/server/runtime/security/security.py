"""Whether a client is the user that it says it is: the server's gatekeeper.

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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from statestore_client.errors import SettingsError
from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.access import ClientPermissions
from statestore_client.server.broker import Admitted, Credentials, Refusal, Verdict
from statestore_client.server.runtime.observability.logs import log_event
from statestore_client.server.runtime.security.files import AccessRules
from statestore_client.server.runtime.security.passwords import Passwords

if TYPE_CHECKING:
    import os


__all__ = ["SERVICE_ACCOUNT_TOKEN", "Security", "TokenVerifier"]

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
