"""The example dashboard and alert rules of the documentation name figures that servers have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from support.keys import Certificates
from support.ports import reserved_ports
from support.waiting import eventually

import statestore_client.errors
from raft_client.server import BroadcastStateMachine, EmbeddedCluster, EmbeddedPeer
from statestore_client.server import EmbeddedServer, ReplicaSettings, ServerTls, SiteEndpoints

EXAMPLES = Path(__file__).parents[2] / "docs" / "how-to" / "monitoring"
_NAME = re.compile(r"\b((?:statestore|zmqraft|process)_[a-z0-9_]+)\b(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name -> kind of each figure of a site with TLS, of a server with a log, and of a peer of that log."""
    folder = tmp_path_factory.mktemp("peer")
    pages = b"".join((site_page(Certificates(folder)), log_page(), peer_page(folder))).decode()
    return dict(re.findall(r"^# TYPE (\S+) (\w+)$", pages, re.MULTILINE))


def site_page(certificates: Certificates) -> bytes:
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    site = SiteEndpoints(name="rome", listen="tcp://127.0.0.1:*")
    with EmbeddedServer(metrics_port=0, site=site, tls=tls) as server:
        return page_of(server)


def log_page() -> bytes:
    with (
        EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster,
        EmbeddedServer(metrics_port=0, log=ReplicaSettings(log=cluster.seeds, id="a")) as server,
    ):
        return page_of(server)


def peer_page(directory: Path) -> bytes:
    members = {"a": f"tcp://127.0.0.1:{reserved_ports(1)}"}
    with EmbeddedPeer("a", members, directory, cluster="c", machine=BroadcastStateMachine) as peer:
        eventually(lambda: peer.figures, "it has figures")
        return peer.figures


def page_of(server: EmbeddedServer) -> bytes:
    with urlopen(server.urls["http"]) as page:  # noqa: S310 - of this test's own server
        return bytes(page.read())


def expressions() -> Iterator[tuple[str, str]]:
    """Where, and what Prometheus is asked for."""
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    rules = (EXAMPLES / "alerts.yml").read_text()
    yield from re.findall(r"- alert: (\w+)\n +expr: (.+)\n", rules)


def test_each_figure_that_an_example_names_exists(known: dict[str, str]) -> None:
    """Every figure of the dashboard and of the rules is one that a server has; totals are asked for their rate."""
    named = {(where, name): expression for where, expression in expressions() for name, _ in _NAME.findall(expression)}
    assert len(named) > 30
    for (where, name), expression in named.items():
        base = name.removesuffix("_bucket")
        assert base in known, (where, name)
        if known[base] != "gauge":
            assert re.search(rf"(rate|increase)\({name}\b", expression), (where, expression)


def test_each_refusal_that_an_example_names_exists() -> None:
    """The errors in the labels of the examples are errors of the state store."""
    errors = {name.lower() for name in statestore_client.errors.__all__}
    named = {error for _, expression in expressions() for error in re.findall(r'error="(\w+)"', expression)}
    assert named
    assert named <= errors


def test_the_rules_and_the_dashboard_fit_what_is_scraped(known: dict[str, str]) -> None:
    """Jobs that the rules name are those of the configuration, which the page shows and which finds the rules; the
    dashboard finds the instances of each job.
    """
    configuration = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
    jobs = {job["job_name"] for job in configuration["scrape_configs"]}
    for name in configuration["rule_files"]:
        rules = yaml.safe_load((EXAMPLES / name).read_text())
        named = re.findall(r'job=~?"([^"]+)"', " ".join(r["expr"] for g in rules["groups"] for r in g["rules"]))
        assert {job for jobs in named for job in jobs.split("|")} == jobs
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", (EXAMPLES.parent / "watch-a-server.md").read_text(), re.M | re.S)
    assert yaml.safe_load(shown) == configuration
    variables = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())["templating"]["list"]
    (query,) = (variable["query"]["query"] for variable in variables if variable["name"] == "instance")
    found = re.fullmatch(r'label_values\({__name__=~"([^"]+)"}, instance\)', query)
    assert found is not None
    assert {name.partition("_")[0] for name in found[1].split("|")} == jobs
    assert set(found[1].split("|")) <= known.keys()


def test_the_examples_are_as_their_programs_want_them() -> None:
    """No two panels have one place; each rule says how urgent it is and what has happened."""
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in dashboard["panels"]})
    rules = (EXAMPLES / "alerts.yml").read_text()
    count = rules.count("- alert: ")
    assert (
        count == len(set(re.findall(r"- alert: (\w+)", rules))) == len(re.findall(r"severity: (page|ticket)}", rules))
    )
    assert count == len(re.findall(r'^ +summary: ".+"$', rules, re.MULTILINE)) >= 10


def test_the_page_has_each_rule_once_and_says_what_to_do() -> None:
    """The table of alerts has the rules, each as urgent as it is, and leads to sections that the runbook has."""
    pages = EXAMPLES.parents[1] / "operations"
    rows = re.findall(
        r"^\| `(\w+)` \| (page|ticket) \|.*\(runbook\.md#([\w-]+)\) \|$", (pages / "alerts.md").read_text(), re.M
    )
    rules = re.findall(r"- alert: (\w+)\n(?:.*\n)*? +labels: {severity: (\w+)}", (EXAMPLES / "alerts.yml").read_text())
    assert sorted(row[:2] for row in rows) == sorted(rules)
    headings = re.findall(r"^##+ (.+)$", (pages / "runbook.md").read_text(), re.M)
    assert {anchor for *_, anchor in rows} <= {heading.lower().replace(" ", "-") for heading in headings}
