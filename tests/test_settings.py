"""Connection settings: where they come from, what they refuse and in which words, and what they never show."""

from __future__ import annotations

import pickle
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client import ConnectionSettings, InvalidArgumentError, SettingsError

# -- URLs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "tls", "websocket", "port"),
    [
        ("mqtt://broker", False, False, 1883),  # IANA: mqtt
        ("mqtts://broker", True, False, 8883),  # IANA: secure-mqtt
        ("ws://broker", False, True, 80),
        ("wss://broker", True, True, 443),
        ("MQTTS://broker/", True, False, 8883),
        ("mqtt://broker:9", False, False, 9),
    ],
)
def test_the_scheme_decides_tls_websocket_and_port(url: str, tls: bool, websocket: bool, port: int) -> None:
    """A port in the URL wins over the scheme's."""
    settings = ConnectionSettings.from_url(url)
    assert (settings.host, settings.tls, settings.websocket, settings.port) == ("broker", tls, websocket, port)


@pytest.mark.parametrize(
    ("url", "path"), [("ws://h", "/mqtt"), ("ws://h/", "/"), ("wss://h/a/b", "/a/b"), ("ws://h/a?keep_alive=5", "/a")]
)
def test_a_websocket_has_a_path(url: str, path: str) -> None:
    """By default the one that brokers use."""
    assert ConnectionSettings.from_url(url).websocket_path == path


def test_options_of_a_url_become_typed_settings() -> None:
    """Numbers, truths and texts, with percent escapes, as the settings need them."""
    settings = ConnectionSettings.from_url(
        "mqtt://broker?client_id=pump%207&keep_alive=30&max_in_flight=5&clean_start=off&retry_first_connect=Yes"
    )
    assert (settings.client_id, settings.max_in_flight) == ("pump 7", 5)
    assert (settings.keep_alive, type(settings.keep_alive)) == (30.0, float)
    assert (settings.clean_start, settings.retry_first_connect) == (False, True)


@given(user=st.text(min_size=1), password=st.text(min_size=1))
def test_any_user_and_password_travel_in_a_url(user: str, password: str) -> None:
    """Percent-encoded, as RFC 3986, 2.1 and 3.2.1 say."""
    try:
        escaped = ["".join(f"%{byte:02X}" for byte in text.encode()) for text in (user, password)]
    except UnicodeEncodeError:
        return
    settings = ConnectionSettings.from_url(f"mqtt://{escaped[0]}:{escaped[1]}@broker:1884")
    assert (settings.username, settings.password, settings.host, settings.port) == (user, password, "broker", 1884)


def test_keyword_arguments_win_over_the_url() -> None:
    """Whatever the URL says."""
    settings = ConnectionSettings.from_url("mqtt://broker:1?keep_alive=30", port=2, keep_alive=40, client_id="me")
    assert (settings.port, settings.keep_alive, settings.client_id) == (2, 40, "me")


@pytest.mark.parametrize(
    "url",
    ["mqtt://broker:1883", "mqtts://broker:8883", "ws://broker:80/mqtt", "wss://[::1]:443/a/b", "mqtt://[fe80::1]:1"],
)
def test_the_url_of_settings_reads_back(url: str) -> None:
    """Also with an IPv6 address."""
    settings = ConnectionSettings.from_url(url)
    assert settings.url == url
    assert ConnectionSettings.from_url(settings.url) == settings


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("broker:1883", "the URL must start with mqtt://, mqtts://, ws:// or wss://, not 'broker:1883'"),
        ("http://broker", "the URL must start with mqtt://, mqtts://, ws:// or wss://, not 'http://broker'"),
        ("", "the URL must start with mqtt://, mqtts://, ws:// or wss://, not ''"),
        ("mqtt://", "the URL names no host: 'mqtt://'"),
        ("mqtt://:1883", "the URL names no host: 'mqtt://:1883'"),
        ("mqtt://broker/path", "a mqtt:// URL has no path: 'mqtt://broker/path'"),
        ("mqtt://broker:0", "port must be a number from 1 to 65535, not 0"),
        ("mqtt://broker:65536", "'mqtt://broker:65536' is no URL"),
        ("mqtt://broker:port", "'mqtt://broker:port' is no URL"),
        ("mqtt://[::1", "is no URL"),
        ("mqtt://broker?keep_alive=long", "keep_alive must be a number, not 'long'"),
        ("mqtt://broker?keep_alive=", "keep_alive must be a number, not ''"),
        ("mqtt://broker?max_in_flight=1.5", "max_in_flight must be a number, not '1.5'"),
        ("mqtt://broker?clean_start=maybe", "clean_start must be true or false, not 'maybe'"),
        ("mqtt://broker?keepalive=3", "unknown setting keepalive; known: clean_start, client_id,"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, complaint: str) -> None:
    """The message shows the part that is wrong and what it takes."""
    with pytest.raises(SettingsError) as caught:
        ConnectionSettings.from_url(url)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://user:hidden/x@broker",
        "mqtt://user:hidden#x@broker",
        "mqtt://user:hidden?x@broker",
        "mqtt://user:hidden@x@broker:port",
        "http://user:hidden@broker",
        "mqtt://user:hidden@",
        "mqtt://user:hidden@broker/path",
        "http://broker?password=hidden",
        "mqtt://broker/path?password=hidden",
    ],
)
def test_a_refused_url_does_not_show_its_password(url: str) -> None:
    """Such messages end in logs; a wrongly escaped password is the likeliest mistake."""
    with pytest.raises(SettingsError) as caught:
        ConnectionSettings.from_url(url)
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_password_that_is_not_escaped_is_explained() -> None:
    """urllib would complain about a port."""
    with pytest.raises(SettingsError, match="write / \\? # @ and : as %2F %3F %23 %40 and %3A"):
        ConnectionSettings.from_url("mqtt://user:pass/word@broker")


