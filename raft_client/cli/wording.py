"""Errors in the words of the command line: who typed ``--timeout`` knows no argument ``request_timeout``."""

from __future__ import annotations

import re
from typing import IO, Any, Final

import click

from raft_client.cli import exits
from raft_client.errors import InvalidArgumentError, RaftError

#: Arguments of the API whose options have other names.
_OTHERS: Final = {
    "request_timeout": "--timeout",
    "curve_secret_key": "--curve-secret-key-file",
    "curve_peer_keys": "--curve-peer-key",
    "a seed": "--url",
    "seeds": "--url",
}


class AddressError(click.ClickException):
    """A peer cannot listen. It is no mistake of the command line, so nothing is said of how that is used."""

    exit_code = exits.ADDRESS

    def show(self, file: IO[Any] | None = None) -> None:
        """On standard error, as other errors."""
        click.echo(f"zmqraft: {self.message}", file=file, err=True)


def name_options(error: RaftError, command: click.Command) -> None:
    """Where the error's message names an argument that is an option of ``command``, let it name that."""
    if not error.args or not isinstance(error.args[0], str):
        return
    text = error.args[0]
    options = {p.name or "": max(p.opts, key=len) for p in command.params if isinstance(p, click.Option)}
    for name, option in (options | {k: v for k, v in _OTHERS.items() if v in options.values()}).items():
        if "_" in name:
            text = re.sub(rf"(?<![\w/'\"-]){name}(?!\w)", option, text)
        elif isinstance(error, InvalidArgumentError):  # a word like others: only where it is what the sentence is about
            text = re.sub(rf"^{name}(?= must | is )", option, text)
    error.args = (text, *error.args[1:])
