"""``multicluster-file-discovery`` accepts host names, and labels for the metrics address."""

from pathlib import Path

import msgspec
import pytest

from epp.data_layer.plugins import DiscoveryError, EndpointSpec
from epp_plugins.data_sources.endpoints_file import is_host_name, parse
from epp_plugins.multicluster.discovery import MulticlusterFileDiscovery, metrics_address

PATH = Path("clusters.yaml")


def clusters(address: str, **labels: str) -> list[EndpointSpec]:
    entry = {"name": "east", "address": address, "port": 443, "labels": labels}
    content = msgspec.json.encode({"endpoints": [entry]})
    return parse(PATH, content, MulticlusterFileDiscovery.rules)


@pytest.mark.parametrize(
    ("address", "want"),
    [
        ("gateway.east.example.com", "gateway.east.example.com:443"),
        ("gateway.", "gateway.:443"),
        ("10.0.0.1", "10.0.0.1:443"),
        ("fd00::1", "[fd00::1]:443"),
    ],
)
def test_a_cluster_is_a_host_or_an_address(address: str, want: str) -> None:
    assert clusters(address) == [EndpointSpec("default/east", want)]


@pytest.mark.parametrize(
    "address", ["", "a b", "-a", "a-.b", "a..b", ".", "a_b", "1.2.3", "x" * 64, "a." * 127 + "a"]
)
def test_what_is_neither_is_refused(address: str) -> None:
    assert not is_host_name(address)
    with pytest.raises(DiscoveryError, match=r"host name - at `\$.endpoints\[0\].address`"):
        clusters(address)


def test_file_discovery_still_takes_addresses_alone() -> None:
    with pytest.raises(DiscoveryError, match=r"'a\.b' is not an IPv4 or IPv6 address; host"):
        parse(PATH, b'{"endpoints": [{"name": "a", "address": "a.b", "port": 1}]}')


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        ({}, None),
        ({"metricsPort": "9090"}, None),
        ({"metricsAddress": "epp.east"}, "epp.east:443"),
        ({"metricsAddress": "10.0.0.9", "metricsPort": "9090"}, "10.0.0.9:9090"),
        ({"metricsAddress": "fd00::9", "metricsPort": "9090"}, "[fd00::9]:9090"),
    ],
)
def test_labels_tell_where_the_metrics_are(labels: dict[str, str], want: str | None) -> None:
    assert clusters("gateway", **labels)[0].labels == labels
    assert metrics_address("gateway:443", labels) == want


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"metricsAddress": "a b"}, "metricsAddress 'a b' is not an IP address or a host name"),
        ({"metricsAddress": "fe80::1%eth0"}, "is not an IP address"),
        ({"metricsAddress": "a", "metricsPort": "0"}, "metricsPort: port '0' is not a number"),
        ({"metricsAddress": "a", "metricsPort": "http"}, "metricsPort: port 'http'"),
    ],
)
def test_labels_that_tell_nonsense_make_the_file_faulty(
    labels: dict[str, str], message: str
) -> None:
    with pytest.raises(DiscoveryError, match=message) as refused:
        clusters("gateway", **labels)
    assert str(refused.value).endswith("at `$.endpoints[0].labels`")
