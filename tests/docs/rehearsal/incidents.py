"""What happens in each incident, by which words it is seen, and which commands of the runbook mend it."""

from __future__ import annotations

import contextlib
import mmap
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

from rehearsal.scene import NAMES, Scene

__all__ = ["INCIDENTS", "Incident", "SkipIncident"]

Incident = Callable[[Scene], None]

_STATUS: Final = 'statestore ha status $SERVERS --cluster-key-file $SECRET || echo "exit code $?"'
_CLOCK: Final = Path(__file__).parents[2] / "faults" / "shifted_clock.c"
_DISK_BYTES: Final = 64 * 1024 * 1024


class SkipIncident(Exception):  # noqa: N818 - the incident is no error
    """This machine does not have what it takes."""


def disk_full(scene: Scene) -> None:
    """Another program fills the disk of one server."""
    part = "The disk is full"
    scene.stop("b")
    with _small_disk(scene.folder / "disk") as disk:
        shutil.move(scene.folder / "data/b", disk / "b")
        (scene.folder / "data/b").symlink_to(disk / "b")
        scene.start("b")
        scene.run("Say what is yours", "until statestore ha status", show=False)
        scene.step(part, "another program fills the disk of b, and clients write")
        with (disk / "core").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        scene.value("head -c 100000 /dev/zero | tr '\\0' x > value")
        while scene.runs("b"):
            scene.value("statestore set rehearsal/value --value-file value")
        scene.ended("b", 6)
        scene.sees("log", "No space left on device")
        scene.sees("log", "make room on the disk of its --data")
        scene.look("the disk is full", scene.active())
        scene.value("DATA=data/b/")  # it is a link here
        scene.run(part, "df -h")
        scene.step(part, "the file is removed, and b is started")
        (disk / "core").unlink()
        scene.start("b")
        scene.mended.append("rm; start b")
        scene.is_well()
        scene.kill(*NAMES)


def quorum_lost(scene: Scene) -> None:
    """Two of three processes are killed."""
    part = "No server is active"
    left, *lost = sorted(NAMES, key=lambda name: name != scene.active())
    scene.step(part, f"kill -9 of {' and '.join(lost)}; {left} was active")
    scene.kill(*lost)
    scene.sees("log", "the replicated log has no leader")
    scene.alerts("StateStoreLogSilent", "log_leaderless_seconds", lambda silent: silent > 5)
    said = scene.run(part, "statestore ha status")
    scene.sees("ha status", "connection refused", said)
    scene.sees("ha status", "exit code 1", said)
    scene.sees("/ready", "the replicated log has no leader")
    scene.look("nobody serves", left)
    scene.step(part, f"{lost[0]} is started; one more is a majority")
    scene.start(lost[0])
    scene.do(scene.page.line_of_trouble(part, "statestore ping --wait"), mends=True)
    scene.mended.append(f"start {lost[0]}")
    scene.start(lost[1])
    scene.is_well()


def cable_cut(scene: Scene) -> None:
    """The machine of the active server loses its cable."""
    part = "A server is down"
    lost = scene.active()
    scene.step(part, f"the cable of {lost}, which is active, is pulled out; a client writes meanwhile")
    scene.machines.cut(lost)
    try:
        scene.do("statestore set rehearsal/cable cut > version && statestore get rehearsal/cable")
        said = scene.do(_STATUS)
        scene.sees("ha status", "no answer", said)
        scene.look("another one is active", scene.active())
    finally:
        scene.step(part, "the cable is put in again")
        scene.machines.mend(lost)
    scene.mended.append("put the cable in")
    scene.is_well()


