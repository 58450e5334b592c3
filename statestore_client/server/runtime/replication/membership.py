"""Changes of the servers of a cluster, each of which has a peer of the log: one member at a time, by people.

Invariant: what a change leaves behind is a list with which the log goes on, wherever it was interrupted; the same
command again does what is left. A change that would leave the log without a majority is not begun.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import attrs

from raft_client import AsyncRaftClient, ClusterBusyError, ConfigError, HandOverError, Peer, RaftError
from statestore_client.clocks import monotonic
from statestore_client.errors import ConnectionLostError
from statestore_client.server.runtime.replication.settings import ClusterKeys, LogKeys, ReplicaSettings, nodes_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from raft_client import LogInfo

#: A peer that is up answers at once.
_ANSWER_S: Final = 1.0
#: Peers do not tell when a change is complete, or when they have read the log: one has to ask.
_POLL_S: Final = 0.1
#: With fewer members the loss of any one ends everything.
_FEWEST: Final = 3


@attrs.frozen
class Step:
    """What was done, for people and by a word: ``added``, ``removed``, ``ready`` or ``unchanged``; or ``waits``, for a
    server that people have to start. ``members`` are those of the log then, ids with URLs.
    """

    done: str
    text: str
    members: dict[str, str]


class RefusedChangeError(Exception):
    """The change was not begun, or is not complete: why, and what to do."""


@asynccontextmanager
async def memberships(
    nodes: str, key: bytes, cluster: str, wait_s: float, say: Callable[[Step], None]
) -> AsyncIterator[Memberships]:
    """``nodes`` are the servers as ``--cluster`` names them, the one to add or to remove among them. ``wait_s``: for
    servers that people start, and for what they have to read. Raises SettingsError, ConnectionLostError without a
    leader of the log, :class:`RefusedChangeError`.
    """
    urls = {node.id: node.peer_url for node in nodes_of(nodes).values()}
    try:
        members = await _members(_settings(urls, {}, key, cluster))
        async with AsyncRaftClient(_settings(urls, members, key, cluster).raft) as client:
            yield Memberships(client, urls, wait_s, say)
    except ConfigError as error:
        raise RefusedChangeError(f"the log refuses the change: {error}") from error
    except ClusterBusyError as error:
        raise RefusedChangeError(
            f"a change of the members is under way: {error}. Give this command again when it is over"
        ) from error
    except RaftError as error:
        raise ConnectionLostError(
            f"the log cannot be reached: {error}. If it is there, give this command again"
        ) from error


async def _members(settings: ReplicaSettings) -> dict[str, str]:
    """As any peer names them: the leader may be a member at another place, for which these ``settings`` have no key."""
    client = AsyncRaftClient(settings.raft)
    try:
        with suppress(RaftError):
            await client.open(_ANSWER_S)
        return dict(client.peers)
    finally:
        await client.close()


def _settings(urls: Mapping[str, str], members: Mapping[str, str], key: bytes, cluster: str) -> ReplicaSettings:
    """Of a client of the log. It has keys also for members that are at other places than ``urls`` say."""
    keys = None
    if key:
        of_nodes = ClusterKeys.made_from(key, cluster, urls).of_client(urls)
        of_members = ClusterKeys.made_from(key, cluster, members).of_client(members)
        keys = LogKeys((*of_nodes.peers, *of_members.peers), of_nodes.own)
    return ReplicaSettings(log=tuple(urls.values()), id="client", cluster=cluster, log_keys=keys)


class Memberships:
    """Of one log."""

    def __init__(
        self, client: AsyncRaftClient, urls: Mapping[str, str], wait_s: float, say: Callable[[Step], None]
    ) -> None:
        self._client = client
        self._urls = urls
        self._wait_s = wait_s
        self._say = say

    async def add(self, server: str) -> None:
        """Make a server a member that runs with an empty directory. Returns when it has the log."""
        members = await self._members(server)
        url = self._urls[server]
        if server in members and members[server] != url:
            raise RefusedChangeError(
                f"{server} is a member at {members[server]}: use replace-server to move it to {url}"
            )
        if members.get(server) == url:
            self._say(Step("unchanged", f"{server} is a member already", members))
        else:
            await self._await_start(server, members)
            await self._check_majority(members, {**members, server: url})
            await self._change("added", {**members, server: url}, f"{server} is a member now")
        await self._await_log(server)

    async def remove(self, server: str, *, force: bool) -> None:
        """Let a server be none any more, whether it runs or not. With ``force`` also if two are left then."""
        members = await self._members(server)
        if server not in members:
            self._say(Step("unchanged", f"{server} is not a member", members))
            return
        if len(members) <= _FEWEST and not force:
            raise RefusedChangeError(
                f"{len(members) - 1} members would be left, and the loss of any one would end everything: add another "
                "server first, or use replace-server; --force does it all the same"
            )
        await self._remove(server, members, "stop its server for good, if it runs")

    async def replace(self, server: str) -> None:
        """Let a server be a member with an empty directory, here or at another place, and not with the one it had."""
        members = await self._members(server)
        old = members.get(server)
        if old is not None:
            if await self._info(old) is not None:
                if old == self._urls[server]:
                    self._say(Step("unchanged", f"{server} is a member, and answers", members))
                    await self._await_log(server)
                    return
                raise RefusedChangeError(f"{server} still runs at {old}: stop it for good first, and give this again")
            await self._remove(server, members, "its former directory is not used again")
        await self.add(server)

    # -- steps --------------------------------------------------------------------------------------------------------

    async def _members(self, server: str) -> dict[str, str]:
        """When no change is under way. People must know all that are in force, but for this ``server``: they count on
        what they see in their own list.
        """
        if server not in self._urls:
            raise RefusedChangeError(f"{server} is not in --cluster, which names {', '.join(self._urls)}")
        members = {each.id: each.url for each in (await self._client.config(settled=True)).peers}
        if any(self._urls.get(name) != url for name, url in members.items() if name != server):
            names = ", ".join(f"{name} at {url}" for name, url in members.items())
            raise RefusedChangeError(f"--cluster is not what the log says, beside {server}: its members are {names}")
        return members

    async def _check_majority(self, members: Mapping[str, str], new: Mapping[str, str]) -> None:
        """Among those that have the log already, unless all of them are there."""
        kept = {name: url for name, url in members.items() if name in new}
        infos = await asyncio.gather(*map(self._info, kept.values()))
        silent = [name for name, info in zip(kept, infos, strict=True) if info is None]
        if silent and 2 * (len(kept) - len(silent)) <= len(new):
            raise RefusedChangeError(
                f"{', '.join(silent)} does not answer, and without a majority of {', '.join(new)} nothing could be "
                "acknowledged afterwards: start what is down, or remove it first"
            )

    async def _remove(self, server: str, members: Mapping[str, str], advice: str) -> None:
        rest = {name: url for name, url in members.items() if name != server}
        if not rest:
            raise RefusedChangeError(f"{server} is the only member")
        await self._check_majority(members, rest)
        if (await self._client.config()).leader_id == server:
            with suppress(HandOverError):  # a leader can remove itself, too: it takes an election
                await self._client.transfer_leadership()
        await self._change("removed", rest, f"{server} is no member any more: {advice}")

    async def _change(self, done: str, new: dict[str, str], text: str) -> None:
        """Returns when the new list alone is in force."""
        wanted = tuple(Peer(*each) for each in new.items())
        await self._client.update_config(wanted, wait=False)
        found = await self._client.config(settled=True)
        if set(found.peers) != set(wanted):
            raise RefusedChangeError(
                "another command changes the members at this moment: wait for it, and give this command again"
            )
        self._say(Step(done, text, new))

    async def _await_start(self, server: str, members: dict[str, str]) -> None:
        """Until it answers."""
        url = self._urls[server]
        is_told = False
        ends = monotonic() + self._wait_s
        while await self._info(url) is None:
            if monotonic() >= ends:
                raise RefusedChangeError(
                    f"{server} does not answer at {url}: start it with this --cluster and an empty --data, and give "
                    "this command again"
                )
            if not is_told:
                self._say(Step("waits", f"start {server} with this --cluster and an empty --data", members))
                is_told = True
            await asyncio.sleep(_POLL_S)

    async def _await_log(self, server: str) -> None:
        """Until it has what was in the log when this began."""
        end = (await self._client.log_info()).last_applied
        ends = monotonic() + self._wait_s
        while (info := await self._info(self._urls[server])) is None or info.last_applied < end:
            if monotonic() >= ends:
                raise RefusedChangeError(
                    f"{server} is a member, and has not read the log yet: see whether it runs, and whether the others "
                    "have it in their --cluster. Give this command again to wait for it"
                )
            await asyncio.sleep(_POLL_S)
        members = {each.id: each.url for each in (await self._client.config()).peers}
        self._say(Step("ready", f"{server} has read the log", members))

    async def _info(self, url: str) -> LogInfo | None:
        try:
            return await self._client.log_info(url, timeout=_ANSWER_S)
        except RaftError:
            return None
