"""The transport's metrics on the page."""

from prometheus_client import CollectorRegistry, generate_latest

from epp.observability.transport_metrics import CertificateCollector, TransportCollector
from epp.transport import TransportStatistics

FIGURES = TransportStatistics(
    connections=2,
    streams=30,
    waiting_bytes=400,
    buffered_bytes=6000,
    header_cache_bytes=5000,
    connections_total=6,
    streams_total=70,
    header_cache_hits=68,
    header_cache_misses=2,
    refused={"stream": 8, "call": 9},
    ended={"timeout": 10, "ENHANCE_YOUR_CALM": 11},
    held_back={"stream_full": 12},
    broken_off={"deadline": 13},
)


def test_every_figure_is_on_the_page_under_its_name() -> None:
    registry = CollectorRegistry()
    registry.register(TransportCollector(lambda: FIGURES))
    lines = generate_latest(registry).decode().splitlines()
    assert {line for line in lines if not line.startswith("#")} == {
        "llm_d_epp_transport_connections 2.0",
        "llm_d_epp_transport_streams 30.0",
        "llm_d_epp_transport_waiting_bytes 400.0",
        "llm_d_epp_transport_buffered_bytes 6000.0",
        "llm_d_epp_transport_header_cache_bytes 5000.0",
        "llm_d_epp_transport_connections_total 6.0",
        "llm_d_epp_transport_streams_total 70.0",
        "llm_d_epp_transport_header_cache_hits_total 68.0",
        "llm_d_epp_transport_header_cache_misses_total 2.0",
        'llm_d_epp_transport_refused_total{what="stream"} 8.0',
        'llm_d_epp_transport_refused_total{what="call"} 9.0',
        'llm_d_epp_transport_connections_ended_total{reason="timeout"} 10.0',
        'llm_d_epp_transport_connections_ended_total{reason="ENHANCE_YOUR_CALM"} 11.0',
        'llm_d_epp_transport_held_back_total{what="stream_full"} 12.0',
        'llm_d_epp_transport_streams_broken_off_total{reason="deadline"} 13.0',
    }


def test_the_certificate_and_its_reloads_are_on_the_page() -> None:
    registry = CollectorRegistry()
    registry.register(CertificateCollector(lambda: 1.9e9, lambda: {"success": 3, "failure": 1}))
    lines = generate_latest(registry).decode().splitlines()
    assert {line for line in lines if not line.startswith("#")} == {
        "llm_d_epp_transport_certificate_expiry_timestamp_seconds 1.9e+09",
        'llm_d_epp_transport_certificate_reloads_total{result="success"} 3.0',
        'llm_d_epp_transport_certificate_reloads_total{result="failure"} 1.0',
    }
