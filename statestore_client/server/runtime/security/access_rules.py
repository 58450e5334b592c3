"""Access rules of a file, read again when it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.server.access.rules import RuleSet
from statestore_client.server.checks import check_text
from statestore_client.server.runtime.security.watched_file import WatchedFile

if TYPE_CHECKING:
    import os

    from statestore_client.server.access.rules import ClientPermissions

__all__ = ["AccessRules"]


class AccessRules:
    """A file's rules. ``AccessRules.parse(text)`` makes them without a file, :meth:`load` with one."""

    def __init__(self, rules: RuleSet, *, file: WatchedFile | None = None) -> None:
        self._rules = rules
        self._file = file

    @classmethod
    def parse(cls, text: str, source: str = "access rules") -> AccessRules:
        """Raises SettingsError that names ``source``, the line and what is wrong with it."""
        check_text("access rules", text)
        return cls(RuleSet.parse(text, source))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AccessRules:
        """Raises SettingsError that names the file, the line and what is wrong with it."""
        file = WatchedFile(path)
        return cls(RuleSet.parse(file.read(), str(file.path)), file=file)

    def refresh(self) -> bool:
        """Read the file again if it has changed, and say whether it had. Raises SettingsError as :meth:`load` does;
        then everything stays as it was.
        """
        if self._file is None or not self._file.has_changed():
            return False
        self._rules = RuleSet.parse(self._file.read(), str(self._file.path))
        return True

    @property
    def rules(self) -> RuleSet:
        """Those of now."""
        return self._rules

    def permissions(self, user: str | None, client_id: str) -> ClientPermissions:
        """What a client may do."""
        return self._rules.permissions(user, client_id)
