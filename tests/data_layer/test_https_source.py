"""A page over https from end to end: source, connection, extractor, endpoint."""

import ssl
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.data_layer import Scraper, page_opener
from epp_plugins.data_sources import core_metrics
from epp_plugins.data_sources.http_sources import MetricsDataSource, MetricsParams

from .certificates import make_ca, make_leaf
from .metrics_server import StartServer, page_response
from .scraping import Binding, Observer, make_store, running


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        pytest.param({}, "", id="with the certificate that the server asks for"),
        pytest.param({"insecureSkipVerify": True, "caCertPath": ""}, "", id="trusting anybody"),
        pytest.param({"clientCertPath": "", "clientKeyPath": ""}, "reset", id="without one"),
        pytest.param({"caCertPath": ""}, "connect", id="an authority the system does not know"),
        pytest.param({"scheme": "http"}, "reset", id="without TLS"),
    ],
)
async def test_a_server_that_asks_for_a_certificate(
    changed: dict[str, Any], outcome: str, start_server: StartServer, tmp_path: Path
) -> None:
    ca = make_ca()
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    chain, key = make_leaf(ca, tmp_path, address="127.0.0.1")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=ca.pem.decode())
    served.verify_mode = ssl.CERT_REQUIRED
    served.load_cert_chain(chain, key)
    server = await start_server(page_response(), served)
    parameters = {
        "scheme": "https",
        "insecureSkipVerify": False,
        "caCertPath": str(tmp_path / "ca.pem"),
        "clientCertPath": str(chain),
        "clientKeyPath": str(key),
    }
    source = MetricsDataSource(
        "source",
        msgspec.convert(parameters | changed, MetricsParams),
        open_page=page_opener(time.monotonic),
    )
    extractor = core_metrics.CoreMetricsExtractor("core", core_metrics.Params())
    store, observer = make_store(server.address), Observer()
    bindings = [Binding(source, [extractor])]
    async with running(Scraper(store, bindings, interval_seconds=0.01, observer=observer)):
        await observer.until(outcome)
    assert store.snapshot[0].metrics.waiting_requests == (0 if outcome else 3)
