"""Signed session tokens: accepted and ignored ones, and the replacement of a key."""

import hmac
from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config import ConfigError, GraphBuilder, PluginGraph, PluginRegistry, load_text
from epp.request_control.plugins import ResponseHead
from epp.scheduling import Plugin
from epp.testing import make_endpoint, make_plugin, make_request, make_state, run_filter
from epp_plugins import PLUGINS
from epp_plugins.filters.session_affinity import SessionAffinityFilter
from epp_plugins.session_tokens import SessionTokens, TokenRefusal

HEADER = "x-session-token"
KEY, OTHER = b"k" * 32, b"o" * 32
NOW = 1_800_000_000.0
ENDPOINTS = [make_endpoint("ns/a"), make_endpoint("ns/b"), make_endpoint("ns/c")]
ALL = ["ns/a", "ns/b", "ns/c"]

SIGNED = SessionTokens(HEADER, [KEY])
EXPIRING = SessionTokens(HEADER, [KEY], ttl_seconds=60)
PLAIN = SessionTokens(HEADER)


class Ignored:
    """A place for metrics that keeps why tokens were ignored."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()

    def counter(self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str]) -> Any:
        assert name == "session_tokens_ignored_total"
        assert list(labels) == ["reason"]
        return self

    def inc(self, *labels: str) -> None:
        self.reasons.update(labels)

    def gauge(
        self,
        plugin: Plugin,
        name: str,
        documentation: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: Sequence[str] = (),
    ) -> None:
        raise AssertionError("there is no gauge")


def signed(name: str, *, key: bytes = KEY, expiry: str = "0", header: str = HEADER) -> str:
    """A token by the description in the documentation, not by the code under test."""
    encoded = b64encode(name.encode()).decode()
    mac = hmac.new(key, f"{header}\0{expiry}\0{encoded}".encode(), "sha256").digest()[:16]
    return f"{encoded}.{expiry}.{urlsafe_b64encode(mac).decode().rstrip('=')}"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    return path


def filter_with(ignored: Ignored, **tokens: Any) -> SessionAffinityFilter:
    return make_plugin(
        SessionAffinityFilter,
        {"encodedEndpointHeaderConfig": tokens},
        clock=lambda: 0.0,
        metrics=ignored,
        wall_clock=lambda: NOW,
    )


def test_a_token_without_a_key_is_that_of_the_reference() -> None:
    assert PLAIN.token_of("ns/b", NOW) == b64encode(b"ns/b").decode()
    assert PLAIN.endpoint_of("bnMvYg==", NOW) == "ns/b"


def test_a_signed_token_has_a_signature_of_128_bits() -> None:
    assert SIGNED.token_of("ns/b", NOW) == signed("ns/b")
    assert SIGNED.endpoint_of(signed("ns/b"), NOW) == "ns/b"
    assert len(SIGNED.token_of("ns/b", NOW).rpartition(".")[2]) * 6 >= 128


@pytest.mark.parametrize(
    ("tokens", "token", "want"),
    [
        pytest.param(SIGNED, "bnMvYg==", TokenRefusal.UNSIGNED, id="unsigned"),
        pytest.param(SIGNED, signed("ns/b", key=OTHER), TokenRefusal.FORGED, id="of another key"),
        pytest.param(
            SIGNED, signed("ns/b", header="x-other"), TokenRefusal.FORGED, id="of another header"
        ),
        pytest.param(SIGNED, signed("ns/b")[:-1], TokenRefusal.FORGED, id="a signature cut off"),
        pytest.param(SIGNED, signed("ns/b") + "=", TokenRefusal.FORGED, id="a signature padded"),
        pytest.param(SIGNED, "bnMvYg==.0.", TokenRefusal.FORGED, id="no signature"),
        pytest.param(
            SIGNED,
            "bnMvYQ==." + signed("ns/b").partition(".")[2],
            TokenRefusal.FORGED,
            id="other name",
        ),
        pytest.param(
            EXPIRING,
            signed("ns/b").replace(".0.", f".{int(NOW) + 99}."),
            TokenRefusal.FORGED,
            id="an expiry that was put off",
        ),
        pytest.param(SIGNED, "bnMvYg==..", TokenRefusal.MALFORMED, id="no expiry"),
        pytest.param(SIGNED, "bnMvYg==.-1.x", TokenRefusal.MALFORMED, id="a negative expiry"),
        pytest.param(
            SIGNED, "bnMvYg==.\u0662.x", TokenRefusal.MALFORMED, id="a digit that is no ASCII"
        ),
        pytest.param(
            SIGNED, "bnMvYg==.0.\xe9", TokenRefusal.MALFORMED, id="a signature that is none"
        ),
        pytest.param(SIGNED, "x" * 1100, TokenRefusal.TOO_LONG, id="too long"),
        pytest.param(
            SIGNED, "x" * 1025 + ".0.x", TokenRefusal.TOO_LONG, id="a name that is too long"
        ),
        pytest.param(PLAIN, "x" * 1025, TokenRefusal.TOO_LONG, id="too long, without a key"),
        pytest.param(PLAIN, signed("ns/b"), TokenRefusal.MALFORMED, id="signed, without a key"),
        pytest.param(PLAIN, "?", TokenRefusal.MALFORMED, id="no base64"),
        pytest.param(PLAIN, "/w==", TokenRefusal.MALFORMED, id="no UTF-8"),
        pytest.param(
            SessionTokens(HEADER, ignore_unsigned=True),
            "bnMvYg==",
            TokenRefusal.UNSIGNED,
            id="unsigned ones are ignored without a key, too",
        ),
        pytest.param(
            EXPIRING, signed("ns/b", expiry=str(int(NOW))), TokenRefusal.EXPIRED, id="expired"
        ),
        pytest.param(
            EXPIRING, signed("ns/b"), TokenRefusal.EXPIRED, id="from before there was a time"
        ),
        pytest.param(
            EXPIRING, signed("ns/b", expiry=str(int(NOW) + 1)), "ns/b", id="the last second"
        ),
        pytest.param(
            SIGNED,
            signed("ns/b", expiry=str(int(NOW))),
            TokenRefusal.EXPIRED,
            id="of a stricter time",
        ),
    ],
)
def test_a_token_means(tokens: SessionTokens, token: str, want: str) -> None:
    assert tokens.endpoint_of(token, NOW) == want


@given(st.text(max_size=1200), st.sampled_from([PLAIN, SIGNED, EXPIRING]))
def test_any_text_is_a_name_or_refused(text: str, tokens: SessionTokens) -> None:
    found = tokens.endpoint_of(text, NOW)
    assert tokens is PLAIN or isinstance(found, TokenRefusal)


@given(st.text(min_size=1, max_size=253), st.sampled_from([PLAIN, SIGNED, EXPIRING]))
def test_what_is_given_out_is_taken(name: str, tokens: SessionTokens) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    assert tokens.endpoint_of(tokens.token_of(name, NOW), NOW + 30) == name


@pytest.mark.parametrize(
    ("token", "kept", "reasons"),
    [
        pytest.param(signed("ns/b"), ["ns/b"], {}, id="signed"),
        pytest.param("bnMvYg==", ALL, {"unsigned": 1}, id="unsigned"),
        pytest.param(signed("ns/b", key=OTHER), ALL, {"forged": 1}, id="forged"),
        pytest.param("y" * 5000, ALL, {"too-long": 1}, id="too long"),
        pytest.param(signed("ns/b", expiry=str(int(NOW) - 1)), ALL, {"expired": 1}, id="expired"),
    ],
)
def test_an_ignored_token_is_counted_and_the_request_goes_anywhere(
    key_file: Path, token: str, kept: list[str], reasons: dict[str, int]
) -> None:
    ignored = Ignored()
    plugin = filter_with(ignored, keyFile=str(key_file))
    request, state = make_request(headers={HEADER: token}), make_state()
    for _ in range(2):  # evaluated again after a wait: it counts once
        names = [each.name for each in plugin.filter(request, ENDPOINTS, state)]
        assert names == kept
    assert ignored.reasons == reasons


def test_the_response_has_a_token_that_expires(key_file: Path) -> None:
    plugin = filter_with(Ignored(), keyFile=str(key_file), ttlSeconds=60)
    head = ResponseHead(200, {})
    plugin.response_headers(make_request(), head, ENDPOINTS[1], make_state())
    assert head.set_headers == {HEADER: signed("ns/b", expiry=str(int(NOW) + 60))}


def test_a_key_is_exchanged_without_losing_a_session(tmp_path: Path, key_file: Path) -> None:
    new = tmp_path / "new"
    new.write_bytes(OTHER)
    plugin = filter_with(Ignored(), keyFile=str(new), oldKeyFile=str(key_file))
    for key in (KEY, OTHER):
        request = make_request(headers={HEADER: signed("ns/b", key=key)})
        assert run_filter(plugin, request, ENDPOINTS) == ["ns/b"]
    head = ResponseHead(200, {})
    plugin.response_headers(make_request(), head, ENDPOINTS[1], make_state())
    assert head.set_headers == {HEADER: signed("ns/b", key=OTHER)}


def built(parameters: str, previous: PluginGraph | None = None) -> PluginGraph:
    text = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
        "- {type: session-affinity-filter, parameters: {encodedEndpointHeaderConfig: {"
        f"{parameters}}}}}}}\n"
        "schedulingProfiles:\n- {name: default, plugins: [{pluginRef: session-affinity-filter}]}\n"
    )
    builder = GraphBuilder(PluginRegistry(PLUGINS), services={"clock": lambda _: lambda: 0.0})
    return builder.build(load_text(text, "epp.yaml"), previous)


def test_a_reload_that_names_another_key_makes_the_plugin_anew(
    tmp_path: Path, key_file: Path
) -> None:
    new = tmp_path / "new"
    new.write_bytes(OTHER)
    before = built(f"keyFile: {key_file}")
    same = built(f"keyFile: {key_file}", before)
    after = built(f"keyFile: {new}, oldKeyFile: {key_file}", before)
    name = "session-affinity-filter"
    assert same.plugins[name] is before.plugins[name]
    affinity = after.plugins[name]
    assert isinstance(affinity, SessionAffinityFilter)
    for key in (KEY, OTHER):
        request = make_request(headers={HEADER: signed("ns/b", key=key)})
        assert run_filter(affinity, request, ENDPOINTS) == ["ns/b"]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("keyFile: {folder}/none", "keyFile: {folder}/none: cannot be read: No such file"),
        ("keyFile: {folder}", "keyFile: {folder}: cannot be read: Is a directory"),
        ("keyFile: {folder}/short", "keyFile: {folder}/short: a key has 32 to 4096 bytes, this"),
        ("keyFile: {folder}/long", "keyFile: {folder}/long: a key has 32 to 4096 bytes, this"),
        (
            "keyFile: {folder}/key, oldKeyFile: {folder}/short",
            "oldKeyFile: {folder}/short: a key has 32 to 4096 bytes, this has 5",
        ),
        ("oldKeyFile: {folder}/key", "oldKeyFile: of no use without `keyFile`"),
        ("ttlSeconds: 5", "ttlSeconds: of no use without `keyFile`"),
    ],
)
def test_a_bad_key_file_is_an_error_of_the_configuration(
    tmp_path: Path, key_file: Path, parameters: str, text: str
) -> None:
    (tmp_path / "short").write_bytes(b"short\n")
    (tmp_path / "long").write_bytes(b"x" * 5000)
    with pytest.raises(ConfigError) as raised:
        built(parameters.replace("{folder}", str(tmp_path)))
    wanted = f"encodedEndpointHeaderConfig.{text.replace('{folder}', str(tmp_path))}"
    assert wanted in str(raised.value)
    assert "epp.yaml" in str(raised.value)
    assert "plugins[0]" in str(raised.value)
    assert KEY.decode() not in str(raised.value)
