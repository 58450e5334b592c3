"""``statestore kv``: what a site of the KvStore has, who its peers are, and what happens there."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar
from xml.sax.saxutils import escape

import attrs
import click

from raft_client._common import exits
from raft_client._common.command_line import Seconds, as_json, option_group, print_json, print_line
from raft_client._common.standard_streams import ends_with_reader
from statestore_client.cli.options import value_argument
from statestore_client.errors import StateStoreError
from statestore_client.kvstore import INFINITE_TTL_MS, ClientKeys, KeyChange, PeerInfo, PeersReply, SiteClient, Value
from statestore_client.kvstore.calls import compared, identity
from statestore_client.wire.kvstore.value import MAX_TTL_MS, hash_of

F = TypeVar("F", bound=Callable[..., Any])

json_option: Final = click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")
prefix_option: Final = click.option("--prefix", help="Keys that begin with this text.")

_key_options: Final = option_group(
    click.option(
        "--curve-keys",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="For sites with keys: NAME.key in it is the public key of the site NAME.",
    ),
    click.option(
        "--curve-secret-key-file",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="This client's own pair, NAME.key_secret, which the site must know.",
    ),
)
_timeout_option: Final = click.option(
    "--timeout", type=Seconds(min=0, min_open=True), default=2.5, show_default=True, help="Wait for an answer."
)
site_options = option_group(
    click.option(
        "--url",
        envvar="STATESTORE_SITE_URL",
        show_envvar=True,
        required=True,
        help="Where the site listens: tcp://HOST:PORT or ipc://PATH; with --curve-keys NAME=tcp://HOST:PORT.",
    ),
    _key_options,
    click.option("--area", default="default", show_default=True, help="Of keys and peers."),
    _timeout_option,
)
filter_options = option_group(
    prefix_option,
    click.option("--pattern", multiple=True, help="Keys that begin with a match of this pattern. Can be repeated."),
    click.option("--originator", multiple=True, metavar="SITE", help="Entries made by this site. Can be repeated."),
)


@contextmanager
def open_site(options: Mapping[str, Any]) -> Iterator[SiteClient]:
    """A client of the site that the options name."""
    url, keys = _way(options["url"], options["curve_keys"], options["curve_secret_key_file"])
    with SiteClient(url, area=options["area"], timeout_s=options["timeout"], keys=keys) as client:
        yield client


def _way(url: str, folder: Path | None, own: Path | None) -> tuple[str, ClientKeys | None]:
    """The address, and the keys that are needed there. NAME=URL is what a site with keys calls its peers."""
    if (folder is None) != (own is None):
        raise click.UsageError("--curve-keys and --curve-secret-key-file belong together; give both or neither")
    name, is_named, _ = url.partition("://")[0].rpartition("=")
    address = url[len(name) + 1 :] if is_named else url
    if folder is None or own is None:
        return address, None
    if not name:
        raise click.UsageError(f"with --curve-keys say whose key is expected: NAME={address}")
    return address, ClientKeys.read(own, folder / f"{name}.key")


def filter_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and originators must both be wanted, if both are given."""
    return {
        "prefix": options["prefix"],
        "patterns": options["pattern"],
        "originators": options["originator"],
        "match_all": True,
    }


def entry_facts(entry: Value) -> dict[str, Any]:
    """What is known of an entry besides its value."""
    return {
        "version": entry.version,
        "originator": entry.originator,
        "ttl_ms": None if entry.ttl_ms == INFINITE_TTL_MS else entry.ttl_ms,
        "ttl_version": entry.ttl_version,
        "hash": identity(entry)[2],
    }


def seconds_left(entry: Value) -> str:
    """For people."""
    return "never" if entry.ttl_ms == INFINITE_TTL_MS else f"{entry.ttl_ms / 1000:.1f}"


@click.group("kv")
def kv() -> None:
    """Read and change keys and peers of a site of the KvStore. `statestore serve --site NAME` runs a site."""


