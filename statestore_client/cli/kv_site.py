"""``statestore kv peers | add-peer | remove-peer | areas | summary | compare | signature | validate | graph``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import attrs
import click

from raft_client._common.standard_streams import ends_with_reader
from statestore_client.cli import exits
from statestore_client.cli.kv_graph import Mesh, drawn, walk
from statestore_client.cli.kv_options import entry_facts, json_option, open_site, prefix_option, site_options
from statestore_client.cli.output import print_json, print_line
from statestore_client.kvstore import PeerInfo, Value
from statestore_client.kvstore.calls import identity
from statestore_client.wire.kvstore.value import hash_of

__all__ = ["add_peer", "areas", "compare", "graph", "peers", "remove_peer", "signature", "summary", "validate"]

_STATES: Final = ("idle", "syncing", "initialized")
_SIGNATURE_BITS: Final = 64


@click.command("peers")
@click.option("--follow", is_flag=True, help="Print them again after each change.")
@json_option
@site_options
def peers(*, follow: bool, json_output: bool, **options: Any) -> int:
    """Print the peers of the site: STATE SECONDS-IN-IT SITE ADDRESS..., and addresses where no site has answered."""
    with open_site(options) as site:
        if not follow:
            reply = site.peers()
            _print_peers(reply.peers, reply.unreached, json_output)
            return exits.DONE
        with site.follow_peers() as changes, ends_with_reader():
            for found in chain([changes.snapshot], changes):
                _print_peers(found, site.peers().unreached, json_output)
    return exits.DONE


def _print_peers(found: Mapping[str, PeerInfo], unreached: Sequence[str], json_output: bool) -> None:
    for name, peer in sorted(found.items()):
        state = _STATES[peer.state] if peer.state < len(_STATES) else str(peer.state)
        if json_output:
            print_json({"site": name}, attrs.asdict(peer) | {"state": state, "urls": list(peer.urls)})
        else:
            urls = peer.urls or (("(dials this site)",) if peer.is_connected else ("-",))
            print_line(state if peer.is_connected else "lost", f"{peer.since_ms / 1000:.1f}", name, *urls)
    for url in unreached:
        if json_output:
            print_json({"site": None, "state": "unreached", "urls": [url]})
        else:
            print_line("unreached", "-", "-", url)


@click.command("add-peer")
@click.argument("peer_url", metavar="PEER-URL")
@json_option
@site_options
def add_peer(peer_url: str, *, json_output: bool, **options: Any) -> int:
    """Have the site dial another one at PEER-URL, until it is stopped; with keys NAME=URL."""
    with open_site(options) as site:
        site.add_peer(peer_url)
    if json_output:
        print_json({"peer": peer_url, "is_dialled": True})
    return exits.DONE


@click.command("remove-peer")
@click.argument("peer", metavar="PEER-URL|NAME")
@json_option
@site_options
def remove_peer(peer: str, *, json_output: bool, **options: Any) -> int:
    """Have the site hang up at PEER-URL, which it dials, or forget the site NAME, which is gone for good.

    Exit code 1 if there is no such address or site.
    """
    with open_site(options) as site:
        is_removed = site.remove_peer(peer)
    if not is_removed:
        click.echo(f"{peer!r} is no address that the site dials, and no site that it knows: see kv peers", err=True)
    if json_output:
        print_json({"peer": peer, "is_removed": is_removed})
    return exits.DONE if is_removed else exits.NEGATIVE


@click.command("areas")
@json_option
@site_options
def areas(*, json_output: bool, **options: Any) -> int:
    """Print the areas of the site: KEYS BYTES AREA."""
    with open_site(options) as site:
        summary = site.summary()
    for name, numbers in sorted(summary.areas.items()):
        if json_output:
            print_json({"area": name, "keys": numbers.get("keys", 0), "bytes": numbers.get("bytes", 0)})
        else:
            print_line(str(numbers.get("keys", 0)), str(numbers.get("bytes", 0)), name)
    return exits.DONE


@click.command("summary")
@json_option
@site_options
def summary(*, json_output: bool, **options: Any) -> int:
    """Print the numbers of all areas: AREA NAME NUMBER. What happened is counted since the site was started."""
    with open_site(options) as site:
        found = site.summary()
    if json_output:
        areas_found = {name: dict(numbers) for name, numbers in found.areas.items()}
        print_json({"site": found.name, "incarnation": found.incarnation, "areas": areas_found})
        return exits.DONE
    print_line(f"site {found.name}, incarnation {found.incarnation}")
    for area, numbers in sorted(found.areas.items()):
        for name, number in numbers.items():
            print_line(area, name, str(number))
    return exits.DONE


@click.command("compare")
@click.argument("other_url", metavar="OTHER-URL")
@prefix_option
@json_option
@site_options
def compare(other_url: str, *, prefix: str | None, json_output: bool, **options: Any) -> int:
    """Print the keys in which the site and the one at OTHER-URL differ. Exit code 1 if there are any.

    KEY HERE THERE: version and originator at each of them, - if the key is not there.
    """
    with open_site(options) as here, open_site(options | {"url": other_url}) as there:
        mine, theirs = here.hashes(prefix), there.hashes(prefix)
    differ = sorted(key for key in mine.keys() | theirs.keys() if _said(mine.get(key)) != _said(theirs.get(key)))
    for key in differ:
        if json_output:
            sides = {"here": mine.get(key), "there": theirs.get(key)}
            print_json({"key": key}, {side: entry and entry_facts(entry) for side, entry in sides.items()})
        else:
            print_line(key, _brief(mine.get(key)), _brief(theirs.get(key)))
    return exits.NEGATIVE if differ else exits.DONE


def _said(entry: Value | None) -> tuple[int, str, int | None] | None:
    return None if entry is None else identity(entry)


def _brief(entry: Value | None) -> str:
    return "-" if entry is None else f"{entry.version}@{entry.originator}"


@click.command("signature")
@prefix_option
@json_option
@site_options
def signature(*, prefix: str | None, json_output: bool, **options: Any) -> int:
    """Print one number that stands for all keys and what they say: equal at two sites if they have the same."""
    with open_site(options) as site:
        found = site.hashes(prefix)
    total = sum(_number(key, entry) for key, entry in found.items()) % (1 << _SIGNATURE_BITS)
    if json_output:
        print_json({"signature": f"{total:016x}", "keys": len(found)})
    else:
        print_line(f"{total:016x}")
    return exits.DONE


def _number(key: str, entry: Value) -> int:
    """For a key and what it says; in a sum their order does not matter."""
    version, originator, hash_ = identity(entry)
    return hash_of(version, originator, f"{key}:{hash_}".encode())


@click.command("validate")
@json_option
@site_options
def validate(*, json_output: bool, **options: Any) -> int:
    """Look for what should not be: peers lost or not in sync, addresses without a site, contested keys, an area without
    room.

    Prints a line for each. Exit code 1 if there are any.
    """
    with open_site(options) as site:
        reply, own, area = site.peers(), site.own_keys(), options["area"]
        is_full = site.summary().areas.get(area, {}).get("full")
    found = [
        *(((f"area {area}", "it has no room for what other sites send: see --site-max-keys"),) if is_full else ()),
        *((f"peer {name}", _trouble(peer)) for name, peer in sorted(reply.peers.items()) if _trouble(peer)),
        *((f"address {url}", "no site there has let this one in") for url in reply.unreached),
        *(
            (f"key {key}", "another site keeps it alive, too: erase-key at one of the two")
            for key, state in sorted(own.items())
            if state.is_contested
        ),
    ]
    for what, trouble in found:
        if json_output:
            print_json({"what": what, "trouble": trouble})
        else:
            print_line(f"{what}: {trouble}")
    return exits.NEGATIVE if found else exits.DONE


def _trouble(peer: PeerInfo) -> str:
    if not peer.is_connected:
        return " ".join((f"lost {peer.since_ms / 1000:.0f} s ago", *(f"at {url}" for url in peer.urls)))
    return "" if peer.state == len(_STATES) - 1 else f"not in sync for {peer.since_ms / 1000:.0f} s"


@click.command("graph")
@click.option("--svg", "svg_file", type=click.Path(dir_okay=False, writable=True), help="Draw it into this file.")
@json_option
@site_options
def graph(*, svg_file: str | None, json_output: bool, **options: Any) -> int:
    """Ask the site, its peers, and theirs, and print the mesh: a line for each connection. --svg draws it.

    Sites that can be dialled are asked themselves; what others say of the rest is all that is known of them.
    """

    def ask(url: str) -> Mesh:
        with open_site(options | {"url": url}) as site:
            return Mesh.seen_by(site.summary().name, site.peers())

    mesh = walk(options["url"], ask)
    if svg_file is not None:
        try:
            Path(svg_file).write_text(drawn(mesh, time.strftime("%Y-%m-%d %H:%M:%S")), encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"--svg {svg_file}: {error.strerror}") from error
    lines = mesh.lines()
    if not lines and not json_output:
        print_line(f"{next(iter(mesh.sites))} is alone")
    for line in lines:
        if json_output:
            print_json(attrs.asdict(line))
        else:
            print_line(line.text)
    return exits.DONE
