"""Prefill and decode on separate servers, as deploy/config/pd.yaml routes them."""

from pathlib import Path
from typing import Any

import pytest
from lab.simulation.simulated import ENGINE, scenario

from epp.lab.results import ErrorKind
from epp.lab.simulation import Contender, RunSettings, SimulationResult, simulate

PD = Contender.of_config(Path(__file__).parents[3] / "deploy" / "config" / "pd.yaml")
ROLES = {"0": {"llm-d.ai/role": "prefill"}, "1-2": {"llm-d.ai/role": "decode"}}
TRAFFIC = {
    "generator": "random",
    "prompt_tokens": 2000,
    "output_tokens": 20,
    "arrivals": {"rate": 1},
    "limit": 8,
}


def _outcome(
    traffic: dict[str, Any] = TRAFFIC, engine: dict[str, Any] | None = None, **more: Any
) -> SimulationResult:
    fleet = {"workers": 3, "engine": ENGINE | (engine or {}), "labels": ROLES}
    return simulate(RunSettings(scenario=scenario(traffic, fleet=fleet, **more)), PD, 1)


def test_one_server_computes_the_prompt_and_another_one_generates() -> None:
    result = _outcome()
    assert result.worker_requests[0] == 8
    assert sum(result.worker_requests[1:]) == 8
    for record in result.records:
        assert record.succeeded
        assert record.output_tokens == 20
        assert record.served_by in {"worker-1", "worker-2"}
        assert record.cached_tokens == 0  # nobody had it: a transfer is no hit


def test_the_transfer_of_the_kv_delays_the_first_token() -> None:
    at_once, later = (
        _outcome(engine={"kv_transfer_seconds": seconds, "kv_transfer_tokens_per_second": rate})
        for seconds, rate in ((0, 0), (0.1, 10_000))
    )
    for fast, slow in zip(at_once.records, later.records, strict=True):
        assert fast.ttft_seconds is not None
        assert slow.ttft_seconds is not None
        # 0.1 s, and 1 999 tokens at 10 000 a second; the last token is computed again.
        assert slow.ttft_seconds - fast.ttft_seconds == pytest.approx(0.1 + 0.1999)


def test_a_short_prompt_is_computed_where_it_is_answered() -> None:
    result = _outcome(TRAFFIC | {"prompt_tokens": 400})
    assert result.worker_requests[0] == 0
    assert all(record.succeeded for record in result.records)


def test_a_repeated_prompt_needs_no_prefill_on_another_server() -> None:
    traffic = {
        "generator": "shared-prefix",
        "groups": 1,
        "system_tokens": 2000,
        "question_tokens": 32,
        "output_tokens": 5,
        "arrivals": {"rate": 1},
        "limit": 6,
    }
    result = _outcome(traffic)
    assert 1 <= result.worker_requests[0] < 6
    assert result.records[-1].cached_tokens >= 1984


@pytest.mark.parametrize(
    ("fault", "status"),
    [({"kind": "error", "status": 500}, 500), ({"kind": "refuse"}, 502)],
    ids=["it fails", "it refuses connections"],
)
@pytest.mark.filterwarnings("ignore")
def test_the_error_of_a_prefill_reaches_the_client(fault: dict[str, Any], status: int) -> None:
    traffic = TRAFFIC | {"arrivals": {"process": "constant", "rate": 1}}
    # Just before a request comes: the endpoint picker does not know yet.
    result = _outcome(traffic, faults=[{**fault, "at": "2.999s", "worker": 0}])
    failed = next(record for record in result.records if not record.succeeded)
    assert failed.started_at == pytest.approx(3.0)
    assert (failed.status, failed.error) == (status, ErrorKind.STATUS)
    assert failed.served_by in {"worker-1", "worker-2"}


def test_a_crash_of_the_prefill_server_fails_what_it_computes() -> None:
    traffic = TRAFFIC | {"prompt_tokens": 8000, "arrivals": {"process": "constant", "rate": 0.5}}
    engine = {"max_model_len": 16_000, "prefill_tokens_per_second": 4000}
    faults = [{"kind": "crash", "at": "1s", "for": "1h", "worker": 0}]
    records = _outcome(traffic, engine, faults=faults, timeout="30s").records
    assert records[0].status == 502
    assert records[0].finished_at == pytest.approx(1.0)


def test_a_client_that_leaves_ends_the_prefill() -> None:
    engine = {"prefill_tokens_per_second": 100}
    result = _outcome(TRAFFIC | {"limit": 1}, engine, timeout="1s")
    (record,) = result.records
    assert record.error is ErrorKind.TIMEOUT
    assert result.virtual_seconds == pytest.approx(record.started_at + 1.0)


def test_a_crash_of_the_decode_servers_cuts_requests_and_ends_their_prefill() -> None:
    engine = {"prefill_tokens_per_second": 100}
    faults = [{"kind": "crash", "at": "1s", "for": "1h", "worker": [1, 2]}]
    (record,) = _outcome(TRAFFIC | {"limit": 1}, engine, faults=faults, timeout="60s").records
    assert record.error is ErrorKind.RESET
    assert record.finished_at == pytest.approx(1.0)