@kv.command("keys")
@click.option("--ttl", is_flag=True, help="Print the time that is left, too.")
@filter_options
@json_option
@site_options
def keys(*, ttl: bool, json_output: bool, **options: Any) -> int:
    """Print the keys. Each line is VERSION ORIGINATOR KEY, with --ttl also the seconds that are left.

    With keys and --originator, both must be so.
    """
    with open_site(options) as site:
        found = site.hashes(**filter_of(options))
    for key, entry in sorted(found.items()):
        if json_output:
            print_json({"key": key}, entry_facts(entry))
        else:
            left = [seconds_left(entry)] if ttl else []
            print_line(str(entry.version), entry.originator, *left, key)
    return exits.DONE


@kv.command("keyvals")
@click.argument("wanted", metavar="KEY...", nargs=-1, required=True)
@json_option
@site_options
def keyvals(wanted: Sequence[str], *, json_output: bool, **options: Any) -> int:
    """Print the value of each KEY. Exit code 1 if a key does not exist."""
    with open_site(options) as site:
        found = site.get_many(wanted)
    for key in wanted:
        entry = found.get(key)
        if json_output:
            print_json(
                {"key": key}, as_json("value", entry.value if entry else None), entry_facts(entry) if entry else {}
            )
        elif entry is not None:
            print_line(entry.value or b"")
        else:
            click.echo(f"statestore: there is no key {key!r}", err=True)
    return exits.DONE if len(found) == len(set(wanted)) else exits.NEGATIVE


@kv.command("nodes")
@json_option
@site_options
def nodes(*, json_output: bool, **options: Any) -> int:
    """Print the sites that have made entries. Each line is KEYS SITE."""
    with open_site(options) as site:
        counts = Counter(entry.originator for entry in site.hashes().values())
    for name, count in sorted(counts.items()):
        if json_output:
            print_json({"site": name, "keys": count})
        else:
            print_line(str(count), name)
    return exits.DONE


@kv.command("snoop")
@click.option("--ttls", is_flag=True, help="Print also when the time to live of a key begins again.")
@click.option("--initial", is_flag=True, help="Print first what is there.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many changes, besides what --initial prints.")
@filter_options
@json_option
@site_options
def snoop(*, ttls: bool, initial: bool, count: int | None, json_output: bool, **options: Any) -> int:
    """Print the changes of keys as they happen. Each line is set VERSION ORIGINATOR KEY VALUE, ttl ... KEY SECONDS, or
    end KEY.
    """
    with open_site(options) as site, site.subscribe(**filter_of(options), ttls=ttls) as changes, ends_with_reader():
        if initial:
            for key, entry in sorted(changes.snapshot.items()):
                _print_change(KeyChange(key, entry), json_output)
        for seen, change in enumerate(changes, 1):
            _print_change(change, json_output)
            if seen == count:
                break
    return exits.DONE


def _print_change(change: KeyChange, json_output: bool) -> None:
    entry = change.entry
    what = "end" if entry is None else "ttl" if change.is_ttl_only else "set"
    if json_output:
        value = {} if entry is None or change.is_ttl_only else as_json("value", entry.value)
        facts = entry_facts(entry) if entry else {}
        print_json({"event": what, "key": change.key, "number": change.number}, value, facts)
    elif entry is None:
        print_line(what, change.key)
    else:
        last = seconds_left(entry).encode() if change.is_ttl_only else entry.value or b""
        print_line(what, str(entry.version), entry.originator, change.key, last)


@kv.command("set-key")
@click.argument("key")
@click.argument("value", required=False)
@click.option("--value-file", help="Read the value from this file; - is standard input.")
@click.option("--persist", is_flag=True, help="Say it again if another site overrides it.")
@click.option("--version", type=click.IntRange(min=1), help="One above what is stored, if not given.")
@click.option(
    "--ttl", type=Seconds(min=0.001, max=MAX_TTL_MS / 1000), help="Time to live; the site keeps the key alive."
)
@json_option
@site_options
def set_key(
    key: str,
    value: str | None,
    *,
    value_file: str | None,
    persist: bool,
    version: int | None,
    ttl: float | None,
    json_output: bool,
    **options: Any,
) -> int:
    """Store VALUE under KEY at the site, and keep it alive. That ends with `erase-key`, with a value from another site
    that wins, or with the site.

    The site has no disk: set the key again after the site has started again, or it expires.
    """
    if persist and (version is not None or ttl is not None):
        raise click.UsageError("--persist takes the version and the time to live that it needs")
    data = value_argument(value, value_file)
    with open_site(options) as site:
        if persist:
            site.persist(key, data)
        else:
            site.set(key, data, version=version, ttl_ms=None if ttl is None else round(1000 * ttl))
    if json_output:
        print_json({"key": key, "is_set": True})
    return exits.DONE


