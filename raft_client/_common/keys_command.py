"""``keys rotate``: the same command of both programs, as both have directories of keys of the same form."""

from __future__ import annotations

import json
from pathlib import Path

import click

from raft_client._common import exits
from raft_client._common.command_line import print_line


@click.group("keys")
def keys() -> None:
    """Change the CURVE keys of a peer, a site or a client."""


def _place(_context: click.Context, _option: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    places = {}
    for each in value:
        name, equals, url = each.partition("=")
        if not equals or not name or not url:
            raise click.BadParameter(f"{each!r} is not NAME=URL")
        places[name] = url
    return places


@keys.command("rotate")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("name")
@click.option("--new", "begins", is_flag=True, help="Begin: make a new pair. Without it, a change under way goes on.")
@click.option(
    "--peer", "places", metavar="NAME=URL", multiple=True, callback=_place,
    help="Where the peer or site NAME listens, tcp://HOST:PORT. Of each one, also that whose keys are changed.",
)  # fmt: skip
@click.option(
    "--not-asked", metavar="NAME", multiple=True, help="Go on without asking this one: it cannot be reached from here."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on one line.")
def rotate(
    *, directory: Path, name: str, begins: bool, places: dict[str, str], not_asked: tuple[str, ...], as_json: bool
) -> int:
    """Change the pair of NAME, a peer, a site or clients/NAME, in the DIRECTORY with all public keys and this secret
    one, while all run: step by step, and the next step only when the others let the new key in, or NAME has it.

    A step writes files. Copy them as the command says, and give it again, until it says that nothing is under way. The
    old key and the new one are let in meanwhile. Exit code 1, with the reason, if somebody is not so far: nothing is
    written then.
    """
    from raft_client._common.key_rotation import KeyFileError, KeyRotation  # with ØMQ

    try:
        rotation = KeyRotation(directory, name)
        reason = rotation.why_not(places, not_asked, begins=begins)
        if not reason:
            rotation.go_on(begins=begins)
    except KeyFileError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        print_line(json.dumps({"done": not reason, "reason": reason, **rotation.as_json()}))
    elif not reason:
        print_line(rotation.advice)
    if reason:
        click.echo(f"{click.get_current_context().find_root().info_name}: {reason}", err=True)
    return exits.NEGATIVE if reason else exits.DONE
