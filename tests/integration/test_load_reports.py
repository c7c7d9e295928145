"""Servers report their load in responses: the endpoint picker knows it without a scrape."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from epp.app import Transport
from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from tools.harness.gateway import NO_FAULTS, Gateway, in_each_mode, running

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), in_each_mode]

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: orca-load-metrics-reader, parameters: {format: %s}}
"""
HOUR = 3600.0
REPORT = "endpoint-load-metrics"
ASK = "endpoint-load-metrics-format"
FORMATS = {Mode.LEAN: "JSON"}
"""Format to ask for, TEXT where none is named."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unscraped(mode: Mode, transport: Transport) -> AsyncIterator[Gateway]:
    """A gateway that scrapes its two servers at the start, and not again."""
    async with running(
        mode,
        transport=transport,
        fleet=FleetConfig(endpoints=2, time_scale=0.01),
        config=CONFIG % FORMATS.get(mode, "TEXT"),
        refresh_seconds=HOUR,
    ) as gateway:
        yield gateway
        assert await gateway.faults() == NO_FAULTS


def set_waiting(gateway: Gateway, *counts: int) -> None:
    """Change the numbers of waiting requests that the servers report."""
    for server, count in zip(gateway.fleet.servers, counts, strict=True):
        server.engine.config = replace(server.engine.config, phantom_waiting=count)


async def served(gateway: Gateway) -> list[str]:
    """Send six requests, one after the other; return who has served them."""
    responses = [await gateway.completion() for _ in range(6)]
    assert {response.status_code for response in responses} == {200}
    assert not any(REPORT in response.headers for response in responses)
    return [response.headers["x-served-by"].removeprefix("endpoint-") for response in responses]


async def test_one_response_is_enough_to_know_that_a_server_is_busy(unscraped: Gateway) -> None:
    set_waiting(unscraped, 5, 9)
    while [e.metrics.waiting_requests for e in unscraped.app.pool.store.snapshot] != [5, 9]:
        assert (await unscraped.completion()).status_code == 200
    assert set(await served(unscraped)) == {"0"}
    # Server 0 tells so in the first response, and from then on the other one has less.
    set_waiting(unscraped, 20, 9)
    assert await served(unscraped) == ["0", "1", "1", "1", "1", "1"]
    set_waiting(unscraped, 0, 30)
    assert await served(unscraped) == ["1", "0", "0", "0", "0", "0"]
    assert [server.counters.scrapes for server in unscraped.fleet.servers] == [1, 1]


async def test_a_client_that_asks_for_the_report_gets_it(unscraped: Gateway) -> None:
    body = {"model": "tiny", "prompt": "Hello"}
    url = f"{unscraped.url}/v1/completions"
    response = await unscraped.client.post(url, json=body, headers={ASK: "json"})
    assert response.headers[REPORT].startswith('JSON {"named_metrics": {"kv_cache_usage_perc": ')


async def test_a_stream_has_no_report_and_changes_nothing(unscraped: Gateway) -> None:
    before = [endpoint.metrics for endpoint in unscraped.app.pool.store.snapshot]
    response = await unscraped.completion(stream=True)
    assert response.text.endswith("data: [DONE]\n\n")
    assert [endpoint.metrics for endpoint in unscraped.app.pool.store.snapshot] == before


async def test_the_metrics_page_counts_the_reports(unscraped: Gateway) -> None:
    await unscraped.completion()
    page = await unscraped.client.get(f"http://127.0.0.1:{unscraped.ports.metrics}/metrics")
    (line,) = [
        line
        for line in page.text.splitlines()
        if line.startswith("llm_d_epp_orca_load_reports_total{")
    ]
    assert 'outcome="used"' in line