@kv.command("erase-key")
@click.argument("key")
@json_option
@site_options
def erase_key(key: str, *, json_output: bool, **options: Any) -> int:
    """End the value that the site stored under KEY. It ends at all sites within 5 seconds. Exit code 1 if there is
    none.
    """
    with open_site(options) as site:
        is_erased = site.erase(key)
    if json_output:
        print_json({"key": key, "is_erased": is_erased})
    return exits.DONE if is_erased else exits.NEGATIVE


@kv.command("status")
@click.option("--wait", type=Seconds(min=0), help="Wait so long for the syncs of the site's start to be over.")
@json_option
@site_options
def status(*, wait: float | None, json_output: bool, **options: Any) -> int:
    """Print whether the site has synced, and the size of its areas. Exit code 1 if it has not synced since its start.

    A site has synced when it has what the others had, or when none could be reached in time (--site-sync-timeout).
    """
    with open_site(options) as site:
        if wait is not None:
            site.wait_synced(wait)
        found = site.summary()
    is_synced = all(numbers.get("synced", 1) for numbers in found.areas.values())
    if json_output:
        print_json({"site": found.name, "is_synced": is_synced, "areas": {k: dict(v) for k, v in found.areas.items()}})
    else:
        print_line(f"{found.name}: {'synced' if is_synced else 'not synced yet'}")
        for area, numbers in sorted(found.areas.items()):
            print_line(f"{area}: {_told(numbers)}")
    return exits.DONE if is_synced else exits.NEGATIVE


def _told(numbers: Mapping[str, int]) -> str:
    """What an area has, for people; of troubles those that there are."""
    troubles = {"contested": numbers.get("contested_keys", 0), "lost": numbers.get("lost_keys", 0)}
    return ", ".join(
        (
            f"{numbers.get('keys', 0)} keys",
            f"{numbers.get('own_keys', 0)} of this site",
            *(f"{number} {what}" for what, number in troubles.items() if number),
            f"{numbers.get('peers_initialized', 0)} of {numbers.get('peers', 0)} peers in sync",
            *(("no room",) if numbers.get("full") else ()),
        )
    )


_STATES: Final = ("idle", "syncing", "initialized")
_SIGNATURE_BITS: Final = 64


@kv.command("peers")
@click.option("--follow", is_flag=True, help="Print them again after each change.")
@json_option
@site_options
def peers(*, follow: bool, json_output: bool, **options: Any) -> int:
    """Print the peers of the site. Each line is STATE SECONDS-IN-IT SITE ADDRESS...; addresses where no site has
    answered are printed as well.
    """
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


@kv.command("add-peer")
@click.argument("peer_url", metavar="PEER-URL")
@json_option
@site_options
def add_peer(peer_url: str, *, json_output: bool, **options: Any) -> int:
    """Connect the site to another one at PEER-URL. It stays connected until the site stops. With keys, name the other
    site: NAME=URL.
    """
    with open_site(options) as site:
        site.add_peer(peer_url)
    if json_output:
        print_json({"peer": peer_url, "is_dialled": True})
    return exits.DONE


@kv.command("remove-peer")
@click.argument("peer", metavar="PEER-URL|NAME")
@json_option
@site_options
def remove_peer(peer: str, *, json_output: bool, **options: Any) -> int:
    """Disconnect the site from PEER-URL, or forget the site NAME. The site must have dialled PEER-URL; NAME must be
    gone for good.

    Exit code 1 if there is no such address or site.
    """
    with open_site(options) as site:
        is_removed = site.remove_peer(peer)
    if not is_removed:
        click.echo(f"{peer!r} is no address that the site dials, and no site that it knows: see kv peers", err=True)
    if json_output:
        print_json({"peer": peer, "is_removed": is_removed})
    return exits.DONE if is_removed else exits.NEGATIVE


@kv.command("areas")
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


@kv.command("summary")
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


