"""The flags of the metrics port."""

import pytest
from structlog.testing import capture_logs

from epp.cli.metrics_options import metrics_tls, warn_of_open_metrics, warn_of_open_token


def test_without_a_certificate_the_port_speaks_plain_http() -> None:
    assert metrics_tls("", "") is None


def test_client_certificates_need_one_of_the_servers() -> None:
    with pytest.raises(ValueError, match=r"--metrics-client-ca-file: .* --metrics-cert-dir"):
        metrics_tls("", "ca.crt")


@pytest.mark.parametrize(("authorities", "warnings"), [("", 1), ("ca.crt", 0)])
def test_a_port_open_to_all_is_warned_of(authorities: str, warnings: int) -> None:
    tls = metrics_tls("certs", authorities)
    assert tls is not None
    files = [str(path) for path in tls.files]
    assert files == ["certs/tls.crt", "certs/tls.key", *([authorities] if authorities else [])]
    with capture_logs() as lines:
        warn_of_open_metrics(tls)
    assert len(lines) == warnings
    if lines:
        assert "--metrics-client-ca-file" in lines[0]["remedy"]


@pytest.mark.parametrize(
    ("host", "certificates", "warnings"),
    [
        ("0.0.0.0", "", 1),
        ("::", "", 1),
        ("10.0.0.1", "", 1),
        ("0.0.0.0", "certs", 0),
        ("127.0.0.1", "", 0),
        ("::1", "", 0),
        ("localhost", "", 0),
    ],
)
def test_a_token_that_others_could_read_is_warned_of(
    host: str, certificates: str, warnings: int
) -> None:
    with capture_logs() as lines:
        warn_of_open_token(host, metrics_tls(certificates, ""))
    assert len(lines) == warnings
