"""The metrics page stays short whatever names clients use, and its sums are complete."""

from collections.abc import Iterable

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from epp.observability import FlowMetrics, Metrics, OperatorNames, RevocationMetrics
from epp.observability.known_names import MAX_PRIORITIES, REFRESH_SECONDS, Standing
from epp.observability.page_budget import (
    IDLE_SECONDS,
    STEPS_AT_ONCE,
    SWEEP_SECONDS,
    PageBudget,
    SeriesClaim,
)
from epp.observability.request_metrics import MAX_CODES
from epp.testing import make_endpoint, make_request

LIMIT = 1_000_000
"""Of most pages here: an eighth of the default, so that tests are quick."""


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(max_page_bytes=LIMIT, clock=clock)


def vouch(metrics: Metrics, *models: str, fairness_ids: Iterable[str] = ()) -> None:
    names = OperatorNames(models=models, fairness_ids=tuple(fairness_ids))
    metrics.names.learn_from(lambda: names)


def send(
    metrics: Metrics,
    model: str = "llama",
    fairness_id: str = "default-flow",
    *,
    target: str = "",
    priority: int = 0,
    is_answered: bool = False,
) -> None:
    """Count everything that one request counts."""
    request = metrics.for_request(model, target or model, fairness_id, priority)
    request.total.inc()
    request.running.inc()
    request.size.observe(100)
    metrics.attempts.succeeded(target or model, make_endpoint("default/pod"))
    response = request.response
    response.size.observe(100)
    response.tokens.observe(10)
    request.duration.observe(0.1)
    request.running.dec()
    if is_answered:
        request.prove(model, target or model)


REQUESTS_OF_A_SWEEP = 100
"""More than it takes to look at all label sets of a page of ``LIMIT``."""


def send_many(metrics: Metrics, model: str) -> None:
    """Send so many that all label sets are looked at, and the idle ones removed."""
    for _ in range(REQUESTS_OF_A_SWEEP):
        send(metrics, model)


def totals(metrics: Metrics, label: str = "model_name") -> dict[str, float]:
    """Return how many requests there were by the values of ``label``."""
    (family,) = metrics.requests.families.total.collect()
    found: dict[str, float] = {}
    for sample in family.samples:
        if sample.name.endswith("_total"):
            value = sample.labels[label]
            found[value] = found.get(value, 0) + sample.value
    return {value: count for value, count in found.items() if count}


def timed(metrics: Metrics, label: str = "model_name") -> dict[str, float]:
    """Return how many requests were timed by the values of ``label``."""
    (family,) = metrics.requests.families.duration.collect()
    found: dict[str, float] = {}
    for sample in family.samples:
        if sample.name.endswith("_count"):
            value = sample.labels[label]
            found[value] = found.get(value, 0) + sample.value
    return found


@pytest.mark.parametrize("kind", ["models", "fairness ids", "priorities", "everything"])
def test_junk_does_not_make_the_page_long_and_every_request_counts_once(kind: str) -> None:
    metrics = Metrics()
    flows = FlowMetrics(metrics, "pool")
    vouch(metrics, "llama")
    count = 9_000
    for n in range(count):
        model = f"junk-{n}" if kind in {"models", "everything"} else "llama"
        flow = f"tenant-{n}" if kind in {"fairness ids", "everything"} else "default-flow"
        priority = n if kind in {"priorities", "everything"} else 0
        request = make_request(model=model, target_model=model, priority=priority)
        request.fairness_id = flow
        flows.passed(request)
        send(metrics, model, flow, priority=priority)
        metrics.for_refusal(model, model, flow, priority).error("BadRequest")
    page = generate_latest(metrics.registry)
    assert len(page) < 10_000_000
    assert page.count(b"\n") < 100_000
    assert sum(totals(metrics).values()) == sum(timed(metrics).values()) == count
    for name in ("request_error_total", "scheduler_attempts_total", "flow_control_requests_total"):
        lines = [
            line for line in page.splitlines() if line.startswith(b"llm_d_epp_" + name.encode())
        ]
        assert sum(float(line.rpartition(b" ")[2]) for line in lines) == count


