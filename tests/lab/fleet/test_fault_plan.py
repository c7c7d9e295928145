"""Fault plans, and the faults at each time."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice, takewhile
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.lab.fleet import FAULT_KINDS, FaultPlan, FaultSchedule, FleetConfigError, ServerFaults


def schedule(*document: dict[str, Any], workers: int = 4, seed: int = 0) -> FaultSchedule:
    return FaultPlan.from_list(list(document)).schedule(workers=workers, seed=seed)


def fault(kind: str, **fields: Any) -> dict[str, Any]:
    """Make an entry; `seconds` is its field `for`."""
    seconds = {"for": fields.pop("seconds")} if "seconds" in fields else {}
    return {"kind": kind, "at": "10s", "worker": 1, **fields, **seconds}


def differences(state: ServerFaults) -> dict[str, Any]:
    """Return the fields that a fault has changed."""
    sound = asdict(ServerFaults())
    return {name: value for name, value in asdict(state).items() if value != sound[name]}


@pytest.mark.parametrize(
    ("entry", "states"),
    [
        pytest.param(
            fault("crash", seconds="5s", loading="2s"),
            {
                9: {},
                10: {"refuse": True, "restarts": 1},
                14.9: {"refuse": True, "restarts": 1},
                15: {"loading": True, "restarts": 1},
                17: {"restarts": 1},
            },
            id="a crash, and the start after it",
        ),
        pytest.param(
            fault("refuse", seconds=3), {10: {"refuse": True}, 13: {}}, id="refused connections"
        ),
        pytest.param(fault("hang"), {10: {"hang": True}, 1e6: {"hang": True}}, id="a hang"),
        pytest.param(
            fault("hang", scope="generation", seconds=1),
            {10: {"hang_generation": True}, 11: {}},
            id="a hang of the generation",
        ),
        pytest.param(
            fault("error", status=503, share=0.2),
            {10: {"error_status": 503, "error_share": 0.2}},
            id="errors",
        ),
        pytest.param(
            fault("straggler", speed=0.1, seconds="1m30s"),
            {10: {"speed": 0.1}, 99: {"speed": 0.1}, 100: {}},
            id="a straggler",
        ),
        pytest.param(
            fault("cold-start", seconds=20),
            {10: {"loading": True, "restarts": 1}, 30: {"restarts": 1}},
            id="a cold start",
        ),
        pytest.param(
            fault("flapping", period=4, share=0.25, seconds=9),
            {
                10: {"health_status": 503},
                11: {},
                14: {"health_status": 503},
                15: {},
                18: {"health_status": 503},
                19: {},
            },
            id="flapping readiness",
        ),
        pytest.param(
            fault("address-reuse", model="other", seconds=5),
            {10: {"restarts": 1, "taken_over": True, "model": "other"}, 15: {"restarts": 2}},
            id="an address used by another server",
        ),
        pytest.param(
            fault("metrics-slow", delay="500ms"),
            {10: {"metrics_delay_seconds": 0.5}},
            id="slow metrics",
        ),
        pytest.param(fault("metrics-stale"), {10: {"stale_metrics": True}}, id="stale metrics"),
        pytest.param(fault("metrics-garbled"), {10: {"garbled_metrics": True}}, id="garbled"),
        pytest.param(fault("metrics-missing"), {10: {"metrics_status": 404}}, id="no metrics"),
        pytest.param(
            fault("metrics-partial", without=["a", "b"]),
            {10: {"left_out_metrics": ("a", "b")}},
            id="a part of the metrics",
        ),
        pytest.param(
            fault("kv-events-gap", share=0.1), {10: {"kv_events_lost_share": 0.1}}, id="a gap"
        ),
        pytest.param(
            fault("kv-events-reorder", share=0.1),
            {10: {"kv_events_swapped_share": 0.1}},
            id="another order",
        ),
        pytest.param(
            fault("kv-events-restart", every=5),
            {9: {}, 10: {"kv_events_restarts": 1}, 21: {"kv_events_restarts": 3}},
            id="a publisher that restarts",
        ),
    ],
)
def test_each_kind_changes_its_worker_for_its_time(
    entry: dict[str, Any], states: dict[float, dict[str, Any]]
) -> None:
    plan = schedule(entry)
    assert {time: differences(plan.state_at(1, time)) for time in states} == states
    assert not any(differences(plan.state_at(0, time)) for time in states)


def test_faults_of_a_worker_add_up() -> None:
    plan = schedule(
        fault("straggler", speed=0.5),
        fault("straggler", speed=0.5, at=20, worker="all"),
        fault("error", at=20, worker=[0, 1]),
        fault("error", status=503, at=30),
    )
    assert plan.state_at(1, 20).speed == 0.25
    assert plan.state_at(0, 20).speed == 0.5
    assert plan.state_at(1, 30).error_status == 503
    assert plan.state_at(0, 30).error_status == 500
    assert plan.state_at(2, 30).error_status is None


def test_changes_name_each_edge_and_its_workers() -> None:
    plan = schedule(fault("crash", seconds=5, every=60), fault("refuse", seconds=5, worker=[0, 2]))
    assert list(islice(plan.changes(), 4)) == [
        (10, (0, 1, 2)),
        (15, (0, 1, 2)),
        (70, (1,)),
        (75, (1,)),
    ]
    assert list(schedule().changes()) == []


def test_a_random_worker_depends_on_the_seed_alone() -> None:
    entry = fault("crash", worker="random", every=20, seconds=5)

    def victims(seed: int) -> list[tuple[int, ...]]:
        changes = schedule(entry, workers=8, seed=seed).changes()
        return [workers for _, workers in islice(changes, 40)]

    assert victims(1) == victims(1)
    assert victims(1) != victims(2)
    assert len(set(victims(1))) > 3
    plan = schedule(entry, workers=8, seed=1)
    crashed = [worker for worker in range(8) if plan.state_at(worker, 32).refuse]
    assert crashed == list(victims(1)[2])
    # 20 crashes until 10 + 19 * 20 = 390
    assert sum(plan.state_at(worker, 395).restarts for worker in range(8)) == 20


def test_a_share_of_the_requests_fails_and_always_the_same_ones() -> None:
    state = schedule(fault("error", share=0.2)).state_at(1, 10)
    failed = [number for number in range(5000) if state.error_status_of(number) == 500]
    assert len(failed) == pytest.approx(1000, rel=0.1)
    assert failed == [number for number in range(5000) if state.error_status_of(number)]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "crash"}, r"^faults: must be a list of faults, got \{"),
        ([3], r"^faults\[0\]: must be a mapping such as .*, got 3"),
        ([{}], r"^faults\[0\].kind: is missing"),
        (
            [fault("hang"), fault("crsh")],
            r"^faults\[1\].kind: 'crsh' is not one of crash, refuse, .*did you mean crash\?",
        ),
        ([{"kind": "hang", "worker": 1}], r"^faults\[0\].at: is missing"),
        ([{"kind": "hang", "at": 1}], r"^faults\[0\].worker: is missing"),
        ([fault("hang", at="soon")], r"^faults\[0\].at: 'soon' is not a duration such as"),
        ([fault("hang", at=-1)], r"^faults\[0\].at: -1 is not a duration"),
        ([fault("hang", at=inf)], r"^faults\[0\].at: inf is not a duration"),
        ([fault("hang", seconds=0)], r"^faults\[0\].for: must be above 0"),
        ([fault("hang", worker="one")], r"^faults\[0\].worker: must be an index, .*got 'one'"),
        ([fault("hang", worker=[])], r"^faults\[0\].worker: must be an index"),
        ([fault("hang", worker=[1, 1])], r"^faults\[0\].worker: must be .* different indices"),
        ([fault("hang", worker=True)], r"^faults\[0\].worker: must be an index, .*got True"),
        ([fault("hang", share=0.5)], r"^faults\[0\].share: is not a field of this kind; known are"),
        ([fault("crash", loadng=1)], r"^faults\[0\].loadng: .*; did you mean loading\?"),
        ([fault("hang", every=9)], r"^faults\[0\].for: is missing: a fault that repeats must end"),
        (
            [fault("crash", every=9, seconds=8, loading=2)],
            r"^faults\[0\].for: lasts 10 s, longer than every: 9 s",
        ),
        ([fault("kv-events-restart", seconds=1)], r"^faults\[0\].for: is not a field of this kind"),
        ([fault("error", status=200)], r"^faults\[0\].status: must be an HTTP status from 400"),
        ([fault("error", share=1.5)], r"^faults\[0\].share: must be at most 1, got 1.5"),
        ([fault("straggler", speed=0)], r"^faults\[0\].speed: must be a number above 0, got 0"),
        ([fault("metrics-partial", without="a")], r"^faults\[0\].without: must be a list of names"),
        ([fault("address-reuse", model=4)], r"^faults\[0\].model: must be a text, got 4"),
    ],
)
def test_an_invalid_plan_is_refused_with_the_place(document: object, message: str) -> None:
    with pytest.raises(FleetConfigError, match=message):
        FaultPlan.from_list(document)


def test_a_worker_that_the_fleet_lacks_is_refused() -> None:
    plan = FaultPlan.from_list([fault("hang"), fault("hang", worker=[0, 7])], "scenario.faults")
    with pytest.raises(
        FleetConfigError, match=r"^scenario.faults\[1\].worker: there is no worker 7"
    ):
        plan.schedule(workers=4)


def test_no_section_is_no_faults() -> None:
    assert FaultPlan.from_list(None).faults == ()


times = st.floats(0, 50).map(lambda seconds: round(seconds, 3))


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    every = draw(st.one_of(st.none(), st.floats(6, 40)))
    kind = draw(st.sampled_from(FAULT_KINDS))
    entry = {
        "kind": kind,
        "at": draw(times),
        "worker": draw(st.sampled_from(["all", "random", 0, [1, 2]])),
        "every": every,
    }
    if kind != "kv-events-restart":
        entry["for"] = draw(st.floats(0.001, every or 60))
    return entry


@given(st.lists(entries(), max_size=4), st.integers(0, 3), st.lists(times, max_size=6))
def test_between_changes_nothing_changes(
    document: list[dict[str, Any]], seed: int, moments: list[float]
) -> None:
    plan = FaultPlan.from_list(document)
    changes = list(
        takewhile(lambda change: change[0] <= 51, plan.schedule(workers=3, seed=seed).changes())
    )
    assert [time for time, _ in changes] == sorted(time for time, _ in changes)
    for worker in range(3):
        change_times = [0.0, *(time for time, concerned in changes if worker in concerned)]
        for moment in moments:
            # Two schedules: what was asked before does not matter.
            last = max(time for time in change_times if time <= moment + 1e-9)
            expected = plan.schedule(workers=3, seed=seed).state_at(worker, last)
            assert plan.schedule(workers=3, seed=seed).state_at(worker, moment) == expected


def test_changes_are_in_order_where_a_repetition_begins_as_the_one_before_ends() -> None:
    # Rounded, five periods and the duration exceed six periods by the last digit.
    repeated = fault("error", at=0, every=6.496999149235332, seconds=6.496999149235332)
    plan = FaultPlan.from_list([repeated])
    times = [time for time, _ in islice(plan.schedule(workers=2).changes(), 20)]
    assert times == sorted(times)


def test_a_scaled_plan_has_the_same_course_in_another_time() -> None:
    plan = FaultPlan.from_list(
        [
            fault("crash", loading="5s", every="1m", seconds="20s"),
            fault("flapping", at=0, period="4s"),
            fault("metrics-slow", at="3s", delay="2s"),
        ]
    )
    slow = plan.schedule(workers=2)
    fast = plan.scaled(0.1).schedule(workers=2)
    for time in (0.5, 2.5, 5, 12, 31, 36, 71, 92, 96):
        assert fast.state_at(1, time / 10) == slow.state_at(1, time)
    times = [at for at, _ in islice(slow.changes(), 20)]
    assert [at for at, _ in islice(fast.changes(), 20)] == pytest.approx([at / 10 for at in times])
