"""The options of a write, checked at planning."""

from __future__ import annotations

import pickle
import re
from typing import Any, get_type_hints

import pytest

from statestore_client import ConnectionSettings, HlcTimestamp, SettingsError, StateStoreClient
from statestore_client.spark.options import (
    PartitionOptions,
    RowOptions,
    WriteOptions,
    connection,
    parse_options,
    refuse_whole_job_options,
)
from statestore_client.spark.pool import PoolKey, worker_settings

URL = "mqtt://broker:1883"


def test_names_ignore_case() -> None:
    """Options are read in Spark's lower case and in the users' camelCase."""
    settings, options = parse_options(
        {"URL": URL, "keycolumn": "k", "valueColumn": "v", "MaxInFlight": "7", "requesttimeout": "2.5"}
    )
    assert (settings.host, settings.max_in_flight, settings.request_timeout) == ("broker", 7, 2.5)
    assert (options.key_column, options.value_name) == ("k", "v")


def test_connection_options_pass_through() -> None:
    """``mqtt.*`` options become connection settings, converted to their types."""
    settings, _ = parse_options(
        {
            "url": "mqtts://broker",
            "mqtt.username": "u",
            "mqtt.password": "p",
            "mqtt.keepalive": "30",
            "mqtt.tlsCaFile": "/ca",
        }
    )
    assert (settings.username, settings.password, settings.keep_alive) == ("u", "p", 30.0)
    assert settings.tls_ca_file == "/ca"


def test_the_mark_of_persistence_is_an_option() -> None:
    """``persist`` marks the values, and ``mqtt.persistSession`` the connection."""
    settings, options = parse_options({"url": URL, "persist": "true", "mqtt.persistSession": "true"})
    assert (options.persist, settings.persist_session) == (True, True)
    assert not parse_options({"url": URL})[1].persist


