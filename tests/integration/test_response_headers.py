"""`--emit-decision-header` through a real Envoy: the header's content, and its requests."""

import re

import pytest
from structlog.testing import capture_logs

from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from tools.harness.gateway import running

from .queueing import CONFIG, ask, occupied, waiting

pytestmark = pytest.mark.integration

THREE = FleetConfig(endpoints=3, time_scale=0.05)
DECISION = re.compile(
    r"default/(?P<endpoint>[\w-]+);score=(?P<score>[\d.]+);margin=[\d.]+;queued=0\.000"
)


@pytest.mark.parametrize("mode", [Mode.LEAN, Mode.FULL_DUPLEX])
async def test_a_response_names_its_endpoint_and_its_id(mode: Mode) -> None:
    on = {"emit_decision_header": True}
    async with running(mode, fleet=THREE, labels={}, serve=on) as gateway:
        with capture_logs() as logs:
            responses = [
                await gateway.completion(prompt=f"{number}", stream=number % 2 == 1)
                for number in range(4)
            ]
            await gateway.settled()
        for response in responses:
            decision = DECISION.fullmatch(response.headers["x-epp-decision"])
            assert decision is not None, response.headers["x-epp-decision"]
            assert decision["endpoint"] == response.headers["x-served-by"]
            assert float(decision["score"]) > 0
        ids = [each["request_id"] for each in logs if each["event"] == "request finished"]
        assert [response.headers["x-request-id"] for response in responses] == ids
        assert len(set(ids)) == 4
        # A response of the endpoint picker itself has the id, and no decision.
        refused = await gateway.client.post(f"{gateway.url}/v1/completions", content=b"{")
        assert refused.status_code == 400
        assert refused.headers["x-request-id"] == refused.json()["error"]["request_id"]
        assert "x-epp-decision" not in refused.headers


async def test_a_response_tells_how_long_its_request_has_waited() -> None:
    on = {"emit_decision_header": True}
    async with running(
        fleet=FleetConfig(endpoints=1), config=CONFIG, labels={}, serve=on
    ) as gateway:
        async with occupied(gateway):
            patient = ask(gateway)
            await waiting(gateway, 1)
        decision = (await patient).headers["x-epp-decision"]
        assert re.fullmatch(r"default/endpoint-0;score=1;queued=\d+\.\d{3}", decision)
        page = f"http://127.0.0.1:{gateway.ports.metrics}/debug/decisions?limit=1"
        (line,) = (await gateway.client.get(page)).json()["decisions"]
        assert float(decision.rpartition("=")[2]) == pytest.approx(
            line["queued_seconds"], abs=0.001
        )


async def test_it_is_off_by_default() -> None:
    async with running(fleet=THREE) as gateway:
        headers = (await gateway.completion()).headers
    assert {"x-epp-decision", "x-request-id"}.isdisjoint(headers)
