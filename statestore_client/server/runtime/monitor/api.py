"""What a viewer asks for beside the stream, a page at a time: keys, sessions, watches, retained messages, peers, sites.

The peers are those of the log, the sites the other ones of the KvStore.

Each answer takes about a millisecond at most, however much there is; ``next`` says where the next page begins.
"""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import topic_filter_problem
from statestore_client.server.cluster.interface import Role
from statestore_client.server.monitor import shown
from statestore_client.server.runtime.observability.logs import log_event
from statestore_client.server.store import RequestContext
from statestore_client.wire.commands import Del
from statestore_client.wire.replies import COUNT_1, ErrorReply

if TYPE_CHECKING:
    from statestore_client.server.broker import Broker
    from statestore_client.server.monitor import ChangeLog
    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.clock import Clock
    from statestore_client.server.runtime.monitor.access import Viewer
    from statestore_client.server.runtime.monitor.tap import Tap
    from statestore_client.server.runtime.replication.own_peer import LogPeer
    from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer
    from statestore_client.server.runtime.sites import SitePeering
    from statestore_client.server.service.service import StateStoreService
    from statestore_client.server.store import StateStore
    from statestore_client.server.store.keyspace import Entry
    from statestore_client.wire.instant import Instant

#: Of a page.
_KEYS: Final = 100
_EXAMINED: Final = 2_000
_CLIENTS: Final = 100
_WATCHED: Final = 20
_WATCHERS: Final = 50
_SEEN: Final = 25

#: Of a value. More of it is for ``statestore get``.
_VALUE_BYTES: Final = 64 * 1024
_PREVIEW: Final = 100

#: By the names in the address of the request.
Question: TypeAlias = Callable[[Mapping[str, str], "Viewer"], dict[str, Any]]


@attrs.frozen(eq=False)
class ServerParts:
    """Of a server, as they are now: another life of a replicated one has others."""

    store: Callable[[], StateStore]
    service: Callable[[], StateStoreService]
    #: None if it is no broker, but its store is hosted on another one.
    broker: Callable[[], Broker | None]
    site: Callable[[], SitePeering | None]
    #: None without a log.
    replication: ReplicatedServer[Any] | None
    clock: Clock

    @property
    def log_peers(self) -> Sequence[LogPeer] | None:
        """Of the replicated log; None if there is no log, or they were not asked yet."""
        return None if self.replication is None else self.replication.log_peers.known()

    @property
    def active(self) -> str | None:
        """Return the server that is active: empty if none is, None if it is this one."""
        lives = self.replication
        return None if lives is None or lives.role is Role.ACTIVE else lives.active[1]