@kv.command("compare")
@click.argument("other_url", metavar="OTHER-URL")
@prefix_option
@json_option
@site_options
def compare(other_url: str, *, prefix: str | None, json_output: bool, **options: Any) -> int:
    """Compare the keys of the site with those at OTHER-URL. Print those that differ. Exit code 1 if any do.

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


@kv.command("diff")
@click.argument("left_url", metavar="SITE")
@click.argument("right_url", metavar="SITE")
@click.option("--area", multiple=True, help="Compare this area. Can be repeated. Default: those that both have.")
@prefix_option
@json_option
@_key_options
@_timeout_option
def diff(
    left_url: str, right_url: str, *, area: Sequence[str], prefix: str | None, json_output: bool, **options: Any
) -> int:
    """Print the keys in which two sites differ. The line says which side is newer; a sync would copy that one. Exit
    code 1 if any key differs.

    SIGN AREA KEY LEFT RIGHT: version and originator at each, - where the key is missing. SIGN is < if the left one is
    newer, > if the right one is, and ! for two values of one version, which each of them will send.
    """
    with (
        open_site(options | {"url": left_url, "area": "default"}) as left,
        open_site(options | {"url": right_url, "area": "default"}) as right,
    ):
        areas = area or sorted(left.summary().areas.keys() & right.summary().areas.keys())
        mine, theirs = (site.dump_areas(areas, prefix, hashes=True) for site in (left, right))
    has_any = False
    for name in areas:
        here, there = mine[name], theirs[name]
        newer, older = compared(here, there)
        for key in sorted({*newer, *older}):
            has_any = True
            sign = "!" if key in newer and key in older else "<" if key in newer else ">"
            if json_output:
                sides = {"left": here.get(key), "right": there.get(key)}
                facts = {side: entry and entry_facts(entry) for side, entry in sides.items()}
                print_json({"area": name, "key": key, "newer": _NEWER[sign]}, facts)
            else:
                print_line(sign, name, key, _brief(here.get(key)), _brief(there.get(key)))
    return exits.NEGATIVE if has_any else exits.DONE


_NEWER: Final = {"<": "left", ">": "right", "!": "both"}


@kv.command("signature")
@prefix_option
@json_option
@site_options
def signature(*, prefix: str | None, json_output: bool, **options: Any) -> int:
    """Print a checksum of all keys and values. Two sites with equal keys and values have the same one."""
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


@kv.command("validate")
@json_option
@site_options
def validate(*, json_output: bool, **options: Any) -> int:
    """Print what is wrong at the site. That is: peers that are lost or not in sync, addresses without a site, contested
    keys, keys that were set here and overridden by another site, and areas without room.

    Prints a line for each. Exit code 1 if there are any.
    """
    with open_site(options) as site:
        reply, own, lost, area = site.peers(), site.own_keys(), site.lost_keys(), options["area"]
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
        *(
            (
                f"key {loss.key}",
                f"{loss.originator} has overridden it: set-key it again, or erase-key it to accept that",
            )
            for loss in lost.values()
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


@kv.command("graph")
@click.option("--svg", "svg_file", type=click.Path(dir_okay=False, writable=True), help="Draw it into this file.")
@json_option
@site_options
def graph(*, svg_file: str | None, json_output: bool, **options: Any) -> int:
    """Print the mesh of sites, a line for each connection. --svg draws it. The command asks the site, its peers, and
    their peers.

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


# -- the mesh of the sites, as text and as a picture (SVG) -------------------------------------------------------------


_IN_SYNC: Final = 2
#: Sites that are asked; the picture of more says nothing.
_MOST_SITES: Final = 200


@attrs.frozen
class Connection:
    """Between two sites, or of a site to an address where no site has answered. ``state``: the worse of both views."""

    site: str
    other: str
    state: str

    @property
    def text(self) -> str:
        """For people."""
        sign = {"in sync": "===", "syncing": "---"}.get(self.state, "-x-")
        return f"{self.site} {sign} {self.other}  {self.state}"


_WORSE: Final = ("in sync", "syncing", "lost", "unreached")


