"""Errors in the words of the command line: users who typed ``--client-id`` do not know the argument ``client_id``."""

from __future__ import annotations

import re
from typing import IO, Any, Final

import click

from statestore_client.cli import exits
from statestore_client.errors import InvalidArgumentError, StateStoreError

__all__ = ["AddressError", "counted", "name_options"]

#: Of words that have more than an *s* in the plural.
_SINGULARS: Final = {"copies": "copy", "deliveries": "delivery", "losses": "loss"}
#: Arguments of the API whose options have other names.
_OTHERS: Final = {"request_timeout": "--timeout", "connect_timeout": "--timeout"}


class AddressError(click.ClickException):
    """A server cannot listen. It is no mistake of the command line, so nothing is said of how that is used."""

    exit_code = exits.ADDRESS

    def show(self, file: IO[Any] | None = None) -> None:
        """On standard error, as other errors."""
        click.echo(f"statestore: {self.message}", file=file, err=True)


def counted(count: int, name: str) -> str:
    """``3 keys``, ``1 key``. Of a ``name`` in the plural; one that has no other form stays as it is."""
    if count == 1:
        name = _SINGULARS.get(name, name.removesuffix("s"))
    return f"{count} {name}"


def name_options(error: StateStoreError, command: click.Command) -> None:
    """Where the error's message names an argument that is an option of ``command``, let it name that."""
    if not error.args or not isinstance(error.args[0], str):
        return
    text = error.args[0]
    commands = command.commands.values() if isinstance(command, click.Group) else (command,)
    given = [parameter for each in commands for parameter in each.params if isinstance(parameter, click.Option)]
    options = {option.name or "": max(option.opts, key=len) for option in given}
    for name, option in (options | {k: v for k, v in _OTHERS.items() if v in options.values()}).items():
        if "_" in name:
            text = re.sub(rf"(?<![\w/'\"-]){name}(?!\w)", option, text)
        elif isinstance(error, InvalidArgumentError):  # a word like others: only where it is what the sentence is about
            text = re.sub(rf"^{name}(?= must | is )", option, text)
    text = text.replace("use mqtts:// or tls=True", "use mqtts://")  # of --url; no option sets it
    error.args = (text, *error.args[1:])
