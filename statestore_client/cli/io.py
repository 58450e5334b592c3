"""What all commands take and print: checked options, keys and values (binary-safe), and errors.

An error names the option: users who typed ``--client-id`` do not know the argument ``client_id``.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import IO, Any, Final

import click

from raft_client._common.standard_streams import shown, standard_input
from statestore_client.cli import exits
from statestore_client.errors import InvalidArgumentError, StateStoreError
from statestore_client.wire.hlc import HlcTimestamp

#: Of the commands that write.
fencing_token_option: Final = click.option(
    "--fencing-token", help="Write under this token, which lock and elect give to COMMAND in STATESTORE_FENCING_TOKEN."
)


class Seconds(click.FloatRange):
    """A finite time: a comparison with "not a number" is always false, and no wait can be endless."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, within the range."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return float(super().convert(seconds, param, ctx))


def nonempty_path(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """An empty one, mostly a variable that is not set, would be the current directory."""
    del context, parameter
    if value == "":
        raise click.BadParameter("it is empty")
    return value


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


def argument_bytes(argument: str) -> bytes:
    """The bytes that were typed, valid text or not."""
    return os.fsencode(argument)


def value_argument(value: str | None, value_file: str | None) -> bytes:
    """The value: typed, from a file, or from standard input with ``-``. Exactly one source must be given."""
    if (value is None) == (value_file is None):
        raise click.UsageError("give the value either as an argument or with --value-file (- is standard input)")
    if value is not None:
        return argument_bytes(value)
    if value_file == "-":
        return read_input()
    try:
        return Path(str(value_file)).read_bytes()
    except OSError as error:
        raise click.UsageError(f"--value-file {value_file}: {error.strerror}") from error


def read_input() -> bytes:
    """Standard input, up to its end."""
    try:
        return standard_input().read()
    except OSError as error:
        raise click.UsageError(f"standard input cannot be read: {error.strerror}") from error


def as_json(name: str, data: bytes | None) -> dict[str, Any]:
    """``{name: text}``, or ``{name_base64: …}`` for bytes that are not UTF-8 text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def print_json(*parts: dict[str, Any], version: HlcTimestamp | None = None) -> None:
    """One JSON object on one line."""
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= part
    if version is not None:
        merged["version"] = str(version)
    write_value(shown(json.dumps(merged, ensure_ascii=False).encode() + b"\n"))  # UTF-8, whatever the locale


def print_line(*words: bytes | str) -> None:
    """Words with blanks between them, as bytes, and a line feed; flushed, because pipes are read while we run."""
    line = b" ".join(w if isinstance(w, bytes) else w.encode() for w in words)
    write_value(shown(line + b"\n"))


def write_value(data: bytes) -> None:
    """Exactly these bytes on standard output."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
