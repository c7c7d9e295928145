"""``metrics-data-source`` and ``models-data-source`` use the address and scheme they are given."""

import re
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest
from data_layer.certificates import make_ca, make_leaf

from epp.data_layer.plugins import Page, PageClient
from epp.scheduling import Endpoint
from epp_plugins.data_sources.http_sources import (
    MetricsDataSource,
    MetricsParams,
    ModelsDataSource,
    ModelsParams,
)


class NoClient:
    async def get(self) -> Page:
        raise AssertionError("nobody asks")

    def close(self) -> None:
        pass


class Opened:
    """Takes the place of ``open_page`` and remembers what was opened."""

    def __init__(self) -> None:
        self.address = ""
        self.path = ""
        self.tls: ssl.SSLContext | None = None

    def __call__(self, address: str, path: str, tls: ssl.SSLContext | None = None, /) -> PageClient:
        self.address, self.path, self.tls = address, path, tls
        return NoClient()


def make_source(opened: Opened, **parameters: Any) -> MetricsDataSource:
    params = msgspec.convert(parameters, MetricsParams)
    return MetricsDataSource("source", params, open_page=opened)


@pytest.mark.parametrize(
    ("endpoint", "parameters", "address", "path"),
    [
        pytest.param("10.0.0.1:8000", {}, "10.0.0.1:8000", "/metrics", id="the defaults"),
        pytest.param(
            "10.0.0.1:8000",
            {"port": 9100, "path": "/prometheus/metrics"},
            "10.0.0.1:9100",
            "/prometheus/metrics",
            id="another port and path",
        ),
        pytest.param("[fd00::1]:8000", {"port": 9100}, "[fd00::1]:9100", "/metrics", id="IPv6"),
        pytest.param("10.0.0.1:80", {"path": "m"}, "10.0.0.1:80", "/m", id="a path without slash"),
    ],
)
def test_where_an_endpoint_is_asked(
    endpoint: str, parameters: dict[str, Any], address: str, path: str
) -> None:
    opened = Opened()
    make_source(opened, **parameters).open(Endpoint("ns/a", endpoint))
    assert (opened.address, opened.path, opened.tls) == (address, path, None)


def test_models_are_asked_for_at_their_own_path() -> None:
    opened = Opened()
    source = ModelsDataSource("models", ModelsParams(interval="10s"), open_page=opened)
    source.open(Endpoint("ns/a", "10.0.0.1:8000"))
    assert opened.path == "/v1/models"
    assert source.interval_seconds == 10.0


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [("", 0.0), ("0", 0.0), ("200ms", 0.2), ("1m30s", 90.0)],
)
def test_intervals_are_durations(interval: str, seconds: float) -> None:
    assert make_source(Opened(), interval=interval).interval_seconds == seconds


def tls_of(**parameters: Any) -> ssl.SSLContext:
    opened = Opened()
    make_source(opened, scheme="https", **parameters).open(Endpoint("ns/a", "10.0.0.1:8000"))
    assert opened.tls is not None
    return opened.tls


def test_the_systems_certificates_are_loaded_only_to_be_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: loaded.append(None))
    (tmp_path / "ca.pem").write_bytes(make_ca().pem)
    tls_of()
    tls_of(insecureSkipVerify=False, caCertPath=str(tmp_path / "ca.pem"))
    assert not loaded
    tls_of(insecureSkipVerify=False)
    assert loaded


def test_https_trusts_anybody_unless_told_otherwise(tmp_path: Path) -> None:
    anybody = tls_of()
    assert (anybody.verify_mode, anybody.check_hostname) == (ssl.CERT_NONE, False)
    system = tls_of(insecureSkipVerify=False)
    assert (system.verify_mode, system.check_hostname) == (ssl.CERT_REQUIRED, True)
    (tmp_path / "ca.pem").write_bytes(make_ca().pem)
    own = tls_of(insecureSkipVerify=False, caCertPath=str(tmp_path / "ca.pem"))
    assert (own.verify_mode, own.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(own.get_ca_certs()) == 1


def test_an_authority_that_nothing_is_checked_against_causes_a_warning(tmp_path: Path) -> None:
    (warning,) = make_source(Opened(), scheme="https", caCertPath="/ca.pem").warnings
    assert warning == (
        "caCertPath has no effect unless insecureSkipVerify is false: any certificate is accepted;"
        " set insecureSkipVerify: false, or remove caCertPath"
    )
    assert not make_source(Opened(), scheme="https").warnings
    (tmp_path / "ca.pem").write_bytes(make_ca().pem)
    checked = {"insecureSkipVerify": False, "caCertPath": str(tmp_path / "ca.pem")}
    assert not make_source(Opened(), scheme="https", **checked).warnings


def test_a_client_certificate_is_loaded(tmp_path: Path) -> None:
    chain, key = make_leaf(make_ca(), tmp_path, address="10.0.0.9")
    assert tls_of(clientCertPath=str(chain), clientKeyPath=str(key)) is not None


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"scheme": "ftp"}, "`$.scheme`", id="scheme"),
        pytest.param({"port": 70000}, "`$.port`", id="port"),
        pytest.param({"path": "/a b"}, "`$.path`", id="blank in the path"),
        pytest.param({"path": "/a\n"}, "`$.path`", id="line end in the path"),
        pytest.param({"pth": "/a"}, "unknown field `pth`", id="unknown field"),
        pytest.param({"interval": "soon"}, "`soon` is not a duration", id="interval"),
        pytest.param(
            {"scheme": "https", "insecureSkipVerify": False, "caCertPath": "/no/ca.pem"},
            "caCertPath: /no/ca.pem: No such file or directory",
            id="no authority",
        ),
        pytest.param(
            {"scheme": "https", "clientCertPath": "c"},
            "clientCertPath and clientKeyPath: give both or none",
            id="half a client certificate",
        ),
        pytest.param(
            {"scheme": "https", "clientCertPath": "/no/c", "clientKeyPath": "/no/k"},
            "clientCertPath: /no/c with clientKeyPath /no/k: No such file or directory",
            id="no client certificate",
        ),
    ],
)
def test_wrong_parameters_are_refused_by_field(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_source(Opened(), **parameters)


def test_an_authority_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    with pytest.raises(ValueError, match=r"caCertPath: .*ca\.pem: "):
        tls_of(insecureSkipVerify=False, caCertPath=str(path))