@pytest.mark.parametrize("url", [None, b"mqtt://broker", 7])
def test_a_url_is_text(url: Any) -> None:
    """Nothing else is guessed at."""
    with pytest.raises(SettingsError, match=f"a URL is text, not {type(url).__name__}"):
        ConnectionSettings.from_url(url)


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader_of_urls(text: str) -> None:
    """It is settings or a SettingsError, never anything else."""
    for url in (text, f"mqtt://{text}", f"wss://broker{text}", f"mqtt://broker?{text}"):
        try:
            settings = ConnectionSettings.from_url(url)
        except SettingsError:
            continue
        assert settings.host


# -- environment -------------------------------------------------------------------------------------------------------


def test_the_environment_of_the_official_sdks_is_read() -> None:
    """Every variable that has a meaning here (state store facts, 3.4)."""
    settings = ConnectionSettings.from_env(
        {
            "AIO_BROKER_HOSTNAME": "broker",
            "AIO_BROKER_TCP_PORT": "1",
            "AIO_MQTT_USE_TLS": "true",
            "AIO_TLS_CA_FILE": "/ca",
            "AIO_TLS_CERT_FILE": "/cert",
            "AIO_TLS_KEY_FILE": "/key",
            "AIO_TLS_KEY_PASSWORD_FILE": "/key-password",
            "AIO_MQTT_CLEAN_START": "1",
            "AIO_MQTT_KEEP_ALIVE": "5",
            "AIO_MQTT_CLIENT_ID": "me",
            "AIO_MQTT_SESSION_EXPIRY": "7",
            "AIO_MQTT_USERNAME": "user",
            "AIO_MQTT_PASSWORD_FILE": "/password",
            "AIO_SOMETHING_ELSE": "x",
        }
    )
    assert settings == ConnectionSettings(
        host="broker",
        port=1,
        tls=True,
        tls_ca_file="/ca",
        tls_cert_file="/cert",
        tls_key_file="/key",
        tls_key_password_file="/key-password",
        clean_start=True,
        keep_alive=5.0,
        client_id="me",
        session_expiry=7.0,
        username="user",
        password_file="/password",
    )