def test_the_operators_names_never_fold_when_junk_came_first(metrics: Metrics) -> None:
    served = [f"adapter-{n}" for n in range(50)]
    vouch(metrics, "llama", *served, fairness_ids=["gold"])
    for n in range(3000):
        send(metrics, f"junk-{n}")
        send(metrics, "llama", f"tenant-{n}")
    for name in served:
        send(metrics, name, "gold")
    counted = totals(metrics)
    assert {name: counted.get(name) for name in served} == dict.fromkeys(served, 1)
    assert totals(metrics, "fairness_id")["gold"] == 50
    assert counted["other"] > 2000
    assert metrics.budget.folded > 2000


def test_a_known_model_keeps_its_name_where_the_tenant_folds(metrics: Metrics) -> None:
    vouch(metrics, "llama")
    for n in range(3000):
        send(metrics, "llama", f"tenant-{n}")
    assert totals(metrics) == {"llama": 3000}
    assert totals(metrics, "fairness_id")["other"] > 2000


def test_counters_stay_apart_when_histograms_do_not(metrics: Metrics) -> None:
    vouch(metrics, "llama")
    for n in range(100):
        send(metrics, "llama", f"tenant-{n}")
    assert len(totals(metrics, "fairness_id")) == 100
    by_tenant = timed(metrics, "fairness_id")
    assert len(by_tenant) < 50
    assert sum(by_tenant.values()) == 100


def test_a_model_that_a_server_answers_for_is_not_junk(metrics: Metrics) -> None:
    send(metrics, "early")
    for n in range(2000):
        send(metrics, f"junk-{n}")
    send(metrics, "honest", is_answered=True)
    assert "honest" not in totals(metrics)
    send(metrics, "honest", is_answered=True)
    assert totals(metrics)["honest"] == 1


def test_a_proven_model_makes_room_for_the_next(metrics: Metrics) -> None:
    for n in range(60):
        send(metrics, f"model-{n}", is_answered=True)
    assert set(totals(metrics)) == {f"model-{n}" for n in range(60)}


def test_a_response_vouches_for_no_name_that_a_header_has_replaced(metrics: Metrics) -> None:
    vouch(metrics, "llama")
    for n in range(2000):
        send(metrics, f"junk-{n}", target="llama", is_answered=True)
    send(metrics, "junk-0")
    assert totals(metrics)["other"] > 1000
    assert totals(metrics, "target_model_name")["llama"] == 2000


def test_pairs_of_known_models_are_not_known_themselves(metrics: Metrics) -> None:
    served = [f"adapter-{n}" for n in range(60)]
    vouch(metrics, *served, "last")
    for model in served:
        for target in served:
            send(metrics, model, target=target)
    send(metrics, "last")
    assert totals(metrics)["last"] == 1
    assert sum(totals(metrics).values()) == 60 * 60 + 1


def test_what_is_idle_for_long_makes_room_and_totals_that_remain_do_not_shrink(
    metrics: Metrics, clock: Clock
) -> None:
    for n in range(2000):
        send(metrics, f"junk-{n}")
    busy = metrics.for_request("junk-0", "junk-0", "default-flow", 0)
    busy.running.inc()
    clock.now += SWEEP_SECONDS
    send_many(metrics, "late-1")  # everything was counted on since the last look
    folded = totals(metrics)["other"]
    clock.now += IDLE_SECONDS
    send(metrics, "junk-1")
    send_many(metrics, "late-2")
    counted = totals(metrics)
    assert counted["late-2"] > 0, "there is room again"
    assert counted["other"] + counted["late-2"] == folded + REQUESTS_OF_A_SWEEP, (
        "nothing is added to what counts for others"
    )
    assert counted["junk-0"] == 1, "a request of it is under way"
    assert counted["junk-1"] == 2, "it was counted on just now"
    assert "junk-2" not in counted, "of those idle the first goes first"
    busy.running.dec()
    assert metrics.requests.families.running.labels("junk-0", "junk-0", "default-flow", "0") is (
        busy.running
    )


def test_a_name_that_comes_back_counts_from_0(metrics: Metrics, clock: Clock) -> None:
    for n in range(2000):
        send(metrics, f"junk-{n}")
    clock.now += SWEEP_SECONDS
    send_many(metrics, "late")
    clock.now += IDLE_SECONDS
    send_many(metrics, "later")
    assert "junk-0" not in totals(metrics)
    send(metrics, "junk-0")
    assert totals(metrics)["junk-0"] == 1


