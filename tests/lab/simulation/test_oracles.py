"""The holding oracle: its knowledge, its held requests, and that no policy beats it."""

import asyncio
from typing import Any

import pytest
from lab.simulation.simulated import outcome, scenario
from lab.simulation.simulated_exchange import ListeningExchange

from epp.lab.fleet import EngineConfig
from epp.lab.simulation import Contender, RunSettings, run, run_virtual
from epp.lab.simulation.forecasts import Forecast
from epp.lab.simulation.prompts import PromptBlocks, SimulatedRequest
from epp.lab.simulation.servers import SimulatedServer
from epp.lab.simulation.virtual_loop import running_virtual_loop
from epp.lab.traffic import Segment, TrafficRequest

SERIAL = {"preset": "study-a", "num_blocks": 4000, "max_model_len": 64_000}
BATCHING = {"preset": "study-b", "num_blocks": 4000, "max_model_len": 64_000, "speed": 0.1}
UNEQUAL = {
    "generator": "shared-prefix",
    "groups": 20,
    "system_tokens": 1500,
    "question_tokens": "lognormal:300:2000",
    "output_tokens": 20,
    "arrivals": {"rate": 9},
    "limit": 300,
}


def make_request(index: int, prompt: int, *, shared: int = 0, output: int = 10) -> SimulatedRequest:
    """Return a request; the first `shared` tokens of its prompt are the same in all."""
    segments = (Segment(-1, shared), Segment(index, prompt - shared))
    traffic = TrafficRequest(
        index=index, segments=segments[not shared :], output_tokens=output, arrives_at=0.0
    )
    return SimulatedRequest(traffic, {}, PromptBlocks())


def after(
    config: EngineConfig, before: list[SimulatedRequest], asked: SimulatedRequest
) -> tuple[Forecast, float]:
    """Return the forecast for a request behind others, and its time to first token."""

    async def measure() -> tuple[Forecast, float]:
        loop = running_virtual_loop()
        server = SimulatedServer(0, config, loop)
        came = asyncio.Event()

        for each in before:
            server.submit(ListeningExchange(each))
        await asyncio.sleep(0.013)
        began = loop.time()
        forecast = server.forecast(asked, began)
        server.submit(ListeningExchange(asked, came.set))
        await came.wait()
        return forecast, loop.time() - began

    return run_virtual(measure)


@pytest.mark.parametrize(
    ("settings", "before", "asked"),
    [
        pytest.param({}, [], make_request(9, 1000), id="an idle server"),
        pytest.param({}, [make_request(1, 800)], make_request(9, 1000), id="a prompt before"),
        pytest.param(
            {}, [make_request(1, 1500, shared=960)], make_request(9, 1500, shared=960), id="a hit"
        ),
        pytest.param(
            {"max_num_prefills": 1},
            [make_request(each, 1500, shared=960) for each in (1, 2, 3)],
            make_request(9, 1500, shared=960),
            id="hits of prompts in the queue",
        ),
        pytest.param(
            {"max_num_seqs": 2},
            [make_request(1, 160, output=50), make_request(2, 160, output=90)],
            make_request(9, 160),
            id="a full batch",
        ),
        pytest.param(
            {"num_blocks": 100, "max_model_len": 1600},
            [make_request(1, 1280, output=100)],
            make_request(9, 480),
            id="a full KV cache",
        ),
    ],
)
def test_a_forecast_comes_true(
    settings: dict[str, Any], before: list[SimulatedRequest], asked: SimulatedRequest
) -> None:
    forecast, seconds = after(EngineConfig(**settings), before, asked)
    assert forecast.first_token == pytest.approx(seconds, rel=0.08, abs=0.005)


def test_scarce_blocks_cost_the_time_for_which_they_are_held() -> None:
    few, _ = after(
        EngineConfig(num_blocks=100, max_model_len=1600), [], make_request(9, 1440, output=100)
    )
    many, _ = after(EngineConfig(num_blocks=10_000), [], make_request(9, 1440, output=100))
    # 90 of 100 blocks: half way from 80 to 100 %, for 100 steps of 10.5 ms.
    assert few.held == pytest.approx(0.5 * 0.9 * 1.05)
    assert many.held == 0
    assert few.own == many.own


@pytest.mark.parametrize("engine", [SERIAL, BATCHING])
def test_no_policy_beats_it_on_unequal_servers(engine: dict[str, Any]) -> None:
    slow = [{"kind": "straggler", "at": 0, "worker": 0, "speed": 0.33}]
    given = scenario(UNEQUAL, engine=engine, faults=slow)
    p90 = {}
    for name in ("oracle-holding", "least-request", "reference-weighted", "reference-affinity"):
        summary = run(RunSettings(scenario=given), Contender.of_policy(name), 1).summary
        assert summary.ttft_ms is not None
        p90[name] = summary.ttft_ms.p90
    assert min(p90, key=p90.__getitem__) == "oracle-holding"


def test_it_holds_requests_while_all_servers_are_busy() -> None:
    given = scenario(UNEQUAL | {"limit": 60, "arrivals": {"rate": 40}}, engine=SERIAL, workers=2)
    records = outcome(given, "oracle-holding").records
    assert all(record.succeeded for record in records)
    waits, inside = [], []
    for record in records:
        account = record.server
        assert account is not None
        assert account.arrived_at is not None
        assert account.admitted_at is not None
        waits.append(account.arrived_at - record.started_at)
        inside.append(account.admitted_at - account.arrived_at)
    assert max(waits) > 1
    assert max(inside) < 1  # in a server, only behind the prompt in progress


def test_a_held_request_whose_client_gives_up_is_dropped() -> None:
    traffic = UNEQUAL | {"limit": 60, "arrivals": {"rate": 40}}
    given = scenario(traffic, engine=SERIAL, workers=1, timeout="3s")
    records = outcome(given, "oracle-holding").records
    assert {record.error_label for record in records if not record.succeeded} == {"timeout"}
    assert any(record.worker == "" or record.worker is None for record in records)


def test_servers_that_are_down_get_nothing_while_another_works() -> None:
    given = scenario(faults=[{"kind": "refuse", "at": 0, "worker": [0, 1, 2]}])
    result = outcome(given, "oracle-holding")
    assert result.worker_requests == [0, 0, 0, 40]


def test_requests_are_not_held_if_no_server_works() -> None:
    given = scenario(faults=[{"kind": "refuse", "at": 0, "worker": [0, 1, 2, 3]}])
    assert {record.status for record in outcome(given, "oracle-holding").records} == {503}