def test_environment_is_the_default_broker() -> None:
    """Without a URL the AIO_* variables tell where the broker is, and options win over them."""
    env = {"AIO_BROKER_HOSTNAME": "aio-broker", "AIO_MQTT_USE_TLS": "false", "AIO_BROKER_TCP_PORT": "1884"}
    settings, _ = parse_options({"mqtt.port": "1885"}, env)
    assert (settings.host, settings.port, settings.tls) == ("aio-broker", 1885, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the option url is missing, and the environment variable AIO_BROKER_HOSTNAME is not set"),
        ({"url": URL, "keyColum": "k"}, "unknown option keycolum; did you mean keyColumn"),
        ({"url": URL, "bogus": "1"}, "unknown option bogus. Known options: clientIdPrefix, duplicateKeys"),
        ({"url": URL, "mqtt.clientId": "x"}, "unknown option mqtt.clientid"),
        ({"url": URL, "ttl": "60"}, "unknown option ttl; did you mean ttlColumn?"),
        ({"url": URL, "topic": "pumps"}, "unknown option topic: there are no topics, keys come from keyColumn"),
        ({"url": URL, "kafka.bootstrap.servers": "a:9092"}, "servers: a URL names the broker"),
        ({"url": URL, "path": "t"}, "unknown option path: there are no tables or folders, keys come from keyColumn"),
        (
            {"url": URL, "operationColumn": "op"},
            "unknown option operationcolumn: make the values of rows to delete null",
        ),
        ({"url": URL, "maxInFlight": "many"}, "the option maxInFlight must be a whole number, not 'many'"),
        ({"url": URL, "requestTimeout": "soon"}, "the option requestTimeout must be a number of seconds"),
        ({"url": URL, "mqtt.tls": "maybe"}, "the option mqtt.tls must be true or false"),
        ({"url": URL, "persist": "yes"}, "the option persist must be true or false, not 'yes'"),
        ({"url": URL, "persist": "true", "operation": "delete"}, "persist is for operation=set, not for delete"),
        ({"url": URL, "operation": "upsert"}, "operation must be set, delete or vdelete, not 'upsert'"),
        ({"url": URL, "errorMode": "ignore"}, "errorMode must be fail or continue, not 'ignore'"),
        ({"url": URL, "duplicateKeys": "first"}, "duplicateKeys must be error or last"),
        ({"url": URL, "keyColumn": ""}, "keyColumn must be a non-empty text"),
        ({"url": URL, "retryTimeout": "-1"}, "retryTimeout must be seconds from 0 to 86400"),
        ({"url": URL, "fencingToken": "soon"}, "fencingToken must be the fencing token of a lock"),
        ({"url": URL, "operation": "delete", "ttlColumn": "t"}, "ttlColumn is for operation=set"),
        ({"url": URL, "operation": "vdelete", "versionColumn": "v"}, "versionColumn is for operation=set"),
        ({"url": URL, "operation": "delete", "valueColumn": "v"}, "valueColumn is not used by operation=delete"),
        ({"url": URL, "versionColumn": "v", "fencingToken": "1:0:n"}, "exclude each other"),
        ({"url": "http://broker"}, "the URL must start with"),
    ],
)
def test_unusable_options_are_named(options: dict[str, str], message: str) -> None:
    """A wrong option fails with its name and what it takes."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        parse_options(options, env={})


def test_fencing_token_is_read() -> None:
    """A fencing token may be given as its text."""
    _, options = parse_options({"url": URL, "fencingToken": "001696374425000:00001:StateStore"})
    assert options.fencing_token == HlcTimestamp(1696374425000, 1, "StateStore")


def test_what_travels_to_workers_pickles_and_hides_secrets() -> None:
    """Settings and options can be pickled, and no repr shows the password."""
    settings, options = parse_options({"url": "mqtt://user:hunter2@broker"})
    key = PoolKey(settings)
    everything = (settings, options, key)
    assert pickle.loads(pickle.dumps(everything)) == everything  # noqa: S301 - pickled one line ago
    assert "hunter2" not in repr((settings, options, key))


def test_python_names_are_checked_too() -> None:
    """Keyword options of the helpers are checked as the sink's are."""
    with pytest.raises(SettingsError, match=r"unknown option bogus\. Known options: client_id_prefix, duplicate_keys"):
        WriteOptions.from_names(bogus="k")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("keyColumn", "unknown option keyColumn; did you mean key_column?"),
        ("ttl", "unknown option ttl; did you mean ttl_column?"),
        ("report_key", "report_key is for the sink: the counts are returned, or in the report"),
        (
            "max_in_flight",
            "max_in_flight is a setting of the connection: give ConnectionSettings.from_url(url, max_in_f",
        ),
        ("sat_file", "sat_file is a setting of the connection: give ConnectionSettings.from_url(url, sat_file=...)"),
        ("tlsCaFile", "tls_ca_file is a setting of the connection"),
        ("operation_column", "unknown option operation_column: make the values of rows to delete null"),
    ],
)
def test_python_names_that_are_none_say_where_to_look(name: str, message: str) -> None:
    """A wrong keyword gets different advice if it is the sink's spelling, a setting of the connection, or an option of
    the sink alone."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        WriteOptions.from_names(**{name: "1"})  # type: ignore[arg-type]  # the mistake in question


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"null_value": "ignore"}, "null_value must be error or delete, not 'ignore'"),
        ({"error_mode": "ignore"}, "error_mode must be fail or continue"),
        ({"duplicate_keys": "first"}, "duplicate_keys must be error or last"),
        ({"key_column": ""}, "key_column must be a non-empty text"),
        ({"retry_timeout": -1}, "retry_timeout must be seconds from 0 to 86400"),
        ({"gc_freeze": "no"}, "gc_freeze must be True or False, not 'no'"),
        ({"fencing_token": "soon"}, "fencing_token must be the fencing token of a lock"),
        ({"fencing_token": 7}, "fencing_token must be the fencing token of a lock, or its text, not int"),
        ({"persist": True, "operation": "delete"}, "persist is for operation='set', not for delete"),
        ({"operation": "delete", "ttl_column": "t"}, "ttl_column is for operation='set'"),
        (
            {"operation": "vdelete", "version_column": "v"},
            "version_column is for operation='set' and operation='delete': vdelete compares values",
        ),
        ({"operation": "delete", "null_value": "delete"}, "null_value='delete' is for operation='set'"),
        (
            {"operation": "delete", "value_column": "v"},
            "value_column is not used by operation='delete'; use operation='vdelete' to compare values",
        ),
        (
            {"version_column": "v", "fencing_token": "1:0:n"},
            "version_column and fencing_token exclude each other",
        ),
        ({"tombstone_ttl": 0}, "tombstone_ttl must be seconds from 1 to"),
        ({"tombstone_ttl": 60}, "tombstone_ttl is for deletes: null_value='delete' or operation='delete'"),
        (
            {"tombstone_ttl": 60, "null_value": "delete"},
            "tombstone_ttl needs version_column or fencing_token",
        ),
        ({"operation_column": "op"}, "to delete null, and say null_value='delete'"),
        ({"path": "t"}, "keys come from key_column"),
    ],
)
def test_python_functions_are_answered_in_python(options: dict[str, Any], message: str) -> None:
    """Errors of functions use the names and values that a Python caller has written, and errors of the sink the
    sink's."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        WriteOptions.from_names(**options)