def test_what_the_environment_leaves_out_is_what_the_official_sdks_take() -> None:
    """TLS on port 8883, no clean start, a session of an hour, keep-alive 60 s (state store facts, 3.4)."""
    settings = ConnectionSettings.from_env({"AIO_BROKER_HOSTNAME": "broker"})
    assert (settings.port, settings.tls, settings.clean_start) == (8883, True, False)
    assert (settings.session_expiry, settings.keep_alive, settings.client_id) == (3600, 60, None)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument, os.environ; keyword arguments win, and can name the host."""
    monkeypatch.setenv("AIO_BROKER_HOSTNAME", "broker")
    assert ConnectionSettings.from_env().host == "broker"
    assert ConnectionSettings.from_env(host="other", port=5).url == "mqtts://other:5"
    monkeypatch.delenv("AIO_BROKER_HOSTNAME")
    assert ConnectionSettings.from_env(host="other").host == "other"
    with pytest.raises(SettingsError, match="AIO_BROKER_HOSTNAME is not set"):
        ConnectionSettings.from_env()


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("AIO_BROKER_TCP_PORT", "mqtt", "AIO_BROKER_TCP_PORT must be a number, not 'mqtt'"),
        ("AIO_MQTT_USE_TLS", "2", "AIO_MQTT_USE_TLS must be true or false, not '2'"),
        ("AIO_MQTT_CLEAN_START", "", "AIO_MQTT_CLEAN_START must be true or false, not ''"),
        ("AIO_MQTT_KEEP_ALIVE", "1m", "AIO_MQTT_KEEP_ALIVE must be a number, not '1m'"),
        ("AIO_BROKER_HOSTNAME", "", "host must be a non-empty text, not ''"),
        ("AIO_BROKER_TCP_PORT", "0", "port must be a number from 1 to 65535, not 0"),
        ("AIO_MQTT_PASSWORD_FILE", "/p", "a password needs a username"),
    ],
)
def test_a_variable_that_cannot_work_is_refused(variable: str, text: str, complaint: str) -> None:
    """By its own name where the text cannot be read, by the setting's where the value cannot be."""
    with pytest.raises(SettingsError) as caught:
        ConnectionSettings.from_env({"AIO_BROKER_HOSTNAME": "broker", variable: text})
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    "text", ["1", "t", "true", "TRUE", "y", "Yes", "on", "0", "f", "false", "False", "n", "NO", "oFF"]
)
def test_truth_is_written_in_many_ways(text: str) -> None:
    """The union of what the official SDKs read, and more, in any case."""
    settings = ConnectionSettings.from_env({"AIO_BROKER_HOSTNAME": "broker", "AIO_MQTT_USE_TLS": text})
    assert settings.tls is (text.lower() in ("1", "t", "true", "y", "yes", "on"))


# -- validation --------------------------------------------------------------------------------------------------------