@attrs.frozen(eq=False)
class MonitorQueries:
    """Answers, or raises InvalidArgumentError for a question that makes no sense."""

    _parts: ServerParts
    _changes: ChangeLog

    def by_path(self) -> dict[str, Question]:
        """Where each of them is asked."""
        return {
            "/keys": self.keys,
            "/key": self.key,
            "/sessions": self.sessions,
            "/watches": self.watches,
            "/retained": self.retained,
            "/log": self.log,
            "/site": self.site,
        }

    # -- the store ----------------------------------------------------------------------------------------------------

    def keys(self, query: Mapping[str, str], viewer: Viewer) -> dict[str, Any]:
        """Those that begin with ``prefix``, from ``at`` (hexadecimal) on, with the beginning of their values."""
        store, now = self._parts.store(), self._parts.clock()
        prefix = query.get("prefix", "").encode(errors="surrogateescape")
        start = max(prefix, _bytes(query.get("at", "")))
        found: list[dict[str, Any]] = []
        for examined, key in enumerate(store.keys_from(start, inclusive=True)):
            if not key.startswith(prefix):
                break
            if len(found) == _KEYS or examined == _EXAMINED:
                return {"keys": found, "next": key.hex()}
            entry = store.entry(key, now)
            if entry is not None:
                found.append(_key(key, entry, now, viewer))
        return {"keys": found, "next": None}

    def key(self, query: Mapping[str, str], viewer: Viewer) -> dict[str, Any]:
        """The one that ``key`` names (hexadecimal): value, watchers, and what became of it. ``key`` is null if it is
        not there.
        """
        store, now = self._parts.store(), self._parts.clock()
        key = _bytes(query.get("key", ""))
        entry = store.entry(key, now)
        may_read = viewer.may_read(key)
        return {
            "name": shown(key),
            "key": None if entry is None else _key(key, entry, now, viewer),
            "value": None if entry is None or not may_read else b64encode(entry.value[:_VALUE_BYTES]).decode(),
            "watchers": [shown(client) for client in islice(store.observers.of(key), _WATCHERS)],
            "changes": [change.encoded() for change in self._changes.of(key)[:_SEEN]] if may_read else [],
        }

    def watches(self, query: Mapping[str, str], viewer: Viewer) -> dict[str, Any]:
        """Clients that watch keys, ``skip`` left out, with what they watch and how far each is behind: notifications
        and other messages that it has not taken yet; null if another broker knows that.
        """
        del viewer
        broker, now = self._parts.broker(), self._parts.clock()
        skip = _number(query.get("skip", "0"))
        found = []
        for client_id, keys in islice(self._parts.store().observers.clients(), skip, skip + _CLIENTS):
            watched = [shown(key) for key in islice(keys, _WATCHED)]
            behind = _behind(broker, client_id, now)
            found.append({"client": client_id, "keys": watched, "count": len(keys), **behind})
        return {"watches": found, "next": skip + _CLIENTS if len(found) == _CLIENTS else None}

    # -- the broker ---------------------------------------------------------------------------------------------------

    def sessions(self, query: Mapping[str, str], viewer: Viewer) -> dict[str, Any]:
        """In the order of client identifiers, from ``at`` on; null if another broker has them."""
        del viewer
        broker = self._parts.broker()
        if broker is None:
            return {"sessions": None, "next": None}
        found, after = broker.control.sessions(query.get("at", ""), 0, self._parts.clock())
        return {"sessions": [session.encoded() for session in found], "next": None if after is None else after[0]}

    def retained(self, query: Mapping[str, str], viewer: Viewer) -> dict[str, Any]:
        """Those whose topics match ``filter``, from ``at`` on; null if another broker has them."""
        broker = self._parts.broker()
        if broker is None:
            return {"messages": None, "next": None}
        topic_filter = query.get("filter") or None
        if topic_filter is not None and (problem := topic_filter_problem(topic_filter, shared=False)):
            raise InvalidArgumentError(f"this is not a topic filter: {problem}")
        permissions = viewer.permissions
        now = self._parts.clock()
        found, after = broker.control.retained(topic_filter, query.get("at", ""), now, payloads=True)
        messages = []
        for message in found:
            may_see = permissions is None or permissions.may_subscribe(message.topic)
            text = shown(message.payload, _PREVIEW) if may_see and message.payload is not None else None
            messages.append(message.encoded() | {"topic": message.topic, "payload": text})
        return {"messages": messages, "next": after}

    # -- other machines -----------------------------------------------------------------------------------------------

    def log(self, query: Mapping[str, str], viewer: Viewer) -> dict[str, Any]:
        """What the peers of the replicated log said at the last look; ``peers`` is null before, and without a log.
        ``info`` of a peer is null if it did not answer.
        """
        del query, viewer
        peers = self._parts.log_peers
        if peers is None:
            return {"peers": None}
        found = [
            {
                "id": shown(peer.id),
                "url": shown(peer.url),
                "info": None if peer.info is None else attrs.asdict(peer.info),
            }
            for peer in islice(peers, _CLIENTS)
        ]
        return {"peers": found}

    def site(self, query: Mapping[str, str], viewer: Viewer) -> dict[str, Any]:
        """The peers of each area and how far they are; ``areas`` is null if the server is not a site."""
        del query, viewer
        peering = self._parts.site()
        if peering is None:
            return {"areas": None}
        areas = [
            {
                "area": shown(replica.area),
                "keys": len(replica.contents.store),
                "own": len(replica.contents.own),
                "peers": [
                    {
                        "name": shown(peer.name),
                        "state": peer.status.state.name.lower(),
                        "is_connected": peer.is_connected,
                        "flaps": max(0, peer.status.flaps),
                    }
                    for peer in islice(replica.peers.values(), _CLIENTS)
                ],
            }
            for replica in peering.site.replicas.values()
        ]
        return {"areas": areas, "name": peering.site.settings.name, "url": peering.url}