def certificate_expired(scene: Scene) -> None:
    """That of all servers, which clients trust."""
    part = "A certificate expires"
    ping = f"statestore ping --url {scene.tls_url} --tls-ca-file server.crt"
    scene.step(part, "the certificate expired an hour ago")
    scene.certificate(timedelta(hours=-1))
    scene.run(part, "mv server.key.new", show=False)
    scene.sees("log", "certificates have expired")
    scene.alerts(
        "StateStoreCertificateExpires", "certificate_not_after_seconds", lambda at: at - time.time() < 14 * 86400
    )
    said = scene.do(f'{ping} 2>&1 || echo "exit code $?"')
    scene.sees("client", "is out of date", said)
    scene.do(scene.page.line(part, "openssl x509"))
    scene.do(scene.page.line(part, "ask metrics"))
    scene.look("TLS clients are refused", scene.active())
    scene.step(part, "a new one is put in its place")
    scene.certificate(timedelta(days=365))
    scene.run(part, "mv server.key.new", mends=True)
    scene.do(f"until {ping}; do sleep 0.5; done")
    scene.quiet("certificate_not_after_seconds", lambda at: at - time.time() < 14 * 86400)
    scene.is_well()


def secret_rotated(scene: Scene) -> None:
    """Somebody has read it."""
    part = "Change the secret"
    scene.step(part, "somebody has a copy of the secret, and gets in with it")
    scene.value("cp -p $SECRET stolen.key")
    scene.do("statestore ha status $SERVERS --cluster-key-file stolen.key")
    for step, command in enumerate(("--new", "", ""), 1):
        scene.step(part, f"step {step} of 3, and a restart of one after the other")
        beginning = "statestore ha rotate-secret $SERVERS --cluster-key-file $SECRET"
        scene.run(part, f"{beginning} {command}".strip(), mends=step == 1)
        for name in NAMES:
            scene.stop(name)
            scene.start(name)
            scene.run("Say what is yours", "until statestore ha status", show=False)
            scene.do("statestore set rehearsal/secret $RANDOM > version", show=False)
        scene.look(f"after step {step}", scene.active())
    scene.step(part, "the copy opens nothing now")
    said = scene.do(_STATUS.replace("$SECRET", "stolen.key"))
    scene.sees("ha status", "does not let us in: it has another key than", said)
    scene.is_well()


def directory_damaged(scene: Scene) -> None:
    """A disk gives back other bytes than were written."""
    part = "A directory is refused"
    scene.do("for n in 1 2 3; do statestore set rehearsal/$n value-$n; done > versions", show=False)
    scene.stop("c")
    scene.step(part, "some bytes of the log of c are others than were written")
    segment = max((scene.folder / "data/c/log").rglob("*"), key=lambda file: file.is_file() and file.stat().st_size)
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        file.write(b"damage")
    scene.start("c")
    scene.ended("c", 6)
    scene.sees("log", "is damaged")
    scene.look("c is refused", scene.active())
    check = scene.page.command(part, "zmqraft check")
    said = scene.do(f'{check.partition(" | ")[0]} || echo "exit code $?"')
    scene.sees("zmqraft check", "is damaged", said)
    _replaced(scene)


def lock_stuck(scene: Scene) -> None:
    """Its holder hangs, and renews it for ever."""
    part = "A lock does not come free"
    scene.step(part, "a job holds the lock and hangs; another one waits for it")
    scene.do(scene.page.command(part, "statestore lock", is_trouble=True))
    scene.do("statestore lock jobs/night --wait 60 -- touch next 2> next.log &", show=False)
    scene.sees("lock --show", "holder:  night-run", scene.run(part, "statestore lock --show"))
    scene.look("it is held", scene.active())
    scene.step(part, "it is taken away")
    scene.run(part, "statestore unlock --force", mends=True)
    scene.do("until [ -e next ]; do sleep 0.2; done; wait %1 || echo 'the job that hung ended with' $?")
    scene.is_well()


def memory_high(scene: Scene) -> None:
    """Somebody stores what does not belong there."""
    part = "No room in the store"
    scene.step(part, "a program stores one large value after the other")
    said = scene.do(
        "head -c 5000000 /dev/zero | tr '\\0' x > value\n"
        "for n in $(seq 12); do\n"
        "    statestore set old/$n --value-file value > version 2> refused || { cat refused; break; }\n"
        "done"
    )
    scene.sees("client", "the quota has been exceeded", said)
    scene.sees("log", "no room")
    scene.alerts("StateStoreQuotaNearlyUsed", "store_bytes", lambda used: used > 45e6)
    scene.run("Memory is high", "ask metrics")
    scene.do("cat memory", show=True)
    scene.look("the quota is used up", scene.active())
    scene.step(part, "it is kept elsewhere, and deleted")
    scene.run(part, "statestore export", mends=True)
    scene.quiet("store_bytes", lambda used: used > 1e6)
    scene.is_well()


