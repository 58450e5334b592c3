"""Schedules of failures for the real machines of replicated servers: broker, store, journal, gate, lives, standby.

``tests/support/schedules.py`` says how many there are, and how one is repeated. Clients send with QoS 2,
write keys, and come and go with wills. Sockets are simulated, and so is the log; all else is what a server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines_schedule import run_machines
from support.schedules import printed_by_two_processes, run_schedules

from statestore_client.server.broker.persistence.durable_session import SessionPersister
from statestore_client.server.broker.persistence.persister import BrokerPersistence
from statestore_client.server.journal import Stream, Timeline, WriteBatch
from statestore_client.server.runtime.replication.lives import Lives
from statestore_client.server.runtime.replication.replica_life import ReplicaLife
from statestore_client.server.runtime.storage.group_commit import GroupCommit
from statestore_client.server.runtime.storage.rows import StateRows
from statestore_client.server.runtime.storage.standby import Standby
from statestore_client.server.service.service import StateStoreService

Patch = pytest.MonkeyPatch

#: A mistake that is not seen in so many schedules is not seen.
_MOST = 400


@pytest.mark.timeout(3600)
def test_all_clients_find_what_they_must(record_property: Callable[[str, object], None]) -> None:
    """Each message of QoS 2 comes exactly once and in order, each will once and none for a client that was back in
    time, no session is lost, a write has one answer, versions do not go back, a read gives what was acknowledged last,
    snapshots have what the log has, and in the end all servers have the same.
    """
    run_schedules(
        "replicated machines",
        run_machines,
        record_property,
        long=20_000,
        violation=lambda outcome: next(iter(outcome.violations), None),
        counts=lambda each: {"messages": each.messages, "wills": each.wills, "epochs": each.epochs, **each.faults},
    )


def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from machines_schedule import run_machines; print([run_machines(seed).digest for seed in range(4)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1


# -- mutants: each is a mistake that somebody could make, and must be found --------------------------------------------


def _unreleased_messages_are_not_written_down(patch: Patch) -> None:
    """A message of QoS 2 that is repeated after a failover is another one."""
    patch.setattr(SessionPersister, "inbound_received", lambda *_: None)
    patch.setattr(SessionPersister, "inbound_released", lambda *_: None)
    end = SessionPersister.end
    patch.setattr(SessionPersister, "end", lambda self, session: (session.inbound.clear(), end(self, session))[1])


def _releases_are_not_written_down(patch: Patch) -> None:
    """What the receiver has acknowledged is sent to it again, under another identifier or the same."""
    patch.setattr(SessionPersister, "released", lambda *_: None)


def _speaks_before_the_log_has_it(patch: Patch) -> None:
    """What is acknowledged may be lost."""
    write = GroupCommit._write

    def too_early(self: GroupCommit) -> None:
        write(self)
        sealed, self._sealed = self._sealed, []
        self._release(sealed)

    patch.setattr(GroupCommit, "_write", too_early)


def _speaks_without_a_lease(patch: Patch) -> None:
    """A server that stood still reads what others have changed."""
    patch.setattr(ReplicaLife, "may_speak", lambda self: not self._is_over)


def _a_deposed_server_keeps_its_clients(patch: Patch) -> None:
    """They are told nothing, and what they send is lost."""
    end_life = Lives._end_life

    def careless(self: Lives) -> None:
        driver, self._driver = self._driver, None
        end_life(self)
        self._driver = driver

    patch.setattr(Lives, "_end_life", careless)


def _clients_are_not_awaited(patch: Patch) -> None:
    """Each failover sends all wills."""
    patch.setattr("statestore_client.server.broker.session.awaited.GRACE_S", 0.0)


def _wills_that_were_taken_back_stay(patch: Patch) -> None:
    """In the journal; the next server sends them."""
    patch.setattr(BrokerPersistence, "forget_will", lambda *_: None)


def _absorbs_all_but(patch: Patch, stream: Stream) -> None:
    absorb = StateStoreService.absorb

    def careless(self: StateStoreService, batch: WriteBatch, timeline: Timeline) -> None:
        absorb(self, WriteBatch(tuple(changes for changes in batch.changes if changes.stream is not stream)), timeline)

    patch.setattr(StateStoreService, "absorb", careless)


def _answers_are_not_absorbed(patch: Patch) -> None:
    """A request that is repeated after a failover is carried out again."""
    _absorbs_all_but(patch, Stream.RESPONSES)


def _versions_are_not_absorbed(patch: Patch) -> None:
    """The next server's wall clock may be behind."""
    _absorbs_all_but(patch, Stream.CLOCK)


def _standbys_forget_what_is_in_flight(patch: Patch) -> None:
    """Their tables lose what sessions are to get."""
    absorb = Standby.absorb

    def careless(self: Standby, batch: WriteBatch) -> None:
        absorb(self, batch)
        for stream, records in self._tables.streams.items():
            if stream is Stream.DELIVERIES:
                records.clear()

    patch.setattr(Standby, "absorb", careless)


def _uncommitted_rows_in_a_snapshot(patch: Patch) -> None:
    """Their batch may never be valid."""
    patch.setattr(StateRows, "_waits", lambda *_: False)


def _a_snapshot_without_rows_that_wait(patch: Patch) -> None:
    """What they were before is missing, if their batch is never valid."""
    in_turn = StateRows.in_turn

    def too_short(self: StateRows) -> Iterator[WriteBatch]:
        for batch in in_turn(self):
            yield batch
            if not batch.changes:
                return

    patch.setattr(StateRows, "in_turn", too_short)


_MUTANTS = (
    _unreleased_messages_are_not_written_down,
    _releases_are_not_written_down,
    _speaks_before_the_log_has_it,
    _speaks_without_a_lease,
    _a_deposed_server_keeps_its_clients,
    _clients_are_not_awaited,
    _wills_that_were_taken_back_stay,
    _answers_are_not_absorbed,
    _versions_are_not_absorbed,
    _standbys_forget_what_is_in_flight,
    _uncommitted_rows_in_a_snapshot,
    _a_snapshot_without_rows_that_wait,
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plant", _MUTANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_the_simulation_finds(
    plant: Callable[[Patch], None], monkeypatch: Patch, figures: Callable[[str], None]
) -> None:
    """With one deliberate mistake some schedule fails, and says why."""
    plant(monkeypatch)
    for seed in range(1, _MOST):
        if violations := run_machines(seed).violations:
            figures(f"found by schedule {seed}: {violations[0]}")
            return
    pytest.fail("no schedule saw it")
