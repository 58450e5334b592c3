"""``statestore del --prefix``: all keys that begin with some bytes, text or not.

Invariant: what is deleted was listed, counted and confirmed before. Keys that a fencing token protects stay, unless an
option says otherwise.
"""

from __future__ import annotations

from typing import Final

import attrs

from raft_client._common import exits
from raft_client._common.command_line import as_json, print_json, print_line, progress_bar, warn
from statestore_client.cli.entries import KeysOnlyError, NamedKeys, confirm, entries, prefix_pattern
from statestore_client.cli.options import counted
from statestore_client.core.arguments import DEFAULT_TIMEOUT, FencedCommand, delete_command
from statestore_client.errors import BatchError, TransportError
from statestore_client.sync.client import StateStoreClient
from statestore_client.wire.hlc import HlcTimestamp

#: Keys that are deleted at once. Between batches the pipeline runs dry, so it is many times what is in flight.
_BATCH: Final = 4096


@attrs.define(eq=False)
class PrefixDeletion:
    """One run: keys are listed first, and deleted then."""

    store: StateStoreClient
    prefix: bytes
    #: Delete fenced keys as well: with this token, or each with its own.
    fencing_token: HlcTimestamp | None
    fenced: bool
    found: int = 0
    deleted: int = 0
    staying: NamedKeys = attrs.field(factory=NamedKeys, init=False)
    refused: NamedKeys = attrs.field(factory=NamedKeys, init=False)
    _chosen: list[tuple[bytes, HlcTimestamp | None]] = attrs.field(factory=list, init=False)

    def list_keys(self) -> None:
        """Find all, and name those that stay."""
        with progress_bar(has_count=False) as bar:
            bar.add_task("listing", total=None)
            pattern = prefix_pattern(self.prefix)
            try:
                for entry in entries(self.store, pattern):
                    self._choose(entry.key, entry.fence)
            except KeysOnlyError:
                warn("this state store does not list keys that are not text; if there are any, they stay")
                for key in sorted(set(self.store.scan(pattern))):
                    self._choose(key, None)

    def _choose(self, key: bytes, fence: HlcTimestamp | None) -> None:
        if not key.startswith(self.prefix):
            return
        self.found += 1
        if fence is None or self.fenced or self.fencing_token is not None:
            self._chosen.append((key, self.fencing_token or fence))
        else:
            self.staying.add(key, "stays: a fencing token protects it; --fenced deletes such keys, too")

    def print_keys(self, *, json_output: bool) -> None:
        """Those that would be deleted."""
        for key, _ in self._chosen:
            if json_output:
                print_json(as_json("key", key))
            else:
                print_line(key)

    def delete_keys(self, *, yes: bool) -> None:
        """Ask, and delete. Raises what the connection says; how far it came is told."""
        if not self._chosen:
            return
        shown = self.prefix.decode("utf-8", "backslashreplace")
        confirm(f"Delete {counted(len(self._chosen), 'keys')} below {shown}?", yes=yes)
        with progress_bar() as bar:
            task = bar.add_task("deleting", total=len(self._chosen))
            try:
                for start in range(0, len(self._chosen), _BATCH):
                    self._delete(self._chosen[start : start + _BATCH])
                    bar.update(task, completed=start + _BATCH)
            except (TransportError, KeyboardInterrupt):
                warn(f"{counted(self.deleted, 'keys')} were deleted for certain; the same command goes on there")
                raise

    def _delete(self, chosen: list[tuple[bytes, HlcTimestamp | None]]) -> None:
        commands = (delete_command(k) if t is None else FencedCommand(delete_command(k), t) for k, t in chosen)
        try:
            results = self.store._engine.call_many(commands, DEFAULT_TIMEOUT)  # noqa: SLF001 - delete_many has one token for all
        except BatchError as error:
            results = list(error.results)
        for (key, _), result in zip(chosen, results, strict=True):
            if isinstance(result, TransportError):
                raise result
            if isinstance(result, Exception):
                self.refused.add(key, f"was not deleted: {result}")
            else:
                self.deleted += bool(result)

    def report(self, *, json_output: bool) -> int:
        """Print what became of the keys; the exit code."""
        stay = self.staying.count + self.refused.count
        if json_output:
            numbers = {"found": self.found, "deleted": self.deleted}
            print_json(numbers, {"fenced": self.staying.count, "refused": self.refused.count})
        else:
            print_line(f"deleted {counted(self.deleted, 'keys')}{f'; {stay} stay' if stay else ''}")
        return self.exit_code

    @property
    def exit_code(self) -> int:
        """Whether there was anything, and whether all of it went."""
        if self.staying.count or self.refused.count:
            return exits.PARTLY
        return exits.DONE if self.found else exits.NEGATIVE
