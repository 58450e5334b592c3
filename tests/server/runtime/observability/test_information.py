"""``/info`` says what a server is, and no secret."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from statestore_client.errors import InvalidArgumentError
from statestore_client.server import AccessRules, BrokerLimits, ReplicaSettings
from statestore_client.server.runtime.host.hosted_store import HostedStore
from statestore_client.server.runtime.host.settings import HostSettings
from statestore_client.server.runtime.observability.information import NOT_SHOWN, server_information
from statestore_client.server.runtime.settings import Endpoints, ServerSettings
from statestore_client.settings import ConnectionSettings

_SECRET = b"a secret of the cluster"


def _of(settings: ServerSettings) -> dict[str, object]:
    found = server_information(settings, None, (), 0.0)["settings"]
    assert isinstance(found, dict)
    return found


def test_no_secret_is_in_it(tmp_path: Path) -> None:
    """Passwords, the secret of a cluster and all keys that are made of it: only that they are there is said."""
    log = ReplicaSettings.in_cluster(
        {each: f"127.0.0.1:{8000 + 10 * n}" for n, each in enumerate("abc")}, id="a", data=tmp_path, key=_SECRET
    )
    rules = AccessRules.parse("user ann\n  watch #\n")
    settings = ServerSettings(passwords={"ann": "hunter2"}, acl=rules, authorize=lambda *_: True, log=log)
    shown = _of(settings)
    assert log.log_keys is not None
    for name in ("passwords", "acl", "authorize", "log.key", "log.log_keys", "log.peer.keys"):
        assert shown[name] == NOT_SHOWN, name
    text = json.dumps(shown)
    for secret in ("hunter2", _SECRET.decode(), log.log_keys.own.secret.decode(), log.log_keys.own.public.decode()):
        assert secret not in text
    assert (shown["log.id"], shown["log.peer.data"]) == ("a", str(tmp_path))


def test_files_are_named(tmp_path: Path) -> None:
    """The file of passwords is, and only the settings that are not the defaults count as changed."""
    settings = ServerSettings(
        endpoints=Endpoints(port=1884),
        passwords=tmp_path / "passwords",
        data=tmp_path,
        broker_limits=BrokerLimits(queued_messages=7),
    )
    found = server_information(settings, None, ("mqtt://127.0.0.1:1884",), 1.0)
    assert found["changed"] == ["endpoints.port", "broker_limits.queued_messages", "passwords", "data"]
    assert found["settings"]["passwords"] == str(tmp_path / "passwords")
    assert (found["kind"], found["directory"], found["format"]) == ("durable", str(tmp_path), 3)


def test_each_setting_is_shown() -> None:
    """Of a setting that somebody adds, too, something is said."""
    names = {name.partition(".")[0] for name in _of(ServerSettings())}
    assert names == {field.name for field in attrs.fields(ServerSettings) if field.init}


def test_a_hosted_store(tmp_path: Path) -> None:
    """It says which broker it is on, as whom, and without the password."""
    connection = ConnectionSettings(host="broker", username="store", password="hunter2")
    store = HostedStore(HostSettings(connection=connection, data=tmp_path))
    found = store._information()
    assert (found["kind"], found["directory"], found["urls"]) == ("hosted", str(tmp_path), ["mqtt://broker:1883"])
    assert found["settings"]["connection.username"] == "store"
    assert "hunter2" not in json.dumps(found)


def test_a_hosted_store_with_others(tmp_path: Path) -> None:
    """It says what it is among those of its log, and where its part of that is."""
    nodes = "a=127.0.0.1:8047,b=127.0.0.1:8050,c=127.0.0.1:8053"
    log = ReplicaSettings.in_cluster(nodes, id="a", data=tmp_path)
    found = HostedStore(HostSettings(connection=ConnectionSettings(host="broker"), log=log))._information()
    assert (found["kind"], found["role"], found["directory"]) == ("hosted", "standby", str(tmp_path))
    assert found["log"]["id"] == "a"


def test_a_hosted_store_has_its_data_in_one_place(tmp_path: Path) -> None:
    """In the log or in a directory."""
    log = ReplicaSettings(log=("tcp://127.0.0.1:8047",), id="a")
    with pytest.raises(InvalidArgumentError, match="everything is in the log"):
        HostSettings(connection=ConnectionSettings(host="broker"), log=log, data=tmp_path)