def test_whole_job_options_are_named_as_they_were_given() -> None:
    """The writer of one partition and the sink name options for whole jobs as they were given."""
    with pytest.raises(SettingsError, match=r"^duplicate_keys='error' needs all rows of the job"):
        refuse_whole_job_options(WriteOptions(duplicate_keys="error"))
    with pytest.raises(SettingsError, match=r"^duplicateKeys=error needs all rows of the job"):
        parse_options({"url": URL, "duplicateKeys": "error"})


@pytest.mark.parametrize("target", [None, 1883, object()])
def test_where_to_write_is_a_url_or_settings(target: object) -> None:
    """The target is a URL or settings, and the error for anything else says what to give."""
    with pytest.raises(SettingsError, match=f"a URL or ConnectionSettings, not {type(target).__name__}"):
        connection(target)  # type: ignore[arg-type]  # the mistake in question


def test_a_client_is_no_place_to_write_to(store: StateStoreClient) -> None:
    """A client is refused as target with the advice to give its settings, because a client cannot travel to workers."""
    with pytest.raises(SettingsError, match=r"not StateStoreClient; its \.settings are"):
        connection(store)  # type: ignore[arg-type]  # the mistake in question


def test_a_lease_is_no_token(store: StateStoreClient) -> None:
    """A lease is refused as a token, and the message says where its token is."""
    with store.lock("writer") as lease, pytest.raises(SettingsError, match=r"not Lease; a lease has \.fencing_token"):
        WriteOptions.from_names(fencing_token=lease)  # type: ignore[arg-type]  # the mistake in question


def test_each_worker_has_a_client_id_of_its_own() -> None:
    """Each worker has a client id of prefix, application and process that fits into MQTT topics, and a session that
    ends soon."""
    key = PoolKey(ConnectionSettings(host="broker"), "my/pre#fix", "app-1")
    first, second = worker_settings(key), worker_settings(key)
    assert first.client_id != second.client_id
    assert str(first.client_id).startswith("my-pre-fix-app-1-")
    assert first.clean_start
    assert first.session_expiry <= 60


def test_editors_know_the_options() -> None:
    """Each option has its name and type in the functions' signature, but for those of the sink or with an own
    argument."""
    fields = get_type_hints(WriteOptions)
    apart = {"fencing_token", "duplicate_keys", "report_key"}
    assert get_type_hints(RowOptions) == {name: kind for name, kind in fields.items() if name not in apart}
    assert get_type_hints(PartitionOptions) == get_type_hints(RowOptions) | {"duplicate_keys": fields["duplicate_keys"]}
