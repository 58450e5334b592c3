"""Schedules of failures for the real machines of replicated servers: broker, store, journal, gate, lives, standby.

``tests/support/schedules.py`` says how many there are, and how one is repeated. Clients send with QoS 2,
write keys, and come and go with wills. Sockets are simulated, and so is the log; all else is what a server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machines_schedule import run_machines
from support.schedules import Mutants, printed_by_two_processes, run_schedules, seeds_near

from statestore_client.server.broker.journal_writer import BrokerPersistence, SessionPersister
from statestore_client.server.journal import Stream, Timeline, WriteBatch
from statestore_client.server.runtime.replication.replica import LogReplica
from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer
from statestore_client.server.runtime.storage.group_commit import GroupCommit
from statestore_client.server.runtime.storage.standby import Standby, StateRows
from statestore_client.server.service.service import StateStoreService

Patch = pytest.MonkeyPatch

#: A mistake that is not seen in so many schedules is not seen.
_MOST = 400


@pytest.mark.scaled
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


@pytest.mark.ci
def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from machines_schedule import run_machines; print([run_machines(seed).digest for seed in range(4)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1


# -- mutants: each is a mistake that somebody could make, and must be found --------------------------------------------

#: With the first schedule that finds it, if that is not 1.
MUTANTS = Mutants()


@MUTANTS.plant(45)
def _unreleased_messages_are_not_written_down(patch: Patch) -> None:
    """A message of QoS 2 that is repeated after a failover is another one."""
    patch.setattr(SessionPersister, "inbound_received", lambda *_: None)
    patch.setattr(SessionPersister, "inbound_released", lambda *_: None)
    end = SessionPersister.end
    patch.setattr(SessionPersister, "end", lambda self, session: (session.inbound.clear(), end(self, session))[1])


@MUTANTS.instead(GroupCommit, "_write", 7)
def _speaks_before_the_log_has_it(write: Any, commit: GroupCommit) -> None:
    """What is acknowledged may be lost."""
    write(commit)
    sealed, commit._sealed = commit._sealed, []
    commit._release(sealed, commit._sealed_since)


@MUTANTS.instead(ReplicatedServer, "_end_life", 49)
def _a_deposed_server_keeps_its_clients(end_life: Any, lives: ReplicatedServer) -> None:
    """They are told nothing, and what they send is lost."""
    driver, lives._driver = lives._driver, None
    end_life(lives)
    lives._driver = driver


@MUTANTS.plant()
def _clients_are_not_awaited(patch: Patch) -> None:
    """Each failover sends all wills."""
    patch.setattr("statestore_client.server.broker.lifecycle.GRACE_S", 0.0)


def _but(stream: Stream) -> Any:
    """What absorbs all streams except this one."""
    absorb = StateStoreService.absorb

    def careless(service: StateStoreService, batch: WriteBatch, timeline: Timeline) -> None:
        changes = tuple(changes for changes in batch.changes if changes.stream is not stream)
        absorb(service, WriteBatch(changes), timeline)

    return careless


@MUTANTS.instead(Standby, "absorb", 46)
def _standbys_forget_what_is_in_flight(absorb: Any, standby: Standby, batch: WriteBatch) -> None:
    """Their tables lose what sessions are to get."""
    absorb(standby, batch)
    standby._tables.streams.get(Stream.DELIVERIES, {}).clear()


@MUTANTS.instead(StateRows, "in_turn", 31)
def _a_snapshot_without_rows_that_wait(in_turn: Any, rows: StateRows) -> Iterator[WriteBatch]:
    """What they were before is missing, if their batch is never valid."""
    for batch in in_turn(rows):
        yield batch
        if not batch.changes:
            return


# What the receiver has acknowledged is sent to it again, under another identifier or the same.
MUTANTS.replace("releases_are_not_written_down", SessionPersister, "released", lambda *_: None)
# A server that stood still reads what others have changed.
MUTANTS.replace("speaks_without_a_lease", LogReplica, "holds_lease", lambda self, _: not self._is_over, 133)
# In the journal; the next server sends them.
MUTANTS.replace("wills_that_were_taken_back_stay", BrokerPersistence, "forget_will", lambda *_: None, 21)
# A request that is repeated after a failover is carried out again.
MUTANTS.replace("answers_are_not_absorbed", StateStoreService, "absorb", _but(Stream.RESPONSES))
# The next server's wall clock may be behind.
MUTANTS.replace("versions_are_not_absorbed", StateStoreService, "absorb", _but(Stream.CLOCK))
# Their batch may never be valid.
MUTANTS.replace("uncommitted_rows_in_a_snapshot", StateRows, "_waits", lambda *_: False, 31)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.turns(3)
@pytest.mark.ci
def test_the_simulation_finds(mutant: str, monkeypatch: Patch, figures: Callable[[str], None]) -> None:
    """With one deliberate mistake some schedule fails, and says why."""
    plant, known = MUTANTS[mutant]
    plant(monkeypatch)
    for seed in seeds_near(known or 1, near=_MOST, most=_MOST):
        if violations := run_machines(seed).violations:
            figures(f"found by schedule {seed}: {violations[0]}")
            return
    pytest.fail("no schedule saw it")
