"""Three servers on machines of their own, an operator with a shell on another one, and what he is shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from failover.machines import Machines
from page_shell import PageShell
from rich.console import Console

from rehearsal.page import ALERTS, Page, PageError

__all__ = ["NAMES", "IncidentError", "Scene"]

NAMES: Final = ("a", "b", "c")
YOURS: Final = "Say what is yours"
_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.1
#: Of one output that is shown.
_LINES: Final = 12
_PROGRAMS: Final = {"statestore": "statestore_client.cli", "zmqraft": "raft_client.cli"}
_TLS_PORT: Final = 8883
_MONITOR_PORT: Final = 9201
_METRICS_PORTS: Final = {"a": 9101, "b": 9102, "c": 9103}
_PORTS: Final = {"a": 1885, "b": 1886, "c": 1887}
#: What goes into the line of a step: who serves, and what may grow.
_FIGURES: Final = (
    "log_epoch", "log_leaderless_seconds", "log_silence_seconds", "log_listening_servers", "log_clock_ahead_seconds",
    "store_client_clock_ahead_seconds", "store_bytes", "store_max_bytes",
)  # fmt: skip


class IncidentError(Exception):
    """What had to be seen was not, or the page's commands did not mend it."""


class Scene:
    """Of one incident. ``with`` starts the servers, and ends all processes."""

    def __init__(
        self, folder: Path, machines: Machines, page: Callable[[dict[str, str]], Page], console: Console
    ) -> None:
        self.folder, self.machines = folder, machines
        places = {str(port): name for ports in (_PORTS, _METRICS_PORTS) for name, port in ports.items()}
        places |= {str(8050 + 10 * nth + n): name for nth, name in enumerate(NAMES) for n in range(3)}
        words = {f"127.0.0.1:{port}": f"{machines.addresses[name]}:{port}" for port, name in places.items()}
        words |= {f"/etc/statestore/{file}": file for file in ("server.crt", "server.key")}
        self.page = page(words)
        self.seen: list[str] = []
        self.mended: list[str] = []
        #: For servers that are started from now on.
        self.environment: dict[str, str] = {}
        self._alerts = ALERTS.read_text()
        self._console = console
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._shown: dict[str, int] = dict.fromkeys(NAMES, 0)
        self._part = ""
        programs = folder / ".bin"
        programs.mkdir()
        for name, module in _PROGRAMS.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
            (programs / name).chmod(0o755)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("AIO_", "STATESTORE_"))}
        self._own = {**own, "PATH": f"{programs}{os.pathsep}{own['PATH']}", "COLUMNS": "120"}
        self._shell = PageShell(folder, self._own)

    # -- what is done --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._shell.run(self.page.command(YOURS, "CLUSTER="), YOURS)
            self._shell.run(
                self.page.command(YOURS, "chmod 600 cluster.key", is_trouble=True).partition("declare")[0], YOURS
            )
            self.certificate(timedelta(days=365))
            self.value("for file in server.key server.crt; do mv $file.new $file; done")
            self.start(*NAMES)
            self.run(YOURS, "until statestore ha status", show=False)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shell.close()
        for process in self._running.values():
            process.kill()
            process.wait()

    def step(self, part: str, text: str) -> None:
        """From now on it is about this part of the page; the operator's machine, or fate, does this."""
        self._part = part
        self._say(f"-- {text}", style="bold")

    def start(self, *names: str) -> None:
        """With the options of the page, and what a service on a machine has besides."""
        for name in names:
            options = self.value(
                f"echo --cluster $CLUSTER --id {name} --data data/{name} --cluster-key-file $SECRET"
            ).split()
            more = (
                *("--port", str(_PORTS[name])),
                *("--metrics-host", self.machines.addresses[name], "--metrics-port", str(_METRICS_PORTS[name])),
                *("--monitor-port", str(_MONITOR_PORT), "--host", "0.0.0.0", "--insecure", "--max-bytes", "50000000"),
                *("--tls-port", str(_TLS_PORT), "--tls-cert-file", "server.crt", "--tls-key-file", "server.key"),
            )
            command = self.machines.on(name, sys.executable, "-m", _PROGRAMS["statestore"], "serve", *options, *more)
            with (self.folder / f"{name}.log").open("ab") as log:
                self._running[name] = subprocess.Popen(
                    command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env={**self._own, **self.environment}, start_new_session=True,
                )  # fmt: skip

    def kill(self, *names: str) -> None:
        """As ``kill -9``."""
        for name in names:
            self._running[name].kill()
            self._running[name].wait()

    def stop(self, name: str) -> None:
        """As systemd does."""
        self._running[name].terminate()
        self._running[name].wait(_TIMEOUT_S)

    def ended(self, name: str, code: int) -> None:
        """Wait until this server has ended by itself, with this exit code."""
        try:
            found = self._running[name].wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise IncidentError(f"{name} did not end") from None
        if found != code:
            raise IncidentError(f"{name} ended with exit code {found}, not {code}")
        self._say(f"   {name} ended with exit code {code}")
        self._see("exit code")

    def runs(self, name: str) -> bool:
        """Whether its process does."""
        return self._running[name].poll() is None

    @property
    def tls_url(self) -> str:
        """Of clients of all servers, encrypted."""
        return "mqtts://" + ",".join(f"{each}:{_TLS_PORT}" for each in self.machines.addresses.values())

    def active(self) -> str:
        """The name of the server that is."""
        found = ""

        def look() -> bool:
            nonlocal found
            found = next((name for name in NAMES if self._get(name, "ready") == "ready"), "")
            return found != ""

        self._wait(look, "a server is active")
        return found

    def run(self, part: str, beginning: str, *, show: bool = True, mends: bool = False) -> str:
        """Run a block of the page, as :meth:`Page.command` finds it; the output."""
        return self.do(self.page.command(part, beginning), show=show, mends=mends)

    def do(self, command: str, *, show: bool = True, mends: bool = False) -> str:
        """Run this command, which is of the page, or what each does in a way of his own."""
        if show:
            for line in command.splitlines():
                self._say(f"   $ {line}", style="cyan")
        try:
            output = self._shell.run(command, self._part)
        except AssertionError as error:
            raise IncidentError(str(error)) from None
        if show:
            self._indented(output.strip())
        if mends:
            programs = (" ".join(re.sub(r"\$\w+|\d?[|<>].*", "", line).split()) for line in command.splitlines())
            self.mended.append("; ".join(programs))
        return output

    def value(self, command: str) -> str:
        """What it prints; it is not shown."""
        return self._shell.run(command, self._part).strip()

    def is_well(self) -> None:
        """Wait until the page's look at everything says so, and a value is written and read."""
        self.run(YOURS, "until statestore ha status")
        self.do("statestore set rehearsal/last well > version && statestore get rehearsal/last", show=False)
        self.look("it is mended", self.active())

    def certificate(self, good_for: timedelta) -> None:
        """Write a certificate of all machines, which is its own authority, beside the one that is there."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "servers")])
        names = [x509.IPAddress(ip_address(each)) for each in self.machines.addresses.values()]
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(now + good_for)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        for file, text in (("server.key", private), ("server.crt", made.public_bytes(pem))):
            (self.folder / f"{file}.new").write_bytes(text)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def look(self, when: str, *names: str) -> None:
        """Show what log, probe, metrics and monitor of each say now, and ``top`` of these machines."""
        self._say(f"   {when}:", style="green")
        for name in NAMES:
            for line in self._new_lines(name)[-3:]:
                self._say(f"   {name} log      {line}")
        for name in NAMES:
            figures = self._figures(name)
            shown = "  ".join(f"{n}={figures[n]:.6g}" for n in _FIGURES if n in figures)
            self._say(f"   {name} /ready   {self._get(name, 'ready') or 'no answer'}")
            if shown:
                self._say(f"   {name} /metrics {shown}")
            if said := self._monitor(name):
                self._say(f"   {name} monitor  {said}")
        for name in names:
            top = subprocess.run(
                self.machines.on(name, str(self.folder / ".bin/statestore"), "top", "--once", f"http://127.0.0.1:{_MONITOR_PORT}"),
                capture_output=True, text=True, env=self._own, check=False,
            )  # fmt: skip
            for line in (top.stdout.strip() or top.stderr.strip()).splitlines()[:6]:
                self._say(f"   {name} top      {line.rstrip()}")

    def sees(self, source: str, text: str, found: str = "") -> None:
        """Wait until ``log`` or ``/ready`` of a server says this, or find it in this output; the page has it, too."""
        self.page.check(self._part, text)
        if source == "log":
            self._wait(lambda: any(text in self._log(name) for name in NAMES), f"a log says {text!r}")
        elif source == "/ready":
            self._wait(lambda: any(text in self._get(name, "ready") for name in NAMES), f"/ready says {text!r}")
        elif text not in found:
            raise IncidentError(f"{source} does not say {text!r}, but {found.strip()!r}")
        self._see(source)

    def alerts(self, alert: str, figure: str, is_so: Callable[[float], bool]) -> None:
        """Wait until a server's figure is as this alert has it; the page and the alerts' table have it, too."""
        self.page.check(self._part, alert)
        if re.search(rf"^\| `{alert}` \|.*statestore_{figure}\b", self._alerts, re.MULTILINE) is None:
            raise PageError(f"alerts.md: {alert} is not about {figure}")
        self._wait(
            lambda: any(is_so(f[figure]) for f in map(self._figures, NAMES) if figure in f), f"a figure for {alert}"
        )
        self._say(f"   {alert} would alert", style="yellow")
        self._see("metrics")

    def quiet(self, figure: str, is_so: Callable[[float], bool]) -> None:
        """Wait until no server's figure is so."""
        self._wait(
            lambda: not any(is_so(f[figure]) for f in map(self._figures, NAMES) if figure in f), f"{figure} is right"
        )

    def _see(self, source: str) -> None:
        if source not in self.seen:
            self.seen.append(source)

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _TIMEOUT_S
        while not is_so():
            if time.monotonic() > until:
                raise IncidentError(f"never: {what}")
            time.sleep(_LOOK_S)

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _new_lines(self, name: str) -> list[str]:
        lines = self._log(name).splitlines()
        begin, self._shown[name] = self._shown[name], len(lines)
        return lines[begin:]

    def _get(self, name: str, path: str) -> str:
        """A page of the server; empty if it does not answer."""
        url = f"http://{self.machines.addresses[name]}:{_METRICS_PORTS[name]}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=1.0) as answer:
                return str(answer.read().decode()).strip()
        except urllib.error.HTTPError as error:
            return error.read().decode().strip()
        except OSError:
            return ""

    def _figures(self, name: str) -> dict[str, float]:
        found = re.findall(r"^statestore_(\w+)(?:\{[^}]*\})? (\S+)$", self._get(name, "metrics"), re.MULTILINE)
        return {figure: float(value) for figure, value in found}

    def _monitor(self, name: str) -> str:
        """Role and clients, as the page of the monitor has them."""
        script = "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(sys.argv[1], timeout=2).read())"
        done = subprocess.run(
            self.machines.on(name, sys.executable, "-c", script, f"http://127.0.0.1:{_MONITOR_PORT}/info"),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return ""
        said: dict[str, Any] = json.loads(done.stdout)
        log = said["log"]
        return f"{log['id']} is {said['role']} in epoch {log['epoch']}; active: {log['active']}"

    def _indented(self, text: str) -> None:
        for line in self._shortened(text.splitlines()):
            self._say(f"     {line}")

    @staticmethod
    def _shortened(lines: list[str]) -> Iterator[str]:
        yield from lines[:_LINES]
        if len(lines) > _LINES:
            yield f"… {len(lines) - _LINES} more lines"

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