def _behind(broker: Broker | None, client_id: str, now: Instant) -> dict[str, int | None]:
    if broker is None:
        return {"queued": None, "in_flight": None}
    sessions, _ = broker.control.session(client_id, 0, now)
    queued, in_flight = (sessions[0].queued, sessions[0].in_flight) if sessions else (0, 0)
    return {"queued": queued, "in_flight": in_flight}


def _key(key: bytes, entry: Entry, now: Instant, viewer: Viewer) -> dict[str, Any]:
    left_ms = None if entry.expires_at is None else round(1000 * (entry.expires_at - now.monotonic))
    return {
        "key": key.hex(),
        "name": shown(key),
        "size": len(entry.value),
        "value": shown(entry.value, _PREVIEW) if viewer.may_read(key) else None,
        "version": str(entry.version),
        "fence": None if entry.fence is None else str(entry.fence),
        "left_ms": left_ms,
    }


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgumentError("keys are in hexadecimal here") from None


def _number(text: str) -> int:
    if not (text.isdecimal() and len(text) < 10):
        raise InvalidArgumentError("a number is missing")
    return int(text)


# -- actions -----------------------------------------------------------------------------------------------------------
#
# What a viewer may do, if the server was started so: end a session, delete a key.
#
# Each action is logged with the user that did it. A key goes as with a DEL of a client that has its fencing token:
# those that watch it hear of it, and it is on the disk. That frees no lock for
# good: whoever waits may get it, but a holder that lives claims it again at its next renewal.


#: As a client identifier, in the changes of a key.
_WHO: Final = "(monitor)"


@attrs.frozen(eq=False)
class MonitorCommands:
    """Of the active server, whose parts they are now. Raises InvalidArgumentError for what cannot be done."""

    _parts: ServerParts
    _driver: BrokerDriver
    _tap: Tap

    def carry_out(self, body: bytes, viewer: Viewer, peer: str) -> dict[str, Any]:
        """``{"action": "end session" | "delete key", "what": client identifier or key in hexadecimal}``."""
        try:
            asked = json.loads(body)
            action, what = str(asked["action"]), str(asked["what"])
            what.encode()  # a lone surrogate is no character
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidArgumentError('an action is {"action": ..., "what": ...}') from None
        active = self._parts.active
        if active is not None:
            ask = f"ask the active one, {active}" if active else "nobody is active at the moment"
            raise InvalidArgumentError(f"this server stands by: {ask}")
        if action == "end session":
            is_done, name = self._end_session(what), what
        elif action == "delete key":
            key = _key_of(what)
            is_done, name = self._delete(key, viewer), shown(key)
        else:
            raise InvalidArgumentError("there is no such action")
        log_event(
            logging.WARNING, "monitor action", action=action, what=name, done=is_done, user=viewer.user, peer=peer
        )
        self._tap.note("action", client=viewer.user or "somebody", text=f"{action} {name}")
        return {"done": is_done}

    def _end_session(self, client_id: str) -> bool:
        broker = self._driver.broker
        removal = broker.control.remove_sessions([client_id], force=True)
        broker.perform((), self._parts.clock())
        self._driver.flush()
        return bool(removal.removed)

    def _delete(self, key: bytes, viewer: Viewer) -> bool:
        if viewer.permissions is not None and not viewer.permissions.may_run(Del(key)):
            raise InvalidArgumentError(f"the server's access rules do not let {viewer.user} write this key")
        if self._parts.service().is_read_only(key):
            raise InvalidArgumentError("another site says what is there")
        store, now = self._parts.store(), self._parts.clock()
        entry = store.entry(key, now)
        outcome = store.apply(Del(key), RequestContext(_WHO, None, None if entry is None else entry.fence, now))
        if isinstance(outcome.reply, ErrorReply):
            raise InvalidArgumentError(outcome.reply.error.message)
        self._driver.broker.perform(self._parts.service().announce(outcome.changes), now)
        self._driver.flush()
        return outcome.reply is COUNT_1


def _key_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgumentError("keys are in hexadecimal here") from None
