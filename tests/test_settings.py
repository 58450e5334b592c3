"""ConnectionSettings: what is accepted, what is refused with the setting's name, and what never shows."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import attrs
import pytest

from statestore_client import ConnectionSettings, SettingsError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mqtt://broker", {"host": "broker", "port": 1883, "tls": False}),
        ("mqtts://broker", {"port": 8883, "tls": True}),
        ("mqtt://broker:2883/", {"port": 2883}),
        ("mqtt://[::1]:1884", {"host": "::1", "port": 1884}),
        ("ws://broker", {"port": 80, "websocket": True, "websocket_path": "/mqtt"}),
        ("wss://broker:444/path/x", {"port": 444, "tls": True, "websocket": True, "websocket_path": "/path/x"}),
        ("mqtt://me:p%40ss%2F@broker", {"username": "me", "password": "p@ss/"}),
        ("mqtt://a,b:1884,[::1]", {"host": "a", "port": 1883, "alternates": ("b:1884", "[::1]:1883")}),
        (
            "mqtts://u:a,b@[::1]:1,c?keep_alive=9",
            {"host": "::1", "port": 1, "alternates": ("c:8883",), "username": "u"},
        ),
        ("wss://a,b/path", {"alternates": ("b:443",), "websocket_path": "/path"}),
        ("mqtt://a:1884?alternates=b,c:1885", {"alternates": ("b", "c:1885")}),
        ("mqtt://b?client_id=pump-7&keep_alive=30", {"client_id": "pump-7", "keep_alive": 30.0}),
        ("mqtt://b?max_in_flight=8&clean_start=no", {"max_in_flight": 8, "clean_start": False}),
        (
            "mqtt://b?retry_first_connect=TRUE&request_timeout=0.5",
            {"retry_first_connect": True, "request_timeout": 0.5},
        ),
    ],
)
def test_a_url_says_where_and_how(url: str, expected: dict[str, Any]) -> None:
    """A URL gives scheme, user, host, port, path and options."""
    settings = ConnectionSettings.from_url(url)
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "must start with mqtt://"),
        ("broker:1883", "must start with mqtt://"),
        ("http://broker", "must start with mqtt://"),
        ("mqtt://", "names no host"),
        ("mqtt://:1883", "names no host"),
        ("mqtt://broker/path", "has no path"),
        ("mqtt://me:12#secret@broker", "write / "),
        ("ws://me:12/secret@broker", "write / "),
        ("mqtt://broker:0", "port"),
        ("mqtt://broker:65536", "not a valid URL"),
        ("mqtt://broker:abc", "not a valid URL"),
        ("mqtt://[::1", "not a valid URL"),
        ("mqtt://a,", "an address must be 'host' or 'host:port'"),
        ("mqtt://,a", "names no host"),
        ("mqtt://a,b:0", "an address must be"),
        ("mqtt://a,b:x", "an address must be"),
        ("mqtt://a,::1", "an address must be"),
        ("mqtt://a?alternates=b/c", "an address must be"),
        ("mqtt://a?alternates=u@b", "an address must be"),
        ("mqtt://b?nonsense=1", "unknown setting nonsense"),
        ("mqtt://b?keep_alive=soon", "keep_alive must be a number"),
        ("mqtt://b?keep_alive=nan", "keep_alive"),
        ("mqtt://b?keep_alive=0", "keep_alive"),
        ("mqtt://b?keep_alive=65536", "keep_alive"),
        ("mqtt://b?session_expiry=-1", "session_expiry"),
        ("mqtt://b?max_in_flight=65536", "max_in_flight"),
        ("mqtt://b?max_in_flight=1.5", "max_in_flight must be a number"),
        ("mqtt://b?clean_start=perhaps", "clean_start must be true or false"),
        ("mqtt://b?client_id=a%2Bb", "client_id"),
        ("mqtt://b?client_id=", "client_id"),
        ("mqtt://b?client_id=a%09b", "control characters"),
        ("mqtt://user:p%E4ss@b", "password of the URL is not UTF-8"),
        ("mqtt://%E4:word@b", "user name of the URL is not UTF-8"),
        ("mqtt://b?password=x", "needs a username"),
        ("mqtt://b?tls_ca_file=x", "tls is off"),
        ("mqtts://b?tls_key_file=x", "tls_key_file needs tls_cert_file"),
        ("mqtts://b?tls_key_password_file=x", "tls_key_password_file needs tls_cert_file"),
        ("mqtt://u:p@b?password_file=x", "not both"),
        (None, "text"),
        (b"mqtt://b", "text"),
    ],
)
def test_a_bad_url_is_refused_with_the_reason(url: Any, complaint: str) -> None:
    """The message about a bad URL names the setting and what it takes."""
    with pytest.raises(SettingsError, match=complaint):
        ConnectionSettings.from_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:sesame@host",
        "mqtt://me:sesame@host:99999",
        "mqtt://me:sesame/x@host",
        "mqtt://me:12/sesame@host",
        "mqtt://me:12?sesame@host",
        "mqtt://me:sesame@host/path",
        "mqtt://me:sesame@",
        "http://host?password=sesame",
        "mqtt://host:x?password=sesame",
        "mqtt://me:12,sesame/x@host",
        "mqtt://me:12/x,sesame@host",
        "mqtt://me:sesame@host,",
    ],
)
def test_no_message_shows_a_password(url: str) -> None:
    """No error message contains a password, not even the one about a URL that cannot be read."""
    with pytest.raises(SettingsError) as caught:
        ConnectionSettings.from_url(url)
    assert "sesame" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_several_addresses_take_turns() -> None:
    """An address of a broker without a port has that of the settings."""
    settings = ConnectionSettings(
        host="a", port=1884, alternates=("b", "[::1]:1885"), connect_timeout=9.0, keep_alive=7
    )
    assert settings.url == "mqtt://a:1884,b:1884,[::1]:1885"
    assert ConnectionSettings.from_url(settings.url).addresses == settings.addresses
    attempts = settings.of_each_address()
    assert [each.url for each in attempts] == ["mqtt://a:1884", "mqtt://b:1884", "mqtt://[::1]:1885"]
    assert {(each.connect_timeout, each.keep_alive) for each in attempts} == {(9.0, 7)}
    assert settings.evolve(alternates=()).of_each_address() == (settings.evolve(alternates=()),)


def test_no_repr_shows_a_password() -> None:
    """No repr contains a password: settings and URLs end up in logs and tracebacks."""
    settings = ConnectionSettings.from_url("mqtts://me:sesame@host")
    assert "sesame" not in repr(settings)
    assert settings.url == "mqtts://host:8883"
    assert ConnectionSettings.from_url("ws://[::1]:80/x").url == "ws://[::1]:80/x"


def test_keyword_arguments_win() -> None:
    """A keyword argument wins over the URL and over the environment."""
    assert ConnectionSettings.from_url("mqtt://b?client_id=a", client_id="c").client_id == "c"
    env = {"AIO_BROKER_HOSTNAME": "b", "AIO_BROKER_TCP_PORT": "1"}
    assert ConnectionSettings.from_env(env, port=2).port == 2
    with pytest.raises(SettingsError, match=r"^unknown setting colour; known: "):
        ConnectionSettings.from_url("mqtt://b", colour="red")
    for wrong, right in (
        ("ca_file", "tls_ca_file"),
        ("cafile", "tls_ca_file"),
        ("certFile", "tls_cert_file"),
        ("key_file", "tls_key_file"),
    ):
        with pytest.raises(SettingsError, match=rf"^unknown setting {wrong}; did you mean {right}\? Known: "):
            ConnectionSettings.from_url("mqtt://b", **{wrong: "x"})
    with pytest.raises(SettingsError, match=r"^unknown setting keepalive; did you mean keep_alive\? Known: "):
        ConnectionSettings.from_url("mqtt://b?keepalive=5")


def test_the_environment_variables_of_the_official_sdks() -> None:
    """The environment variables have the names and defaults of the official SDKs (state store facts, 3.4)."""
    defaults = ConnectionSettings.from_env({"AIO_BROKER_HOSTNAME": "b"})
    assert (defaults.port, defaults.tls, defaults.clean_start) == (8883, True, False)
    assert (defaults.keep_alive, defaults.session_expiry) == (60.0, 3600.0)
    full = ConnectionSettings.from_env(
        {
            "AIO_BROKER_HOSTNAME": "b",
            "AIO_BROKER_TCP_PORT": "1883",
            "AIO_MQTT_USE_TLS": "false",
            "AIO_MQTT_CLEAN_START": "1",
            "AIO_MQTT_KEEP_ALIVE": "5",
            "AIO_MQTT_CLIENT_ID": "pump",
            "AIO_MQTT_SESSION_EXPIRY": "7",
            "AIO_MQTT_USERNAME": "me",
            "AIO_MQTT_PASSWORD_FILE": "/p",
            "UNRELATED": "x",
        }
    )
    assert full == ConnectionSettings(
        host="b",
        keep_alive=5.0,
        clean_start=True,
        client_id="pump",
        session_expiry=7.0,
        username="me",
        password_file="/p",
    )
    with pytest.raises(SettingsError, match="AIO_BROKER_HOSTNAME is not set"):
        ConnectionSettings.from_env({})
    with pytest.raises(SettingsError, match="AIO_BROKER_TCP_PORT must be a number"):
        ConnectionSettings.from_env({"AIO_BROKER_HOSTNAME": "b", "AIO_BROKER_TCP_PORT": "mqtt"})


def test_the_environment_variables_for_tls_and_tokens() -> None:
    """The five variables for TLS and tokens of state store facts, 3.4 are read; port and TLS have their defaults."""
    tls = {
        "AIO_TLS_CA_FILE": "/ca.pem",
        "AIO_TLS_CERT_FILE": "/cert.pem",
        "AIO_TLS_KEY_FILE": "/key.pem",
        "AIO_TLS_KEY_PASSWORD_FILE": "/word",
        "AIO_SAT_FILE": "/token",
    }
    assert ConnectionSettings.from_env({"AIO_BROKER_HOSTNAME": "b"} | tls) == ConnectionSettings(
        host="b",
        port=8883,
        tls=True,
        tls_ca_file="/ca.pem",
        tls_cert_file="/cert.pem",
        tls_key_file="/key.pem",
        tls_key_password_file="/word",
        sat_file="/token",
        clean_start=False,
        session_expiry=3600.0,
        client_id=None,
    )


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """from_env() reads os.environ unless it is given another mapping."""
    monkeypatch.setenv("AIO_BROKER_HOSTNAME", "from-env")
    assert ConnectionSettings.from_env().host == "from-env"


def test_values_of_other_types_are_refused() -> None:
    """A value of another type, or out of bounds, is refused at once: a port given as text would fail much later."""
    for name, wrongs in {
        "host": ("", None),
        "port": (True, "1883"),
        "tls": (1,),
        "websocket": (None,),
        "keep_alive": ("60", True),
        "connect_timeout": (0,),
        "request_timeout": (0,),
        "max_in_flight": (True, 0),
        "client_id": (5, "x" * 20_000, "\ud800", "a\tb", "a\0b", "a\x80b"),
        "username": (5, b"me", "\ud800", "a\0b"),
        "password": (5, b"word", "word\0"),
        "websocket_path": (5, "mqtt", None, "/a\n"),
        "password_file": (5, b"f", "f\0"),
        "tls_ca_file": (5,),
        "sat_file": (5,),
        "driver": (None, "carrier pigeon"),
        "metric_category": ("", "a\nb", "\ud800", "x" * 257, 7),
        "response_topic": ("", "a/+", "a/#", "a\0b", b"a", 7, "x" * 65_536, "{client_id}" * 4, "\ud800"),
        "persist_session": ("yes",),
    }.items():
        for wrong in wrongs:
            with pytest.raises(SettingsError, match=name):
                ConnectionSettings(**{"host": "b", name: wrong})
    for alternates in (("",), ("a:b",), (1,), 5, None, ("a,b",)):
        with pytest.raises(SettingsError, match="must be"):
            ConnectionSettings(host="a", alternates=alternates)  # type: ignore[arg-type]


def test_the_bounds_of_a_time_are_written_out() -> None:
    """The message writes the bounds of a time out as a person would type them, not as 4.29497e+09."""
    with pytest.raises(SettingsError, match=r"^session_expiry must be seconds from 0 to 4294967295, not -1$"):
        ConnectionSettings(host="b", session_expiry=-1)


def test_settings_are_frozen_pickle_and_evolve() -> None:
    """Settings are frozen, can be pickled for Spark's workers, and check the values of a changed copy as well."""
    settings = ConnectionSettings.from_url("mqtt://me:sesame@b?client_id=x")
    travelled = pickle.loads(pickle.dumps(settings))  # noqa: S301 - our own bytes
    assert travelled == settings
    assert travelled.password == "sesame"
    assert hash(travelled) == hash(settings)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(settings, "port", 1)  # noqa: B010 - what the type checker forbids
    assert settings.evolve(port=1).port == 1
    with pytest.raises(SettingsError, match="port"):
        settings.evolve(port=0)
    with pytest.raises(SettingsError, match=r"^unknown setting colour; known: "):
        settings.evolve(colour="red")