@attrs.define
class Mesh:
    """What is known of it."""

    #: Name -> whether the site was asked itself.
    sites: dict[str, bool] = attrs.field(factory=dict)
    connections: dict[frozenset[str], str] = attrs.field(factory=dict)
    #: Where further sites can be asked, by name.
    urls: dict[str, tuple[str, ...]] = attrs.field(factory=dict)

    @classmethod
    def seen_by(cls, name: str, reply: PeersReply) -> Mesh:
        """As one site sees it."""
        mesh = cls({name: True} | dict.fromkeys(reply.peers, False))
        for other, peer in reply.peers.items():
            state = "lost" if not peer.is_connected else "in sync" if peer.state == _IN_SYNC else "syncing"
            mesh.connections[frozenset((name, other))] = state
            mesh.urls[other] = peer.urls
        for url in reply.unreached:
            mesh.connections[frozenset((name, url))] = "unreached"
        return mesh

    def add(self, other: Mesh) -> None:
        """What another site sees, too."""
        for name, was_asked in other.sites.items():
            self.sites[name] = self.sites.get(name, False) or was_asked
        for ends, state in other.connections.items():
            self.connections[ends] = max(state, self.connections.get(ends, state), key=_WORSE.index)
        for name, urls in other.urls.items():
            self.urls[name] = tuple(dict.fromkeys((*self.urls.get(name, ()), *urls)))

    def lines(self) -> list[Connection]:
        """All connections, in order."""
        return sorted(
            (Connection(*_ordered(ends, self.sites), state) for ends, state in self.connections.items()),
            key=lambda line: (line.site, line.other),
        )


def _ordered(ends: frozenset[str], sites: dict[str, bool]) -> tuple[str, str]:
    """Sites before addresses, then by name."""
    first, last = sorted(ends, key=lambda end: (end not in sites, end))
    return first, last


def walk(url: str, ask: Callable[[str], Mesh]) -> Mesh:
    """Ask the site at an address, then each that it knows how to reach. Raises what asking the first one raises; one of
    the others that does not answer is known by what its peers say.
    """
    mesh = ask(url)
    tried = {url}
    while len(mesh.sites) < _MOST_SITES and (following := next(_unasked(mesh, tried), None)):
        tried.add(following)
        try:
            mesh.add(ask(following))
        except StateStoreError:
            continue
    return mesh


def _unasked(mesh: Mesh, tried: set[str]) -> Iterator[str]:
    for name, was_asked in mesh.sites.items():
        if not was_asked:
            yield from (url for url in mesh.urls.get(name, ()) if url not in tried)


_SIZE: Final = 640
_MARGIN: Final = 90
_COLOURS: Final = {"in sync": "#2a7d4f", "syncing": "#b07d12", "lost": "#b3261e", "unreached": "#b3261e"}


def drawn(mesh: Mesh, when: str) -> str:
    """An SVG picture: sites on a circle, a line for each connection, dashed if it is not in sync."""
    names = sorted({end for ends in mesh.connections for end in ends} | set(mesh.sites))
    places = {name: _place(number, len(names)) for number, name in enumerate(names)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {_SIZE}" font-family="sans-serif">',
        f"<title>Sites of the KvStore, {escape(when)}</title>",
        f'<rect width="{_SIZE}" height="{_SIZE}" fill="#ffffff"/>',
    ]
    for line in mesh.lines():
        (x1, y1), (x2, y2) = places[line.site], places[line.other]
        dash = "" if line.state == "in sync" else ' stroke-dasharray="6 4"'
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_COLOURS[line.state]}" '
            f'stroke-width="2"{dash}><title>{escape(line.text)}</title></line>'
        )
    for name, (x, y) in places.items():
        fill = "#1f4e79" if mesh.sites.get(name) else "#8a8f98"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="{fill}"/>')
        place = f'x="{x:.1f}" y="{y - 15:.1f}"'
        parts.append(f'<text {place} font-size="13" text-anchor="middle" fill="#1b1b1b">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _place(number: int, count: int) -> tuple[float, float]:
    if count == 1:
        return _SIZE / 2, _SIZE / 2
    angle = 2 * math.pi * number / count - math.pi / 2
    radius = _SIZE / 2 - _MARGIN
    return _SIZE / 2 + radius * math.cos(angle), _SIZE / 2 + radius * math.sin(angle)
