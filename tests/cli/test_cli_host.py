"""``statestore serve --broker`` refuses what belongs to a broker of its own."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from statestore_client.cli.serve import serve


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--port", "1884"], "--port is of a broker"),
        (["--max-connections", "3"], "--max-connections is of a broker"),
        (["--acl-file", __file__], "--acl-file is of a broker"),
        (["--monitor-port", "0", "--monitor-host", "0.0.0.0"], "--monitor-host is of a broker"),
        (["--monitor-port", "0", "--monitor-actions"], "--monitor-actions is of a broker"),
        (["--persist", "none"], "--persist"),
        (["--persist", "none", "--cluster", "a=x,b=y,c=z"], "--persist is of a server that is alone"),
        (["--cluster", "a=x,b=y,c=z"], "--cluster needs --id NAME"),
        (["--cluster", "a=x,b=y,c=z", "--id", "a"], "--cluster needs --data DIR"),
        (["--log", "tcp://x:1", "--id", "a", "--data", "d"], "leave out --data"),
        (["--id", "a"], "--id needs --log URLS or --cluster NODES"),
    ],
)
def test_options_of_a_broker_are_refused(options: list[str], why: str) -> None:
    """With --broker they would do nothing, and the error says which one it is."""
    result = CliRunner().invoke(serve, ["--broker", "mqtt://127.0.0.1:1", *options])
    assert result.exit_code == 2
    assert why in result.output


@pytest.mark.parametrize("url", ["http://x", "mqtt://", "mqtt://x?nothing=1", "mqtt://x?driver=paho"])
def test_addresses_that_cannot_work_are_refused(url: str) -> None:
    """The error names the option."""
    result = CliRunner().invoke(serve, ["--broker", url])
    assert result.exit_code == 2
    assert "--broker" in result.output


def test_the_property_of_an_id_needs_a_broker() -> None:
    """It would mean nothing."""
    result = CliRunner().invoke(serve, ["--broker-id-property", "id"])
    assert result.exit_code == 2
    assert "--broker-id-property needs --broker" in result.output
