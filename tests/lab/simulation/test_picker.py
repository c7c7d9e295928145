"""The endpoint picker in a simulation: its scrapes and its queue."""

import asyncio
from pathlib import Path
from statistics import fmean

import pytest
from lab.simulation.simulated import ENGINE, outcome, scenario
from lab.simulation.simulated_exchange import ListeningExchange

from epp.data_layer import ObjectFileError, Page
from epp.lab.fleet import EngineConfig
from epp.lab.simulation import Contender, RunSettings, run_virtual, simulate
from epp.lab.simulation.prompts import PromptBlocks, SimulatedRequest
from epp.lab.simulation.scraping import ServerPage, engine_metrics
from epp.lab.simulation.servers import SimulatedServer
from epp.lab.simulation.virtual_loop import running_virtual_loop
from epp.lab.traffic import Segment, TrafficRequest
from epp.scheduling import EndpointMetrics
from epp.testing import make_endpoint, make_plugin
from epp_plugins.data_sources.core_metrics import CoreMetricsExtractor

CONFIG = Path(__file__).parents[3] / "deploy" / "config"


def _exchange(index: int, adapter: str) -> ListeningExchange:
    traffic = TrafficRequest(
        index=index, segments=(Segment(index, 600),), output_tokens=200, adapter=adapter
    )
    return ListeningExchange(SimulatedRequest(traffic, {}, PromptBlocks()))


@pytest.mark.parametrize("adapters", [(), ("red", "blue")])
def test_what_is_read_at_once_is_what_the_page_says(adapters: tuple[str, ...]) -> None:
    extractor = make_plugin(CoreMetricsExtractor)

    async def compare() -> None:
        loop = running_virtual_loop()
        config = EngineConfig(num_blocks=600, max_num_seqs=3, adapters=adapters, max_loras=2)
        server = SimulatedServer(0, config, loop)
        metrics = EndpointMetrics()
        for moment in range(12):
            if moment < 6:
                server.submit(_exchange(moment, adapters[moment % 2] if adapters else ""))
            await asyncio.sleep(0.0501)
            metrics = engine_metrics(server, loop.time(), metrics)
            page = await ServerPage(server, "/metrics", loop.time).get()
            assert isinstance(page, Page)
            endpoint = make_endpoint("default/a")
            extractor.extract(endpoint, page)
            read = endpoint.metrics
            assert read.running_requests == metrics.running_requests
            assert read.waiting_requests == metrics.waiting_requests
            assert read.kv_cache_usage == pytest.approx(metrics.kv_cache_usage, abs=1e-6)
            assert read.active_adapters == metrics.active_adapters
            assert read.waiting_adapters == metrics.waiting_adapters
            assert read.max_adapters == metrics.max_adapters
            assert (read.cache_blocks, read.cache_block_size) == (600, 16)
            assert (read.prompt_tokens, read.prompts) == (metrics.prompt_tokens, metrics.prompts)
            assert metrics.requested_at == loop.time()

    run_virtual(compare)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "metrics-garbled"},
        {"kind": "metrics-missing"},
        {"kind": "metrics-stale"},
        {"kind": "metrics-slow", "delay": "200ms"},
        {"kind": "metrics-partial"},
    ],
    ids=lambda fault: fault["kind"],
)
@pytest.mark.filterwarnings("ignore")
def test_bad_metrics_cost_no_request(fault: dict[str, str]) -> None:
    given = scenario(faults=[{**fault, "at": "300ms", "worker": 1}])
    assert all(record.succeeded for record in outcome(given, "reference-weighted").records)


def test_a_dead_server_is_ejected_and_gets_no_request() -> None:
    given = scenario(faults=[{"kind": "refuse", "at": "500ms", "worker": 1}])
    late = [each for each in outcome(given, "reference-weighted").records if each.started_at > 1.0]
    assert late
    assert {each.served_by for each in late} <= {"worker-0", "worker-2", "worker-3"}
    chosen = {each.epp.endpoint for each in late if each.epp is not None}
    assert "default/worker-001" not in chosen


def test_flow_control_queues_on_the_virtual_clock() -> None:
    traffic = {
        "generator": "random",
        "prompt_tokens": 1000,
        "output_tokens": 100,
        "arrivals": {"rate": 60},
        "limit": 120,
    }
    given = scenario(traffic, workers=2, engine=ENGINE | {"max_num_seqs": 4})
    contender = Contender.of_config(CONFIG / "flow-control.yaml")
    records = simulate(RunSettings(scenario=given), contender, 1).records
    waited = [each.epp.queue_seconds for each in records if each.epp and each.epp.queue_seconds]
    assert max(waited) > 1.0
    assert len(records) == 120


def test_the_predicted_prefix_is_that_of_the_index() -> None:
    traffic = {
        "generator": "shared-prefix",
        "groups": 1,
        "system_tokens": 1600,
        "question_tokens": 64,
        "output_tokens": 5,
        "arrivals": {"rate": 2},
        "limit": 6,
    }
    records = outcome(scenario(traffic, workers=1), "reference-weighted").records
    assert [each.epp.predicted_cached_tokens for each in records if each.epp][:1] == [0]
    for record in records[1:]:
        assert record.epp is not None
        assert record.epp.predicted_cached_tokens == pytest.approx(record.cached_tokens, abs=64)


def test_a_run_may_end_just_after_a_server_has_rested() -> None:
    traffic = {
        "generator": "random",
        "prompt_tokens": 32,
        "output_tokens": 1,
        "arrivals": {"process": "constant", "rate": 0.2},
        "limit": 2,
    }
    records = outcome(scenario(traffic), "reference-weighted").records
    assert [record.error for record in records] == [None, None]


QUEUED = {
    "generator": "random",
    "prompt_tokens": 1000,
    "output_tokens": 100,
    "arrivals": {"rate": 60},
    "limit": 120,
    "objectives": {"critical": 1, "": 3},
}


def _queued(objects: tuple[Path, ...]) -> dict[str, float]:
    """Return the mean time in the queue by objective."""
    given = scenario(QUEUED, workers=2, engine=ENGINE | {"max_num_seqs": 4})
    contender = Contender.of_config(CONFIG / "flow-control.yaml")
    records = simulate(RunSettings(scenario=given, objects=objects), contender, 1).records
    waits: dict[str, list[float]] = {}
    for each in records:
        if each.epp is not None and each.epp.queue_seconds is not None:
            waits.setdefault(each.objective, []).append(each.epp.queue_seconds)
    return {objective: fmean(seconds) for objective, seconds in waits.items()}


def test_requests_of_an_objective_with_priority_wait_less() -> None:
    ranked = _queued((CONFIG.parent / "objects",))
    assert ranked["critical"] < 0.5 * ranked[""]
    equal = _queued(())
    assert equal["critical"] > 0.7 * equal[""]


def test_an_invalid_file_of_objects_is_named(tmp_path: Path) -> None:
    path = tmp_path / "objective.yaml"
    path.write_text("kind: InferenceObjective\nspec: 3\n")
    with pytest.raises(ObjectFileError, match=r"objective\.yaml"):
        _queued((path,))
