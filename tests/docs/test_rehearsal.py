"""``make rehearse``: the runbook's commands mend what happens, and the words by which it is found are seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rehearsal.incidents import INCIDENTS
from rehearsal.page import RUNBOOK, Page, PageError

ROOT = Path(__file__).parents[2]


@pytest.mark.machine
@pytest.mark.slow
@pytest.mark.turns(5)
@pytest.mark.timeout(400)  # restarts, one after the other: half a minute, and several times that on a busy machine
@pytest.mark.parametrize("incident", [each.__name__ for each in INCIDENTS])
def test_an_incident_is_seen_and_mended(incident: str) -> None:
    """By the page's words and commands, on three machines of their own."""
    paths = os.pathsep.join([str(ROOT / "examples"), *sys.path])  # with this folder, also where -P is set
    done = subprocess.run(
        [sys.executable, "-m", "rehearsal", incident], cwd=Path(__file__).parent, check=False,
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    if "skipped: " in done.stdout:
        pytest.skip(done.stdout.partition("skipped: ")[2].splitlines()[0])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_command_that_the_page_does_not_have_fails() -> None:
    """And so do words that it does not say: page and rehearsal cannot drift apart."""
    page = Page(RUNBOOK)
    assert page.command("A lock does not come free", "statestore unlock --force").startswith("statestore unlock")
    for drifted in (
        lambda: page.command("A lock does not come free", "statestore unlock --gently"),
        lambda: page.line("No room in the store", "statestore del --suffix"),
        lambda: page.check("The disk is full", "No time left on device"),
        lambda: page.command("The disk is round", "df"),
    ):
        with pytest.raises(PageError):
            drifted()
