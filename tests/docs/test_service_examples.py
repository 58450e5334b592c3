"""The files for Docker, Compose, Kubernetes and systemd in the documentation start servers that work."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.ports import reserved_port

from raft_client._common import exits
from statestore_client import ConnectionSettings, StateStoreClient
from statestore_client.server.runtime.security.passwords import set_password

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-as-a-service.md"
CLI = [sys.executable, "-m", "statestore_client.cli"]

COMPOSE, SERVICE, STATEFUL_SET = (
    document
    for block in re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for document in yaml.safe_load_all(block)
)


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(text)


def dockerfile() -> dict[str, str]:
    """Instruction -> its text, the last of each."""
    lines = block("dockerfile").replace("\\\n", " ").splitlines()
    return {instruction: text for instruction, _, text in (line.partition(" ") for line in lines)}


def unit() -> dict[str, str]:
    """Setting -> its value; no setting is there twice."""
    lines = re.findall(r"^(\w+)=(.*)$", block("ini").replace("\\\n", ""), re.MULTILINE)
    assert len(lines) == len(dict(lines))
    return dict(lines)


def pod() -> dict[str, Any]:
    found: dict[str, Any] = STATEFUL_SET["spec"]["template"]["spec"]
    return found


def health_check() -> list[str]:
    """The command of Docker."""
    command: list[str] = json.loads(dockerfile()["HEALTHCHECK"].partition("CMD ")[2])
    return command


COMMANDS = {
    "docker": json.loads(dockerfile()["CMD"]),
    "compose": COMPOSE["services"]["statestore"]["command"],
    "kubernetes": pod()["containers"][0]["args"],
    "systemd": shlex.split(unit()["ExecStart"])[1:],
}


@pytest.mark.parametrize("where", COMMANDS)
def test_the_server_serves_and_ends_in_time(where: str, tmp_path: Path) -> None:
    """A client comes in with the password of the page, the health check succeeds, and SIGTERM ends the server."""
    set_password(tmp_path / "users", "pump", b"river-3-otter")
    metrics = reserved_port()
    places = {"0.0.0.0": "127.0.0.1", "9100": str(metrics), "/etc/statestore/users": str(tmp_path / "users")}
    places |= dict.fromkeys(("/data", "/var/lib/statestore"), str(tmp_path / "data"))
    command = [*CLI, *(places.get(word, word) for word in COMMANDS[where]), "--port", "0"]
    assert len({"0.0.0.0", "9100", "/etc/statestore/users"} & set(COMMANDS[where])) == 3
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("listening on ").strip()
            with StateStoreClient(url, username="pump", password="river-3-otter") as store:
                store.set("k", "v")
            python, *arguments = health_check()
            assert python == "python"
            check = [sys.executable, *(word.replace("9100", str(metrics)) for word in arguments)]
            assert subprocess.run(check, timeout=60).returncode == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
    assert subprocess.run(check, timeout=60, capture_output=True).returncode == 1
    assert subprocess.run([*CLI, "check", str(tmp_path / "data")], capture_output=True, timeout=60).returncode == 0


def test_the_image_has_what_the_others_take_from_it() -> None:
    """One program, one user, one data directory and the same ports, wherever the image runs."""
    image = dockerfile()
    assert json.loads(image["ENTRYPOINT"]) == ["statestore"]
    user, group = image["USER"].split(":")
    security = pod()["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (int(user), int(group), int(group))
    assert f"useradd --uid {user} --gid {group}" in block("dockerfile")
    assert [str(port["containerPort"]) for port in pod()["containers"][0]["ports"]] == image["EXPOSE"].split()
    for name in ("docker", "compose", "kubernetes"):
        words = COMMANDS[name]
        assert words[words.index("--data") + 1] == image["VOLUME"]


def test_compose_has_what_its_services_name() -> None:
    """Volumes, secrets and services are there; the client's URL is one, and its password is where the secret is."""
    services = COMPOSE["services"]
    named, mounted = (volume.split(":")[:2] for volume in services["statestore"]["volumes"])
    assert named[0] in COMPOSE["volumes"]
    assert mounted == ["./access", "/etc/statestore"]
    pump = services["pump"]
    assert set(pump["depends_on"]) <= set(services)
    assert set(pump["secrets"]) <= set(COMPOSE["secrets"])
    settings = ConnectionSettings.from_url(pump["environment"]["STATESTORE_URL"])
    assert (settings.host, settings.port, settings.username) == ("statestore", 1883, "pump")
    assert settings.password_file == f"/run/secrets/{pump['secrets'][0]}"


def test_kubernetes_has_what_the_pod_names() -> None:
    """Volumes are there, probes ask ports that are, for a page that answers, and the service finds the pod."""
    (container,) = pod()["containers"]
    claims = STATEFUL_SET["spec"]["volumeClaimTemplates"]
    volumes = {volume["name"] for volume in pod()["volumes"]} | {claim["metadata"]["name"] for claim in claims}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "metrics"}
    assert {"metrics", *(port["name"] for port in SERVICE["spec"]["ports"])} <= ports
    labels = STATEFUL_SET["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"] == STATEFUL_SET["spec"]["selector"]["matchLabels"] == labels
    assert SERVICE["metadata"]["name"] == STATEFUL_SET["spec"]["serviceName"]


def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    """``systemd-analyze`` finds nothing wrong with it, apart from a program that is not there yet."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    program = unit()["ExecStart"].split()[0]
    assert f"sudo {Path(program).parent}/pip install" in PAGE.read_text("utf-8")
    (tmp_path / "statestore.service").write_text(block("ini").replace(program, sys.executable))
    command = ["systemd-analyze", "verify", str(tmp_path / "statestore.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_restarts_what_a_restart_can_mend() -> None:
    """A wrong option and a directory that cannot be used end the service for good; the directory is the unit's own."""
    assert unit()["RestartPreventExitStatus"] == f"{exits.USAGE} {exits.DATA}"
    words = COMMANDS["systemd"]
    assert words[words.index("--data") + 1] == f"/var/lib/{unit()['StateDirectory']}"


def test_the_limits_leave_room_in_the_memory() -> None:
    """What the quotas allow, and the rest of the page's table, is less than the limit of the process."""
    for name in ("compose", "kubernetes", "systemd"):
        words = COMMANDS[name]
        bytes_ = [int(words[words.index(option) + 1]) for option in ("--max-bytes", "--max-held-bytes")]
        retained_and_unfinished = 2 * 256 * 2**20
        assert sum(bytes_) + retained_and_unfinished + 50_000_000 < 2**30
    assert COMPOSE["services"]["statestore"]["mem_limit"] == "1g"
    assert pod()["containers"][0]["resources"]["limits"]["memory"] == "1Gi"
    assert unit()["MemoryMax"] == "1G"
