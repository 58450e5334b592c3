"""The simulation sees bugs: with one deliberate mistake in the host some schedule fails, and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pytest
from host_schedule import run_schedule
from host_scripts import late_connection
from host_world import Life
from support.schedules import Mutants, seeds_near

from statestore_client.server.host import host
from statestore_client.server.host.host import Host
from statestore_client.server.host.notices import Notices
from statestore_client.server.host.registrations import Observation, Registrations
from statestore_client.server.journal import JournalStream, Stream
from statestore_client.server.service.response_cache import ResponseCache

#: A bug that is not seen in so many schedules is not seen.
_SCHEDULES = 400
#: With what the schedule complains of, and the first one that does; or the script that does.
MUTANTS = Mutants()


@MUTANTS.instead(Host, "seal", ("", 0))
def acknowledges_before_it_is_durable(seal: Any, machine: Host) -> None:
    seal(machine)
    machine.release()


@MUTANTS.instead(Host, "_send", ("was acknowledged and not answered", 0))
def acknowledges_before_the_broker_has_the_response(send: Any, machine: Host, delivery: Any) -> None:
    if delivery.debt is not None:
        delivery.debt.waits_for = 1
        delivery = attrs.evolve(delivery, debt=None)
    send(machine, delivery)


@MUTANTS.instead(ResponseCache, "get", ("", 0))
def a_request_that_comes_again_is_carried_out_again(get: Any, cache: ResponseCache, *request: Any) -> None:
    del get, cache, request


@MUTANTS.instead(ResponseCache, "restore", ("", 0))
def a_restart_forgets_the_answers(restore: Any, cache: ResponseCache, *past: Any) -> None:
    del restore, cache, past


@MUTANTS.instead(Host, "__init__", ("", 0))
def connects_before_the_store_is_restored(init: Any, machine: Host, *arguments: Any, **options: Any) -> None:
    init(machine, *arguments, **options)
    machine.is_restored = True


@MUTANTS.instead(Registrations, "_end", ("after its registration had ended", 33))
def notifies_after_the_end_of_the_registration(
    end: Any, registrations: Registrations, observation: Observation
) -> None:
    del end, registrations._renewed[observation]


@MUTANTS.instead(Registrations, "is_outdated", ("has not heard of", 123))
def a_stop_that_comes_again_ends_a_new_registration(outdated: Any, *arguments: Any) -> bool:
    del outdated, arguments
    return False


@MUTANTS.instead(Registrations, "restore", ("has not heard of", 0))
def who_observes_is_forgotten_with_the_host(restore: Any, registrations: Registrations, *past: Any) -> int:
    del restore, registrations, past
    return 0


@MUTANTS.instead(Notices, "restore", ("has not heard of", 0))
def what_was_to_be_told_is_forgotten_with_the_host(restore: Any, notices: Notices, *past: Any) -> tuple[()]:
    del restore, notices, past
    return ()


@MUTANTS.instead(Notices, "changed", ("has not heard of", 0))
def a_change_is_told_once_all_are_sent(changed: Any, notices: Notices, told: Any) -> Any:
    notice = changed(notices, told)
    notices._stream.remove_lazily(notice.number)
    return None


@MUTANTS.instead(JournalStream, "remove", ("after its registration had ended", 0))
def the_end_of_a_registration_is_not_written_down(remove: Any, stream: JournalStream, subject: Any) -> None:
    if stream.stream is not Stream.OBSERVATIONS:
        remove(stream, subject)


@MUTANTS.instead(Host, "connected", ("Receive Maximum", 0))
def the_window_of_the_broker_is_not_kept(connected: Any, machine: Host, now: Any, **options: Any) -> None:
    connected(machine, now, **options | {"receive_maximum": 1000})


@MUTANTS.instead(Host, "disconnected", ("", 0))
def what_was_in_flight_is_forgotten(disconnected: Any, machine: Host) -> None:
    disconnected(machine)
    machine._deliveries.clear()


@MUTANTS.instead(Host, "connected", ("was not delivered on this connection", 0))
def acknowledges_on_a_later_connection(connected: Any, machine: Host, *arguments: Any, **options: Any) -> None:
    debts = machine._debts.copy()
    connected(machine, *arguments, **options)
    machine._debts.extendleft(reversed(debts))


# -- two hosts on one log ----------------------------------------------------------------------------------------------


@MUTANTS.instead(ResponseCache, "absorb", ("took effect", 3))
def a_new_host_has_not_the_answers_of_the_old_one(absorb: Any, cache: ResponseCache, *batch: Any) -> None:
    del absorb, cache, batch


MUTANTS.replace("subscribes_before_it_has_read_the_log", Life, "is_caught_up", True, ("took effect", 47))


@MUTANTS.instead(Life, "holds_lease", ("was answered with version", late_connection))
def an_old_host_speaks_without_its_lease(holds_lease: Any, life: Life, since: int) -> bool:
    del holds_lease, life, since
    return True


MUTANTS.replace("a_request_without_a_timestamp_is_never_the_same", host, "_ANY_ID", 0, ("", 0))


@pytest.mark.ci
@pytest.mark.turns(3)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch, figures: Callable[[str], None]) -> None:
    """Some schedule fails with the mistake, and its complaint is about what the mistake breaks."""
    plant, (complaint, known) = MUTANTS[name]
    plant(monkeypatch)
    for by, violations in _scripted(known) if callable(known) else _scheduled(known):
        found = [text for text in violations if complaint in text]
        if found:
            figures(f"found by {by}: {found[0][:150]}")
            return
    pytest.fail("no schedule saw it")


def _scripted(script: Callable[[], list[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    yield script.__name__, script()


def _scheduled(known: int) -> Iterator[tuple[str, Sequence[str]]]:
    for seed in seeds_near(known, near=_SCHEDULES, most=_SCHEDULES):
        yield f"schedule {seed}", run_schedule(seed).violations
