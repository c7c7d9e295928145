"""Metrics of the ports."""

from prometheus_client import CollectorRegistry, generate_latest

from epp.observability import PortCollector
from epp.sockets import PortStatistics


def test_every_port_tells_of_its_connections() -> None:
    registry = CollectorRegistry()
    figures = PortStatistics(
        connections=1, limit=2, evicted=3, refused=4, timed_out=5, accept_pauses=6
    )
    registry.register(PortCollector(lambda: {"health": figures}))
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'llm_d_epp_port_connections{port="health"} 1.0',
        'llm_d_epp_port_connections_limit{port="health"} 2.0',
        'llm_d_epp_port_connections_closed_total{port="health",reason="evicted"} 3.0',
        'llm_d_epp_port_connections_closed_total{port="health",reason="refused"} 4.0',
        'llm_d_epp_port_connections_closed_total{port="health",reason="timeout"} 5.0',
        'llm_d_epp_port_accept_pauses_total{port="health"} 6.0',
    ):
        assert line in lines
    page = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert (
        0 < float(page["llm_d_epp_descriptors_open"]) < float(page["llm_d_epp_descriptors_limit"])
    )
