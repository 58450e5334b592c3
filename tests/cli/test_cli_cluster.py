"""``statestore serve --log`` and ``--cluster``: options that cannot be, or not together."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore_client.cli.serving import serve

_NODES = "a=127.0.0.1:21000,b=127.0.0.1:21010,c=127.0.0.1:21020"
_FAR = "a=10.255.0.1,b=10.255.0.2,c=10.255.0.3"
_CLUSTER = ["--cluster", _NODES, "--id", "a"]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--id", "a"], "--id needs --log URLS or --cluster NODES"),
        (["--internal", "127.0.0.1:1"], "--internal needs --log URLS or --cluster NODES"),
        (["--cluster-bind", "127.0.0.1"], "--cluster-bind needs --log URLS or --cluster NODES"),
        ([*_CLUSTER, "--log", "tcp://127.0.0.1:1"], "--cluster has a log of its own: leave out --log"),
        (["--cluster", _NODES, "--data", "new"], "--cluster needs --id NAME"),
        (_CLUSTER, "--cluster needs --data DIR"),
        ([*_CLUSTER, "--data", "new", "--internal", "127.0.0.1:0"], "--internal is of --log"),
        ([*_CLUSTER, "--data", "new", "--persist", "none"], "servers of a log keep all keys"),
        (["--cluster", _NODES, "--id", "d", "--data", "new"], "--cluster: 'd' is none of the servers"),
        (["--cluster", "a=10.0.0.1,b=10.0.0.2", "--id", "a", "--data", "new"], "3 to 9 servers, not 2"),
        (["--cluster", _FAR, "--id", "a", "--data", "new"], "give all of them the same --cluster-key-file"),
        (["--log", "tcp://127.0.0.1:1", "--id", "a", "--data", "new"], "leave out --data"),
        (["--log", "tcp://127.0.0.1:1", "--id", "a", "--cluster-bind", "::1"], "with --log it is --internal"),
        (["--log", "tcp://127.0.0.1:1", "--id", "a", "--internal", "x"], "--internal is HOST:PORT, not 'x'"),
        (
            ["--log", "tcp://127.0.0.1:1", "--id", "a", "--internal", "10.0.0.1:1"],
            "could pass for one of these servers",
        ),
    ],
)
def test_options_that_do_not_go_together(
    options: list[str], advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A usage error says what to do, and no directory is made."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(serve, ["--port", "0", *options])
    assert done.exit_code == 2
    assert not Path("new").exists()
    assert advice in " ".join(done.output.split())
