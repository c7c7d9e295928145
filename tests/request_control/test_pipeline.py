"""Replacement of a pipeline, and shadow profiles."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from epp.request_control import EndCause, PendingDecision, RoutedRequest
from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    SchedulerProfile,
    ShadowProfile,
)
from epp_plugins.pickers import max_score
from request_control.producers import Async
from tools.harness.request_control import Epp, NotingPlugin, RefusingFilter, make_pool


def test_requests_end_on_the_pipeline_they_began_on() -> None:
    old, new = NotingPlugin("old", []), NotingPlugin("new", [])
    epp = Epp(make_pool(), plugins=[old])
    first = epp.handle()
    epp.director.pipeline = epp.pipeline(new)
    second = epp.handle()
    first.close(EndCause.COMPLETED)
    second.close(EndCause.CLIENT_DISCONNECT)
    assert old.ends == [("default/a", EndCause.COMPLETED)]
    assert new.ends == [("default/a", EndCause.CLIENT_DISCONNECT)]
    assert epp.in_flight == epp.director.in_flight == 0


def test_a_pipeline_notifies_once_when_its_last_exchange_has_ended() -> None:
    ends: list[str] = []
    plugin = NotingPlugin("old", ends)
    epp = Epp(make_pool(), plugins=[plugin])
    old = epp.director.pipeline
    routed_requests = [epp.handle(), epp.handle()]
    epp.director.pipeline = epp.pipeline()
    ends.clear()
    old.when_idle(lambda: ends.append("idle"))
    epp.handle()
    routed_requests[0].close(EndCause.COMPLETED)
    assert old.open_requests == 1
    routed_requests[1].close(EndCause.COMPLETED)
    assert ends == ["old: response_complete"] * 2 + ["idle"]  # after the last hook
    routed_requests[1].close(EndCause.COMPLETED)
    old.request_began()
    old.request_ended()
    assert ends.count("idle") == 1


def test_an_idle_pipeline_notifies_at_once() -> None:
    events: list[str] = []
    epp = Epp(make_pool())
    epp.director.pipeline.when_idle(lambda: events.append("never used"))
    epp.handle().close(EndCause.COMPLETED)
    epp.director.pipeline.when_idle(lambda: events.append("used"))
    assert events == ["never used", "used"]


@pytest.mark.looptime
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["decided", "taken back"])
async def test_a_pending_decision_keeps_its_pipeline(is_cancelled: bool) -> None:
    old = NotingPlugin("old", [])
    epp = Epp(make_pool(), plugins=[Async("a"), old])
    pending, events = epp.ask(), list[str]()
    assert isinstance(pending, PendingDecision)
    pipeline, epp.director.pipeline = epp.director.pipeline, epp.pipeline()
    pipeline.when_idle(lambda: events.append("idle"))
    outcomes: list[object] = []
    pending.then(outcomes.append)
    if is_cancelled:
        pending.cancel(EndCause.CLIENT_DISCONNECT)
        assert events == ["idle"]
    await asyncio.sleep(1)
    for routed in outcomes:
        assert events == []
        assert isinstance(routed, RoutedRequest)
        routed.close(EndCause.COMPLETED)
    assert events == ["idle"]
    assert len(old.ends) == len(outcomes) == (not is_cancelled)


class Only(Filter):
    """Keeps one endpoint."""

    type: ClassVar[str] = "only"

    def __init__(self, name: str) -> None:
        self.name = name

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        assert all(each.load.in_flight == 0 for each in endpoints)  # before the reservation
        return [each for each in endpoints if each.name == self.name]


def shadow(*filters: Filter, sample: float = 1.0) -> ShadowProfile:
    profile = SchedulerProfile(
        name="trial",
        filters=filters,
        picker=max_score.MaxScorePicker("pick", max_score.Params(), rng=random.Random(0)),
    )
    return ShadowProfile(profile, sample=sample, budget_seconds=1.0, rng=random.Random(0))


@pytest.mark.parametrize(
    ("make", "runs", "disagreements", "endpoint"),
    [
        pytest.param(lambda: shadow(Only("default/a")), 1, 0, "default/a", id="it agrees"),
        pytest.param(lambda: shadow(Only("default/b")), 1, 1, "default/b", id="it disagrees"),
        pytest.param(lambda: shadow(RefusingFilter()), 1, 1, "", id="its filters leave none"),
        pytest.param(lambda: shadow(sample=0.0), 0, 0, None, id="not in its sample"),
    ],
)
def test_what_a_shadow_would_have_chosen_is_logged_and_counted(
    make: Callable[[], ShadowProfile], runs: int, disagreements: int, endpoint: str | None
) -> None:
    epp = Epp(make_pool(), shadows=[make()])
    with capture_logs() as lines:
        routed = epp.handle()
        routed.close(EndCause.COMPLETED)
    assert routed.endpoint.name == "default/a"
    assert epp.value("shadow_runs_total", profile="trial") == runs
    assert epp.value("shadow_disagreements_total", profile="trial") == disagreements
    if endpoint is None:
        assert "shadow" not in lines[-1]
    else:
        (pick,) = lines[-1]["shadow"]
        assert (pick["profile"], pick["endpoint"]) == ("trial", endpoint)
        assert pick["agrees"] is (disagreements == 0)
