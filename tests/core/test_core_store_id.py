"""What a client concludes when another store answers than before."""

from __future__ import annotations

from typing import Any

import pytest
from machine_driver import MachineDriver

from statestore_client.core.arguments import raise_failures
from statestore_client.core.results import Item, SetResult, is_another_store
from statestore_client.errors import BatchError, SessionLostError, StoreReplacedError
from statestore_client.wire.commands import Get, Set


def written(store_id: str | None) -> SetResult:
    return SetResult(True, None, store_id)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [("a", "b", True), ("a", "a", False), (None, "b", False), ("a", None, False), (None, None, False)],
)
def test_two_answers_of_two_stores(before: str | None, now: str | None, expected: bool) -> None:
    """Only two names that differ say that the data is gone; a server without a name says nothing."""
    assert is_another_store(before, now) is expected


def test_what_a_former_store_wrote_has_failed() -> None:
    """Of a batch, the writes that another store had carried out are errors, and the others stay."""
    lost = SessionLostError(may_have_been_applied=True)
    outcomes: list[object] = [written("a"), written("a"), lost, written("b")]
    with pytest.raises(BatchError) as caught:
        raise_failures(outcomes, "b")
    results = caught.value.results
    assert [type(result) for result in results] == [StoreReplacedError, StoreReplacedError, SessionLostError, SetResult]
    assert "empty store" in str(caught.value)


@pytest.mark.parametrize(
    ("outcomes", "store_id"),
    [
        ([written("a"), written("a")], "a"),
        ([written(None), written(None)], None),
        ([written(None), written("b")], "b"),
        ([written("a"), written("a")], None),
        ([SetResult(False, None, "a"), Item(b"v", None), None], "b"),
    ],
)
def test_what_is_no_loss(outcomes: list[object], store_id: str | None) -> None:
    """One store, servers without names, reads, and writes that did not apply."""
    before = list(outcomes)
    raise_failures(outcomes, store_id)
    assert outcomes == before


def test_results_say_which_store_has_them() -> None:
    """``SetResult.store_id`` is the name in its own answer, and no part of equality; the exchange has the last one."""
    driver: Any = MachineDriver().ready()
    for name in ("a", "b", None):
        driver.submit(Set(b"k", b"v"), name)
        driver.answer(b"+OK\r\n", *(() if name is None else (("statestore-id", name),)))
        assert driver.outcome(name).store_id == name
        assert driver.machine.request_table.store_id == name
        assert driver.outcome(name) == SetResult(True, None)
    driver.submit(Get(b"k"), "get")
    driver.answer(b"$-1\r\n", ("statestore-id", "c"))
    assert driver.machine.request_table.store_id == "c"