# -- connection strings and mounted files (state store facts, 3.4) -----------------------------------------------------


def test_a_connection_string() -> None:
    """A connection string takes the .NET SDK's names in any case, seconds or ISO 8601 durations, the rest from the
    environment."""
    text = "HostName=b; tcpport=1883;UseTls=false;ClientId=pump=7;KeepAlive=PT1M30S;SessionExpiry=7;CleanStart=true;"
    assert ConnectionSettings.from_connection_string(text, max_in_flight=8) == ConnectionSettings(
        host="b", client_id="pump=7", keep_alive=90.0, session_expiry=7.0, clean_start=True, max_in_flight=8
    )
    secured = ConnectionSettings.from_connection_string(
        "HostName=b;CaFile=/ca;CertFile=/c;KeyFile=/k;KeyPasswordFile=/kp;Username=me;PasswordFile=/p"
    )
    assert (secured.port, secured.tls, secured.clean_start, secured.session_expiry) == (8883, True, False, 3600.0)
    assert (secured.tls_ca_file, secured.tls_cert_file, secured.tls_key_file) == ("/ca", "/c", "/k")
    assert (secured.tls_key_password_file, secured.username, secured.password_file) == ("/kp", "me", "/p")
    token = ConnectionSettings.from_connection_string("HostName=b;SatAuthFile=/token")
    assert (token.sat_file, token.driver) == ("/token", "native")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no HostName"),
        ("TcpPort=1", "names no HostName"),
        ("HostName=b;TcpPort=x", "TcpPort must be a number"),
        ("HostName=b;UseTls=maybe", "UseTls must be true or false"),
        ("HostName=b;KeepAlive=PT", "KeepAlive must be a number"),
        ("HostName=b;HostName=c", "HostName twice"),
        ("HostName=b;Password=sesame", "has 'Password'"),
        ("HostName=b;TcpPort", "has 'TcpPort'"),
        ("HostName=b;SatAuthFile=/t;Username=me", "takes the place of username"),
    ],
)
def test_what_is_wrong_with_a_connection_string_is_said(text: str, words: str) -> None:
    """Each mistake in a connection string has a message of its own, which contains no value that might be a secret."""
    with pytest.raises(SettingsError, match=words) as caught:
        ConnectionSettings.from_connection_string(text)
    assert "sesame" not in str(caught.value)