_LONG = "x" * 16_385


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"host": ""}, "host must be a non-empty text, not ''"),
        ({"host": None}, "host must be a non-empty text, not None"),
        ({"host": b"broker"}, "host must be a non-empty text, not b'broker'"),
        ({"port": 0}, "port must be a number from 1 to 65535, not 0"),
        ({"port": 65_536}, "port must be a number from 1 to 65535, not 65536"),
        ({"port": "1883"}, "port must be a number from 1 to 65535, not '1883'"),
        ({"port": True}, "port must be a number from 1 to 65535, not True"),
        ({"port": 1883.0}, "port must be a number from 1 to 65535, not 1883.0"),
        ({"client_id": ""}, "client_id must be a non-empty text without '+', '#' and NUL, not ''"),
        ({"client_id": "a+b"}, "client_id must be a non-empty text without '+', '#' and NUL, not 'a+b'"),
        ({"client_id": "a#"}, "client_id must be a non-empty text without '+', '#' and NUL, not 'a#'"),
        ({"client_id": "a\0"}, "client_id must be a non-empty text without '+', '#' and NUL, not 'a\\x00'"),
        ({"client_id": 7}, "client_id must be a non-empty text without '+', '#' and NUL, not 7"),
        ({"client_id": "\ud800"}, "client_id is no valid text: 'utf-8' codec can't encode"),
        ({"client_id": _LONG}, "client_id has 16385 bytes; at most 16384 are of use"),
        ({"keep_alive": 0.5}, "keep_alive must be seconds from 1 to 65535, not 0.5"),
        ({"keep_alive": 65_536}, "keep_alive must be seconds from 1 to 65535, not 65536"),
        ({"keep_alive": float("nan")}, "keep_alive must be seconds from 1 to 65535, not nan"),
        ({"session_expiry": -1}, "session_expiry must be seconds from 0 to 4.29497e+09, not -1"),
        ({"session_expiry": "300"}, "session_expiry must be seconds from 0 to 4.29497e+09, not '300'"),
        ({"connect_timeout": 0}, "connect_timeout must be seconds from 0.001 to 3600, not 0"),
        ({"connect_timeout": float("inf")}, "connect_timeout must be seconds from 0.001 to 3600, not inf"),
        ({"request_timeout": 0}, "request_timeout must be seconds from 0.001 to 4.29497e+09, not 0"),
        ({"request_timeout": None}, "request_timeout must be seconds from 0.001 to 4.29497e+09, not None"),
        ({"request_timeout": True}, "request_timeout must be seconds from 0.001 to 4.29497e+09, not True"),
        ({"max_in_flight": 0}, "max_in_flight must be a number from 1 to 65535, not 0"),
        ({"max_in_flight": 65_536}, "max_in_flight must be a number from 1 to 65535, not 65536"),
        ({"max_in_flight": True}, "max_in_flight must be a number from 1 to 65535, not True"),
        ({"max_in_flight": 2.0}, "max_in_flight must be a number from 1 to 65535, not 2.0"),
        ({"tls": "yes"}, "tls must be True or False, not 'yes'"),
        ({"websocket": 1}, "websocket must be True or False, not 1"),
        ({"clean_start": None}, "clean_start must be True or False, not None"),
        ({"retry_first_connect": "no"}, "retry_first_connect must be True or False, not 'no'"),
        ({"driver": "other"}, "driver must be 'paho', not 'other'"),
        (
            {"username": "u", "password": "p", "password_file": "/p"},
            "give either password or password_file, not both",
        ),
        ({"password": "p"}, "a password needs a username"),
        ({"password_file": "/p"}, "a password needs a username"),
        (
            {"tls": True, "tls_cert_file": "/c"},
            "tls_cert_file and tls_key_file belong together; give both or neither",
        ),
        (
            {"tls": True, "tls_key_file": "/k"},
            "tls_cert_file and tls_key_file belong together; give both or neither",
        ),
        ({"tls": True, "tls_key_password_file": "/k"}, "tls_key_password_file needs tls_key_file"),
        ({"tls_ca_file": "/ca"}, "tls_ca_file is given but tls is off; use mqtts:// or tls=True"),
        (
            {"tls_cert_file": "/c", "tls_key_file": "/k"},
            "tls_cert_file is given but tls is off; use mqtts:// or tls=True",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_value_that_cannot_work_is_refused(values: dict[str, Any], complaint: str) -> None:
    """At once, with a message that names the setting and what it takes."""
    with pytest.raises(SettingsError) as caught:
        ConnectionSettings(**{"host": "broker", **values})
    assert str(caught.value).startswith(complaint)
    assert isinstance(caught.value, InvalidArgumentError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "values",
    [
        {"port": 1},
        {"port": 65_535},
        {"client_id": "x" * 16_384},
        {"client_id": "a:b/c é"},
        {"keep_alive": 1},
        {"keep_alive": 65_535},
        {"session_expiry": 0},
        {"session_expiry": 4_294_967_295},
        {"connect_timeout": 0.001},
        {"connect_timeout": 3600},
        {"request_timeout": 0.001},
        {"max_in_flight": 1},
        {"max_in_flight": 65_535},
        {"username": "u"},
        {"username": "u", "password": ""},
    ],
    ids=lambda value: "-".join(value),
)
def test_the_limits_themselves_work(values: dict[str, Any]) -> None:
    """The bounds in the messages are inclusive; a user without a password is fine, too."""
    settings = ConnectionSettings(host="broker", **values)
    assert {name: getattr(settings, name) for name in values} == values


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_copy_with_other_values_is_checked_as_well() -> None:
    """The original stays as it is; it cannot be changed at all."""
    settings = ConnectionSettings.from_url("mqtt://broker")
    changed = settings.evolve(port=5, client_id="me")
    assert (changed.host, changed.port, changed.client_id) == ("broker", 5, "me")
    assert (settings.port, settings.client_id) == (1883, None)
    with pytest.raises(SettingsError, match="port must be"):
        settings.evolve(port=0)
    with pytest.raises(SettingsError, match="unknown setting colour, ports; known: clean_start"):
        settings.evolve(ports=5, colour="red", host="x")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        settings.port = 5


def test_neither_repr_nor_url_shows_a_secret() -> None:
    """Both are written to logs."""
    settings = ConnectionSettings.from_url("wss://user:hidden@broker/path?keep_alive=5")
    assert settings.password == "hidden"
    assert "hidden" not in repr(settings)
    assert "hidden" not in str(settings)
    assert settings.url == "wss://broker:443/path"


def test_settings_pickle_whole() -> None:
    """Spark sends them to its workers, and a worker cannot ask for the password again."""
    settings = ConnectionSettings.from_url("mqtts://user:hidden@broker?client_id=me&tls_ca_file=/ca")
    copy = pickle.loads(pickle.dumps(settings))  # noqa: S301 - our own bytes
    assert copy == settings
    assert copy.password == "hidden"
    assert hash(copy) == hash(settings)
