"""The simulated gateway with servers that refuse, fail, hang or die."""

from itertools import pairwise

import pytest
from lab.simulation.simulated import ENGINE, outcome, scenario

from epp.lab.results import ErrorKind


def _fault(kind: str, **more: object) -> list[dict[str, object]]:
    return [{"kind": kind, "at": 0, "worker": 1, **more}]


def test_every_request_is_served_and_its_times_are_in_order() -> None:
    records = outcome(scenario()).records
    assert [record.index for record in records] == list(range(40))
    for record in records:
        assert record.succeeded
        assert record.output_tokens == 20
        assert record.prompt_tokens == 512
        first, last = record.token_times
        assert record.started_at < first < last == record.finished_at


def test_round_robin_takes_turns() -> None:
    assert outcome(scenario()).worker_requests == [10, 10, 10, 10]


@pytest.mark.parametrize("policy", ["round-robin", "reference-weighted"])
def test_a_refused_connection_is_retried_on_another_server(policy: str) -> None:
    result = outcome(scenario(faults=_fault("refuse")), policy)
    assert all(record.succeeded for record in result.records)
    assert result.worker_requests[1] == 0


def test_without_any_server_the_gateway_answers_with_503() -> None:
    faults = [{"kind": "refuse", "at": 0, "worker": "all"}]
    records = outcome(scenario(faults=faults)).records
    assert {(record.status, record.error) for record in records} == {(503, ErrorKind.STATUS)}


def test_an_error_of_a_server_reaches_the_client() -> None:
    records = outcome(scenario(faults=_fault("error", status=500))).records
    failed = [record for record in records if not record.succeeded]
    assert {(record.status, record.served_by) for record in failed} == {(500, "worker-1")}
    assert len(failed) == 10


@pytest.mark.parametrize(("max_model_len", "status"), [(531, 400), (532, 200)])
def test_a_prompt_that_does_not_fit_the_model_is_refused(max_model_len: int, status: int) -> None:
    records = outcome(scenario(engine={**ENGINE, "max_model_len": max_model_len})).records
    assert [record.status for record in records] == [status] * 40


def test_a_crash_cuts_the_responses_in_progress_and_empties_the_cache() -> None:
    traffic = {
        "generator": "random",
        "output_tokens": 400,
        "arrivals": {"rate": 20},
        "limit": 40,
    }
    faults = [{"kind": "crash", "at": "1s", "worker": 1, "for": "2s"}]
    result = outcome(scenario(traffic, faults=faults))
    cut = [record for record in result.records if record.error is ErrorKind.RESET]
    assert cut
    assert {record.served_by for record in cut} == {"worker-1"}
    assert all(record.finished_at == pytest.approx(1.0) for record in cut)


def test_a_client_gives_up_on_a_server_that_hangs() -> None:
    records = outcome(scenario(faults=_fault("hang"), timeout="5s")).records
    late = [record for record in records if record.error is ErrorKind.TIMEOUT]
    assert len(late) == 10
    assert all(record.latency_seconds == pytest.approx(5.0) for record in late)


def test_a_straggler_answers_later_in_proportion() -> None:
    traffic = {"generator": "random", "output_tokens": 50, "arrivals": {"rate": 0.5}, "limit": 8}
    faults = _fault("straggler", speed=0.25)
    records = outcome(scenario(traffic, faults=faults)).records
    slow = [each.latency_seconds for each in records if each.served_by == "worker-1"]
    fast = [each.latency_seconds for each in records if each.served_by == "worker-0"]
    assert slow[0] == pytest.approx(4 * fast[0])


def test_the_turns_of_a_conversation_follow_one_another_and_hit_the_output() -> None:
    traffic = {
        "generator": "conversations",
        "turns": 3,
        "system_tokens": 160,
        "question_tokens": 160,
        "output_tokens": 160,
        "think_time": "1s",
        "arrivals": {"rate": 1},
        "limit": 9,
    }
    given = scenario(traffic, workers=1)
    requests = list(given.workload(1))
    records = outcome(given).records
    assert len(records) == 9
    for earlier, later in ((0, 1), (1, 2), (3, 4)):
        pause = records[later].started_at - records[earlier].finished_at
        assert pause == pytest.approx(requests[later].think_seconds)
        # All of the earlier prompt and of its output; the last token's KV is not computed there.
        assert records[later].cached_tokens >= records[earlier].prompt_tokens + 144


def test_a_closed_loop_keeps_its_number_of_requests_in_flight() -> None:
    traffic = {"generator": "random", "arrivals": {"concurrency": 3}, "limit": 12}
    records = outcome(scenario(traffic)).records
    assert len(records) == 12
    edges = sorted(
        [(each.started_at, 1) for each in records] + [(each.finished_at, -1) for each in records]
    )
    open_now = peak = 0
    for _, change in edges:
        open_now += change
        peak = max(peak, open_now)
    assert peak == 3


@pytest.mark.parametrize("policy", ["round-robin", "reference-weighted"])
def test_the_network_delays_what_the_client_sees_and_nothing_else(policy: str) -> None:
    near = outcome(scenario(), policy)
    far = outcome(scenario(network_delay="30ms"), policy)
    for before, after in zip(near.records, far.records, strict=True):
        assert before.ttft_seconds is not None
        assert after.ttft_seconds is not None
        assert after.started_at == before.started_at
        assert after.ttft_seconds == pytest.approx(before.ttft_seconds + 0.03, abs=0.002)
        assert after.latency_seconds == pytest.approx(before.latency_seconds + 0.03, abs=0.002)


def test_the_next_turn_waits_for_the_network_too() -> None:
    traffic = {"generator": "random", "arrivals": {"concurrency": 1}, "limit": 5}
    records = outcome(scenario(traffic, network_delay="1s")).records
    assert all(each.latency_seconds > 1.0 for each in records)
    for earlier, later in pairwise(records):
        assert later.started_at == pytest.approx(earlier.finished_at)


def test_a_client_gives_up_while_its_request_is_on_the_way() -> None:
    result = outcome(scenario(network_delay="4s", timeout="1s"))
    assert {record.error for record in result.records} == {ErrorKind.TIMEOUT}
    assert result.worker_requests == [0, 0, 0, 0]


def test_faults_happen_sooner_in_faster_traffic() -> None:
    faults = [{"kind": "crash", "at": "1s", "worker": "all", "for": "2s", "loading": "1s"}]
    given = scenario({"generator": "random", "arrivals": {"rate": 20}, "limit": 100}, faults=faults)
    slow, fast = (
        [each.index for each in outcome(one).records if not each.succeeded]
        for one in (given, given.changed(time_scale=0.1))
    )
    assert slow
    assert set(slow) <= set(fast)  # and those whose generation the crash has cut
    assert given.changed(time_scale=0.1).faults.faults[0].seconds == pytest.approx(0.3)
