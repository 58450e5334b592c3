"""The commands of scenarios.

==================================  ================================================================================
``peers A B C [key=value ...]``     begins anew with these peers; ``members=A,B`` if not all are, settings otherwise
``log A 1 1 2:x [key=value ...]``   what the disk of A holds before it starts; ``term=`` ``vote=`` ``applied=``
``start [A ...]``                   all, or these, start with what their disks hold
``crash A``                         power failure
``timeout A``                       time passes until A's election time-out, and A acts on it
``elect A``                         the same, and all messages are delivered, until A leads
``wait SECONDS``                    time passes; nobody acts on it
``tick [A ...]``                    all, or these, act on the time
``deliver [A>B ...]``               everything, or all that is on these links, until nothing is left; ``A-B`` for both
                                    ways, ``A>`` or ``>B`` for all links from or to a peer
``next A>B``                        the oldest message of a link
``drop A>B [...]``                  what is on these links is lost
``copy A>B as NAME``                keeps a copy of the oldest message; ``replay NAME`` delivers it later
``cut A>B`` / ``cut A-B``           what is sent from now on is lost, one way or both ways; ``heal`` ends all cuts
``append A x``                      a client sends the update x to A; the same x has the same request id
``change A B,C,D``                  a client asks A to make these the members
``read A x``                        a linearizable read at A
``transfer A B``                    A is to hand the leadership over to B
``compact A INDEX``                 A's state machine makes a snapshot
``hold A`` / ``sync A``             A's disk does nothing until ``sync``, which ends the job under way; ``release A``
``fail A``                          A's disk fails
``status [A ...]``                  role, term, vote on the disk, commit, log
==================================  ================================================================================

``quiet COMMAND`` leaves out messages and what disks write.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from scenario_cluster import ScenarioCluster
from scenario_words import id_of, peers_of, read_entry

from raft_client.server.node.ready import HardState, Role
from raft_client.wire.client_requests import ConfigUpdate, RequestUpdate

__all__ = ["Scenario"]

_IDENT = b"scenario"
#: The first may only tell a candidate which term there is.
_MOST_ELECTIONS = 3


class Scenario:
    """``run`` does one command and returns what it made happen, line by line."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._cluster = ScenarioCluster([], "0", {}, self._lines.append)
        #: Of each cluster that ``peers`` made.
        self.traces: list[list[bytes]] = []

    def run(self, command: str) -> list[str]:
        """Raises ValueError for what is no command."""
        self._lines.clear()
        is_quiet, words = command.startswith("quiet "), command.removeprefix("quiet ").split()
        self._cluster.shows_messages = not is_quiet
        action: Callable[..., None] | None = getattr(self, f"_do_{words[0]}", None)
        if action is None:
            raise ValueError(f"no command of scenarios: {command}")
        action(*words[1:])
        return list(self._lines)

    # -- peers ---------------------------------------------------------------------------------------------------------

    def _do_peers(self, *words: str) -> None:
        names, options = _options(words)
        members = str(options.pop("members", ",".join(names)))
        self._cluster = ScenarioCluster(names, members, options, self._lines.append)
        self.traces.append(self._cluster.trace)

    def _do_log(self, name: str, *words: str) -> None:
        terms, options = _options(words)
        entries = [read_entry(word, index) for index, word in enumerate(terms, 1)]
        term = int(str(options.get("term", entries[-1].term if entries else 0)))
        vote, applied = str(options.get("vote", "")), int(str(options.get("applied", 0)))
        self._cluster.write(name, entries, HardState(term, vote), applied)

    def _do_start(self, *names: str) -> None:
        for name in names or self._cluster.peers:
            self._cluster.start(name)

    def _do_crash(self, name: str) -> None:
        self._cluster.crash(name)

    def _do_status(self, *names: str) -> None:
        self._lines.extend(map(self._cluster.status, names or self._cluster.peers))

    # -- time ----------------------------------------------------------------------------------------------------------

    def _do_timeout(self, name: str) -> None:
        self._cluster.time_out(name)

    def _do_stand(self, name: str) -> None:
        self._cluster.stand(name)

    def _do_elect(self, name: str) -> None:
        for _ in range(_MOST_ELECTIONS):
            self._cluster.time_out(name)
            self._cluster.deliver_all([("", "")])
            if self._cluster.node(name).role is Role.LEADER:
                return
        raise ValueError(f"{name} is not elected: " + "; ".join(self._lines))

    def _do_wait(self, seconds: str) -> None:
        self._cluster.now += float(seconds)

    def _do_tick(self, *names: str) -> None:
        for name in names or [peer.name for peer in self._cluster.peers.values() if peer.node is not None]:
            self._cluster.tick(name)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _do_deliver(self, *links: str) -> None:
        for link in links or (">",):
            self._cluster.deliver_all(_links(link))

    def _do_next(self, link: str) -> None:
        self._cluster.deliver(self._cluster.on_link(*_links(link)[0]).pop(0))

    def _do_drop(self, *links: str) -> None:
        for link in links:
            for source, target in _links(link):
                self._cluster.on_link(source, target).clear()

    def _do_copy(self, link: str, _as: str, name: str) -> None:
        self._cluster.copies[name] = self._cluster.on_link(*_links(link)[0])[0]

    def _do_replay(self, name: str) -> None:
        self._cluster.deliver(self._cluster.copies[name])

    def _do_cut(self, *links: str) -> None:
        for link in links:
            self._cluster.cut |= set(_links(link))

    def _do_heal(self) -> None:
        self._cluster.cut.clear()
        self._cluster.introduce()

    # -- clients -------------------------------------------------------------------------------------------------------

    def _do_append(self, name: str, label: str) -> None:
        self._cluster.ask(name, RequestUpdate(_IDENT, label.encode()), id_of(label).raw, label)

    def _do_change(self, name: str, members: str) -> None:
        self._cluster.ask(name, ConfigUpdate(_IDENT, peers_of(members)), id_of(members).raw, members)

    def _do_read(self, name: str, label: str) -> None:
        self._cluster.read(name, label)

    def _do_transfer(self, name: str, to: str) -> None:
        self._cluster.transfer(name, to)

    # -- disks ---------------------------------------------------------------------------------------------------------

    def _do_compact(self, name: str, index: str) -> None:
        self._cluster.compact(name, int(index))

    def _do_hold(self, name: str) -> None:
        self._cluster.peers[name].is_held = True

    def _do_sync(self, name: str) -> None:
        self._cluster.finish(name)

    def _do_release(self, name: str) -> None:
        self._cluster.peers[name].is_held = False
        self._cluster.finish(name)

    def _do_fail(self, name: str) -> None:
        self._cluster.fail(name)


def _options(words: tuple[str, ...]) -> tuple[list[str], dict[str, object]]:
    plain = [word for word in words if "=" not in word]
    pairs = (word.partition("=") for word in words if "=" in word)
    return plain, {key: value for key, _, value in pairs}


def _links(word: str) -> list[tuple[str, str]]:
    source, arrow, target = re.split("([>-])", word)
    return [(source, target), (target, source)] if arrow == "-" else [(source, target)]