def mount(folder: Path, content: str, **env: str) -> dict[str, str]:
    (folder / "MQTT_CONNECTION_CONFIGURATION").write_text(content)
    return {"CONNECTOR_CONFIGURATION_MOUNT_PATH": str(folder), **env}


def test_the_mounted_files_of_a_connector(tmp_path: Path) -> None:
    """A connector's mounted files give the connection as JSON; the environment gives the id, trust bundle and token."""
    env = mount(
        tmp_path,
        """{"host": "aio-broker:18883", "keepAliveSeconds": 30, "maxInflightMessages": 10, "sessionExpirySeconds": 20,
            "tls": {"mode": "Enabled"}, "authentication": {"method": "serviceAccountToken"}}""",
        CONNECTOR_ID="connector-1",
        BROKER_TLS_TRUST_BUNDLE_CACERT_MOUNT_PATH="/trust",
        BROKER_SAT_MOUNT_PATH="/token",
    )
    assert ConnectionSettings.from_mounts(env, connect_timeout=3.0) == ConnectionSettings(
        host="aio-broker",
        port=18883,
        tls=True,
        tls_ca_dir="/trust",
        sat_file="/token",
        driver="native",
        client_id="connector-1",
        keep_alive=30,
        max_in_flight=10,
        session_expiry=20,
        clean_start=False,
        connect_timeout=3.0,
    )
    plain = mount(tmp_path, """{"host": "[::1]:1883", "tls": {"mode": "Disabled"}}""")
    assert ConnectionSettings.from_mounts(plain).url == "mqtt://[::1]:1883"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ("[]", 'has no "host"'),
        ("""{"host": 5}""", 'has no "host"'),
        ("""{"host": "b:x"}""", "must be a number, not 'x'"),
        ("""{"host": "b:1", "keepAliveSeconds": "long"}""", "keep_alive must be"),
        ("""{"host": "b:1", "tls": true}""", "tls must be an object"),
        (
            """{"host": "b:1", "authentication": {"method": "ServiceAccountToken"}}""",
            "BROKER_SAT_MOUNT_PATH is not set",
        ),
    ],
)
def test_what_is_wrong_with_mounted_files_is_said(tmp_path: Path, content: str, words: str) -> None:
    """The message about a wrong mounted file names the file and what it lacks."""
    with pytest.raises(SettingsError, match=words):
        ConnectionSettings.from_mounts(mount(tmp_path, content))


def test_mounted_files_that_are_not_there(tmp_path: Path) -> None:
    """A missing variable and a missing mounted file are both refused."""
    with pytest.raises(SettingsError, match="CONNECTOR_CONFIGURATION_MOUNT_PATH is not set"):
        ConnectionSettings.from_mounts({})
    with pytest.raises(SettingsError, match="cannot be read"):
        ConnectionSettings.from_mounts({"CONNECTOR_CONFIGURATION_MOUNT_PATH": str(tmp_path)})


def test_what_connect_says_about_the_client_is_a_setting() -> None:
    """``persist_session`` and ``metric_category`` are settings: by name, in a URL, and beside what the environment
    names."""
    settings = ConnectionSettings.from_url("mqtt://h?persist_session=true&metric_category=line-7")
    assert (settings.persist_session, settings.metric_category) == (True, "line-7")
    assert ConnectionSettings(host="h").metric_category == "aiosdk-python"
    env = {"AIO_BROKER_HOSTNAME": "h"}
    assert ConnectionSettings.from_env(env, persist_session=True, metric_category=None).metric_category is None