def clock_stepped(scene: Scene) -> None:
    """That of a machine that stands by, and that of a client."""
    part = "A clock is wrong"
    standby = next(name for name in NAMES if name != scene.active())
    scene.stop(standby)
    library, shift = _clock(scene.folder)
    scene.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT_FILE": str(shift)}
    scene.start(standby)
    scene.run("Say what is yours", "until statestore ha status", show=False)
    scene.step(part, f"the clock of {standby} is set an hour ahead, and a client's two minutes")
    _set_clock(shift, 3600)
    scene.sees("log", "the clock differs from the active server's")
    scene.alerts("StateStoreServerClockDiffers", "log_clock_ahead_seconds", lambda ahead: ahead > 5)
    said = scene.do(f'CLOCK_SHIFT=120 LD_PRELOAD={library} statestore set rehearsal/clock 1 || echo "exit code $?"')
    scene.sees("client", "the request timestamp is too far in the future", said)
    scene.sees("log", "a client's clock is ahead")
    scene.run(part, "ask metrics")
    scene.do("cat clocks")
    scene.look("clocks differ", standby)
    scene.step(part, "both are set right, and nothing is started again")
    _set_clock(shift, 0)
    scene.mended.append("set the clock")
    scene.do("statestore set rehearsal/clock 1")
    scene.quiet("log_clock_ahead_seconds", lambda ahead: abs(ahead) > 5)
    scene.is_well()


def wrong_member_removed(scene: Scene) -> None:
    """A server that runs is removed, and it was another one that was meant."""
    part = "The wrong member was removed"
    scene.step(part, "c is removed, and runs")
    scene.do(scene.page.line_of_trouble(part, "statestore ha remove-server"))
    said = scene.do(_STATUS)
    scene.sees("ha status", "--cluster is not what the log says", said)
    scene.sees("log", "--cluster is not what the log says")
    scene.run(part, "zmqraft config")
    scene.look("c is no member", scene.active())
    scene.step(part, "it is added again")
    scene.run(part, "statestore ha add-server", mends=True)
    scene.is_well()


INCIDENTS: Final[tuple[Incident, ...]] = (
    disk_full, quorum_lost, cable_cut, certificate_expired, secret_rotated,
    directory_damaged, lock_stuck, memory_high, clock_stepped, wrong_member_removed,
)  # fmt: skip


def _replaced(scene: Scene) -> None:
    """By the commands of the page; the server is started when they say so."""
    part = "The wrong member was removed"
    scene.step(part, "c is replaced: its server starts with an empty directory when the command says so")
    aside, replace = scene.page.command(part, "mv data/c").split("\n", 1)
    scene.do(aside)
    scene.do(f"{{ {replace.splitlines()[0]}; }} > shown 2>&1 & replacing=$!", show=False)
    scene.do("until grep 'start c with this' steps; do sleep 0.2; done")
    scene.start("c")
    scene.do("wait $replacing; cat shown", show=False)
    scene.mended.append("statestore ha replace-server c")
    scene.is_well()


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SkipIncident(f"no disk can be made: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


def _clock(folder: Path) -> tuple[Path, Path]:
    """A library that shifts the clock of a program, and the file that says by how much."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        raise SkipIncident("a clock is shifted by a library that a C compiler makes: there is none")
    library, shift = folder / "shifted_clock.so", folder / "clock_shift"
    shift.write_bytes(bytes(8))
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _CLOCK], check=True, capture_output=True)
    return library, shift


def _set_clock(shift: Path, ahead_s: int) -> None:
    """While programs have it mapped."""
    with shift.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
        shared[:] = struct.pack("=q", ahead_s)