def test_one_request_looks_at_few_label_sets_of_a_full_page(
    metrics: Metrics, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(2000):
        send(metrics, f"junk-{n}")
    looked_at: list[SeriesClaim] = []
    move = PageBudget.move

    def moved(budget: PageBudget, claim: SeriesClaim, standing: Standing) -> None:
        looked_at.append(claim)
        move(budget, claim, standing)

    monkeypatch.setattr(PageBudget, "move", moved)
    clock.now += SWEEP_SECONDS
    most = 0
    for _ in range(REQUESTS_OF_A_SWEEP):
        before = len(looked_at)
        send(metrics, "late")
        most = max(most, len(looked_at) - before)
    assert len(looked_at) > 4 * STEPS_AT_ONCE, "all of them"
    assert most <= 4 * STEPS_AT_ONCE, "once for each table that it asks for room"


def test_a_set_that_is_used_while_idle_ones_are_looked_for_stays(
    metrics: Metrics, clock: Clock
) -> None:
    for n in range(2000):
        send(metrics, f"junk-{n}")
    clock.now += SWEEP_SECONDS
    send_many(metrics, "late")
    clock.now += IDLE_SECONDS
    send(metrics, "later")  # junk-0 is seen to be idle
    send(metrics, "junk-0")
    send_many(metrics, "later")
    counted = totals(metrics)
    assert counted["junk-0"] == 2
    assert "junk-1" not in counted


def test_a_model_that_is_no_longer_served_stays_known_for_a_while(
    metrics: Metrics, clock: Clock
) -> None:
    loaded = ["adapter"]
    metrics.names.learn_from(lambda: OperatorNames(models=tuple(loaded)))
    send(metrics, "x")
    loaded.clear()
    clock.now += 10 * REFRESH_SECONDS
    for n in range(2000):
        send(metrics, f"junk-{n}")
    send(metrics, "adapter")
    assert totals(metrics)["adapter"] == 1
    clock.now += 3700.0
    send(metrics, "one more")
    assert metrics.names.model("adapter") == 0


def test_the_log_says_once_that_names_fold_and_what_to_do(metrics: Metrics) -> None:
    with capture_logs() as logged:
        for n in range(2000):
            send(metrics, f"junk-{n}")
    (line,) = logged
    assert line["event"] == "metrics page is full, further names count as other"
    assert "--max-metrics-page-bytes" in line["remedy"]


def test_the_page_tells_how_much_of_it_is_used(metrics: Metrics) -> None:
    vouch(metrics, "llama")
    for n in range(2000):
        send(metrics, f"junk-{n}")
    value = metrics.registry.get_sample_value
    assert value("llm_d_epp_metrics_page_limit_bytes") == LIMIT
    assert 0 < (value("llm_d_epp_metrics_page_unknown_names_bytes") or 0) < LIMIT * 3 / 16
    assert (value("llm_d_epp_metrics_page_bytes") or 0) < LIMIT
    assert value("llm_d_epp_metrics_names_folded_total") == metrics.budget.folded > 1000


def test_error_codes_of_plugins_are_limited() -> None:
    metrics = Metrics()
    request = metrics.for_refusal("llama", "llama", "default-flow", 0)
    for n in range(MAX_CODES + 50):
        request.error(f"Code{n}")
    request.error("C" * 1000)
    (family,) = metrics.requests.families.errors.collect()
    codes = [s.labels["error_code"] for s in family.samples if s.name.endswith("_total")]
    assert len(codes) == MAX_CODES + 1
    assert codes.count("other") == 1


def test_a_request_that_was_only_refused_has_no_histograms() -> None:
    metrics = Metrics()
    metrics.for_refusal("llama", "llama", "default-flow", 0).error("BadRequest")
    assert timed(metrics) == {}
    send(metrics)
    assert timed(metrics) == totals(metrics) == {"llama": 1}


def test_priorities_of_revocations_are_limited() -> None:
    metrics = Metrics()
    revocations = RevocationMetrics(metrics.registry, "pool")
    for n in range(MAX_PRIORITIES + 50):
        revocations.issued(n)
    page = generate_latest(metrics.registry).decode()
    prefix = "llm_d_epp_flow_control_revocations_issued_total{"
    lines = [line for line in page.splitlines() if line.startswith(prefix)]
    assert len(lines) == MAX_PRIORITIES + 1
    assert f'{prefix}inference_pool="pool",priority="other"}} 50.0' in lines
