"""The mesh of the sites of a KvStore: who is connected with whom, as text and as a picture (SVG)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final
from xml.sax.saxutils import escape

import attrs

from statestore_client.errors import StateStoreError
from statestore_client.kvstore import PeersReply

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
