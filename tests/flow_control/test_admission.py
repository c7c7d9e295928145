"""Shedding without flow control, with working and failing detectors."""

from collections.abc import Sequence
from math import inf, nan
from typing import Any, ClassVar

import pytest

from epp.flow_control import SaturationDetector, SheddingAdmission
from epp.observability import Metrics, PluginWatch
from epp.request_control import SaturatedError
from epp.scheduling import Endpoint, GuardRails, NullObserver
from epp.testing import make_endpoint
from tools.harness.request_control import Epp, Policies, make_pool

OBJECTIVE = {"x-llm-d-inference-objective": "batch"}


class Detector(SaturationDetector):
    """Returns a given value, or raises a given exception."""

    type: ClassVar[str] = "fixed-detector"

    def __init__(self, answer: Any) -> None:
        self.name = "fixed"
        self.answer = answer
        self.asked: list[Sequence[Endpoint]] = []

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        self.asked.append(endpoints)
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: float = self.answer
        return answer


@pytest.mark.parametrize(
    ("priority", "saturation", "excess"),
    [
        pytest.param(-1, 1.0, 1.0, id="sheddable and just full"),
        pytest.param(-1, 3, 3, id="sheddable and over full"),
        pytest.param(-5, inf, inf, id="without end"),
        pytest.param(-1, 0.99, None, id="sheddable and room left"),
        pytest.param(0, 9.0, None, id="not sheddable"),
        pytest.param(7, 9.0, None, id="critical"),
    ],
)
def test_only_sheddable_requests_are_turned_away_and_only_when_full(
    priority: int, saturation: float, excess: float | None
) -> None:
    detector = Detector(saturation)
    admission = SheddingAdmission(detector, GuardRails(observer=NullObserver()))
    endpoints = [make_endpoint()]
    assert admission.excess(priority, endpoints) == excess
    assert detector.asked == ([endpoints] if priority < 0 else [])


@pytest.mark.parametrize("answer", [ZeroDivisionError("bug"), nan, "full", None, [1.0]])
def test_detector_that_fails_admits_everybody_and_is_counted(answer: Any) -> None:
    metrics = Metrics()
    guards = GuardRails(observer=PluginWatch(metrics), disable_after=2)
    detector = Detector(answer)
    admission = SheddingAdmission(detector, guards)
    assert [admission.excess(-1, ()) for _ in range(3)] == [None, None, None]
    assert len(detector.asked) == 2  # then it is off
    labels = {"plugin_type": "fixed-detector", "plugin_name": "fixed"}
    name = "llm_d_epp_plugin_failures_total"
    labels["extension_point"] = "SaturationDetector"
    assert metrics.registry.get_sample_value(name, labels) == 2


def test_a_full_pool_answers_429_and_takes_who_is_not_sheddable() -> None:
    epp = Epp(make_pool(), policies=Policies({"batch": -2}))
    epp.director.pipeline.admission = SheddingAdmission(
        Detector(1.5), GuardRails(observer=NullObserver())
    )
    with pytest.raises(SaturatedError) as caught:
        epp.handle(headers=OBJECTIVE)
    error = caught.value
    assert (error.status, error.drop_reason, error.stage) == (
        429,
        "rejected-saturated",
        "admission",
    )
    assert str(error) == (
        "the pool is full: 'fixed' reports a saturation of 1.50, where 1.00 is full; the request is"
        " sheddable (priority -2)"
    )
    assert epp.in_flight == 0
    epp.handle()  # one that is not sheddable
    assert epp.in_flight == 1
