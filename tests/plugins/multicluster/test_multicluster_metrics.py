"""The source scrapes each cluster at its labels' address; the extractor reads pool averages."""

import ssl
from typing import Any

import msgspec
import pytest

from epp.data_layer.plugins import Page, PageClient, PageError, ScrapeError
from epp.scheduling import Endpoint
from epp.testing import make_endpoint
from epp_plugins.multicluster.metrics import (
    ExtractorParams,
    MulticlusterMetricsDataSource,
    MulticlusterMetricsExtractor,
    SourceParams,
)
from epp_plugins.state_keys import MULTICLUSTER_KV_CACHE_UTILIZATION, MULTICLUSTER_QUEUE_SIZE

PAGE = (
    b'llm_d_epp_average_kv_cache_utilization{name="pool"} 0.25\n'
    b'llm_d_epp_average_queue_size{name="pool"} 3.5\n'
)


class Opened:
    """Takes the place of ``open_page``: clients that give their address."""

    def __init__(self) -> None:
        self.tls: list[ssl.SSLContext | None] = []
        self.closed: list[str] = []

    def __call__(self, address: str, path: str, tls: ssl.SSLContext | None = None, /) -> PageClient:
        self.tls.append(tls)
        return _Client(self, f"{address}{path}")


class _Client:
    def __init__(self, opened: Opened, place: str) -> None:
        self._opened, self._place = opened, place

    async def get(self) -> Page:
        return Page(self._place.encode(), 0.0)

    def close(self) -> None:
        self._opened.closed.append(self._place)


def make_source(opened: Opened, **parameters: Any) -> MulticlusterMetricsDataSource:
    params = msgspec.convert(parameters, SourceParams)
    return MulticlusterMetricsDataSource("source", params, open_page=opened)


def cluster(**labels: str) -> Endpoint:
    return make_endpoint("east", address="gateway.east:443", labels=labels)


async def asked(parameters: dict[str, Any], **labels: str) -> bytes:
    return (await make_source(Opened(), **parameters).open(cluster(**labels)).get()).body


@pytest.mark.parametrize(
    ("parameters", "labels", "want"),
    [
        pytest.param({}, {}, b"gateway.east:443/metrics", id="its own address"),
        pytest.param({"port": 9090}, {}, b"gateway.east:9090/metrics", id="another port"),
        pytest.param(
            {"port": 1, "path": "/m"},
            {"metricsAddress": "epp.east", "metricsPort": "9090"},
            b"epp.east:9090/m",
            id="labels go before the port",
        ),
    ],
)
async def test_where_a_cluster_is_asked(
    parameters: dict[str, Any], labels: dict[str, str], want: bytes
) -> None:
    assert await asked(parameters, **labels) == want


async def test_a_changed_label_is_followed() -> None:
    opened = Opened()
    endpoint = cluster(metricsAddress="a")
    client = make_source(opened).open(endpoint)
    assert (await client.get()).body == b"a:443/metrics"
    endpoint.labels = {"metricsAddress": "b"}
    assert (await client.get()).body == b"b:443/metrics"
    assert opened.closed == ["a:443/metrics"]
    client.close()
    client.close()
    assert opened.closed == ["a:443/metrics", "b:443/metrics"]


async def test_labels_that_tell_nonsense_are_a_failed_scrape() -> None:
    with pytest.raises(ScrapeError, match="metricsPort"):
        await asked({}, metricsAddress="a", metricsPort="x")


async def test_the_servers_certificate_is_checked_unless_told_otherwise() -> None:
    opened = Opened()
    for parameters in ({}, {"insecureSkipVerify": True}, {"scheme": "http"}):
        await make_source(opened, **parameters).open(cluster()).get()
    checked, unchecked, plain = opened.tls
    assert checked is not None
    assert (checked.verify_mode, checked.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert unchecked is not None
    assert unchecked.verify_mode is ssl.CERT_NONE
    assert plain is None


def extracted(page: bytes, endpoint: Endpoint, **parameters: str) -> tuple[object, object]:
    """Return what the extractor leaves of usage and queue."""
    params = msgspec.convert(parameters, ExtractorParams)
    try:
        MulticlusterMetricsExtractor("extractor", params).extract(endpoint, Page(page, 1.0))
    finally:
        found = (
            endpoint.attribute(MULTICLUSTER_KV_CACHE_UTILIZATION),
            endpoint.attribute(MULTICLUSTER_QUEUE_SIZE),
        )
    return found


def test_the_averages_become_attributes_and_nothing_else() -> None:
    endpoint = cluster()
    before = endpoint.metrics
    assert extracted(PAGE, endpoint) == (0.25, 3.5)
    assert endpoint.metrics is before
    assert {key.name for key in endpoint.attributes} == {
        "llm-d.ai/multicluster-kv-cache-utilization/",
        "llm-d.ai/multicluster-queue-size/",
    }


def test_names_may_be_others_and_labelled() -> None:
    page = b'usage{pool="a"} 0.5\nusage{pool="b"} 0.75\nwaits 2\n'
    named = {"kvCacheUtilizationMetric": "usage{pool=b}", "queueSizeMetric": "waits"}
    assert extracted(page, cluster(), **named) == (0.75, 2.0)


@pytest.mark.parametrize(
    ("page", "left"),
    [
        pytest.param(b"", (None, None), id="an empty page"),
        pytest.param(b"llm_d_epp_average_queue_size 1\n", (None, 1.0), id="one is missing"),
        pytest.param(PAGE.replace(b"0.25", b"NaN"), (None, 3.5), id="NaN"),
        pytest.param(PAGE.replace(b"3.5", b"-1"), (0.25, None), id="negative"),
        pytest.param(PAGE.replace(b"3.5", b"many"), (0.25, None), id="a word"),
    ],
)
def test_a_value_that_is_none_is_taken_off(page: bytes, left: tuple[object, object]) -> None:
    endpoint = cluster()
    extracted(PAGE, endpoint)
    with pytest.raises(PageError, match="no number of at least 0 for llm_d_epp_average_"):
        extracted(page, endpoint)
    keys = (MULTICLUSTER_KV_CACHE_UTILIZATION, MULTICLUSTER_QUEUE_SIZE)
    assert tuple(endpoint.attribute(key) for key in keys) == left


@pytest.mark.parametrize("field", ["kvCacheUtilizationMetric", "queueSizeMetric"])
def test_a_name_that_is_none_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: 'a b' is no metric"):
        extracted(PAGE, cluster(), **{field: "a b"})
