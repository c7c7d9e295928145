"""File descriptors of the process, divided among its ports and the pool."""

import pytest
from structlog.testing import capture_logs

import epp.descriptors
from epp.config import default_config
from epp.data_layer import EndpointStore
from epp.data_layer.plugins import EndpointSpec
from epp.descriptors import PoolDescriptors, PortLimits, share_descriptors
from epp.settings import ServeSettings
from epp.sockets import DescriptorDemand, DescriptorLimit, share_out
from epp.transport import TransportSettings


def limits_with(monkeypatch: pytest.MonkeyPatch, soft: int, settings: ServeSettings) -> PortLimits:
    monkeypatch.setattr(epp.descriptors, "descriptor_limit", lambda: DescriptorLimit(soft, soft))
    return share_descriptors(settings, sources=1)[1]


def test_with_enough_descriptors_every_port_has_what_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ServeSettings(
        config=default_config(),
        transport_settings=TransportSettings().with_values({"max_connections": 100}),
        max_metrics_connections=7,
    )
    with capture_logs() as logs:
        limits = limits_with(monkeypatch, 20_000, settings)
    assert limits == PortLimits(ext_proc=100, health=256, metrics=7)
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("descriptors shared out", "info")
    assert (line["limit"], line["ext_proc_connections"]) == (20_000, 100)


def test_with_too_few_every_port_has_less_and_the_log_says_how_many_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ServeSettings(config=default_config())
    with capture_logs() as logs:
        limits = limits_with(monkeypatch, 1024, settings)
    (line,) = logs
    assert line["log_level"] == "warning"
    assert "ulimit -Hn" in line["remedy"]
    given = limits.ext_proc + limits.health + limits.metrics + line["scrape_connections"]
    assert given < 1024 - 128
    with capture_logs() as logs:
        enough = limits_with(monkeypatch, line["needed"], settings)
    assert enough == PortLimits(ext_proc=1024, health=256, metrics=64)
    assert logs[0]["log_level"] == "info"


def test_a_large_pool_of_the_command_line_is_provided_for(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = tuple(f"10.0.{number // 250}.{number % 250}:1" for number in range(1000))
    settings = ServeSettings(config=default_config(), endpoints=endpoints)
    with capture_logs() as logs:
        limits_with(monkeypatch, 2000, settings)
    assert logs[0]["log_level"] == "warning"
    # 1024 and a 16th, 256 and a 16th, 64, one for each of the 1000, 64 for the process, 64 spare.
    assert logs[0]["needed"] == 1088 + 272 + 64 + 1000 + 128


def test_a_pool_that_outgrows_its_share_is_warned_of_once() -> None:
    store = EndpointStore()
    shares = share_out(200, DescriptorDemand(ext_proc=20, health=10, metrics=10, scrapes=10))
    assert shares.scrapes == 32
    store.add_listener(PoolDescriptors(store, shares, lambda: 2 * len(store.snapshot)))

    def grow_to(count: int) -> None:
        specs = [EndpointSpec(f"ns/{number}", f"10.0.0.1:{number + 1}") for number in range(count)]
        store.replace_endpoints("test", specs)

    with capture_logs() as logs:
        grow_to(16)
        assert not [line for line in logs if line["log_level"] == "warning"]
        grow_to(17)
        grow_to(30)
        grow_to(0)
    (line,) = (line for line in logs if line["log_level"] == "warning")
    assert line["event"] == "too few descriptors for the pool"
    assert line["scrape_connections"] > line["available"] == 32
