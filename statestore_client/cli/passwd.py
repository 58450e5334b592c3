"""``statestore passwd``."""

from __future__ import annotations

import errno
from pathlib import Path

import click

from raft_client._common import exits
from raft_client._common.standard_streams import standard_input
from statestore_client.server.runtime.security.passwords import check_user, remove_user, set_password


@click.command("passwd")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("user")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read one line from standard input, and do not ask.")
@click.option("--delete", is_flag=True, help="Remove the user from FILE.")
def passwd(*, file: Path, user: str, from_stdin: bool, delete: bool) -> int:
    """Set the password of USER in FILE, which servers read. `statestore serve --password-file FILE` uses the new
    password at once."""
    if delete and from_stdin:
        raise click.UsageError("--delete needs no password")
    try:
        if delete:
            if file.exists() and remove_user(file, user):
                return exits.DONE
            click.echo(f"statestore: no user {user!r} in {file}", err=True)
            return exits.NEGATIVE
        check_user(user)
        set_password(file, user, _password(from_stdin=from_stdin).encode())
    except OSError as error:
        raise click.UsageError(f"{file}: {_why(error)}") from error
    return exits.DONE


def _why(error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return "a file that is mounted alone cannot be replaced; mount its directory, or change it where it comes from"
    return error.strerror or str(error)


def _password(*, from_stdin: bool) -> str:
    if not from_stdin:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    try:
        return standard_input().readline().rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise click.UsageError("the password is not UTF-8 text") from error
