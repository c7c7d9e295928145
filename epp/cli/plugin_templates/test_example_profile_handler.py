from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    NoEndpointsError,
    Scheduler,
)
from epp.testing import load_plugin, make_endpoint, make_plugin, make_profile, make_request

ExampleProfileHandler = load_plugin(
    Path(__file__).with_name("example_profile_handler.py"), "ExampleProfileHandler"
)


class Only(Filter):
    """Keeps the endpoint of one name."""

    type: ClassVar[str] = "only"

    def __init__(self, name: str) -> None:
        self.name = name

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [endpoint for endpoint in endpoints if endpoint.name == self.name]


PROFILES = {
    "preferred": make_profile(name="preferred", filters=[Only("a")]),
    "fallback": make_profile(name="fallback"),
}


@pytest.mark.parametrize(
    ("endpoints", "profile", "chosen"),
    [
        pytest.param(["a", "b"], "preferred", "a", id="the first profile finds one"),
        pytest.param(["b", "c"], "fallback", "b", id="it finds none"),
    ],
)
def test_the_first_profile_that_finds_an_endpoint_is_the_result(
    endpoints: list[str], profile: str, chosen: str
) -> None:
    scheduler = Scheduler(make_plugin(ExampleProfileHandler), PROFILES)
    result = scheduler.schedule(make_request(), [make_endpoint(name) for name in endpoints])
    # The request counts as in flight on the endpoint of every profile in the result.
    assert [*result.profiles] == [result.primary] == [profile]
    assert result.endpoints[0].endpoint.name == chosen


def test_without_endpoints_the_request_fails() -> None:
    scheduler = Scheduler(make_plugin(ExampleProfileHandler), PROFILES)
    with pytest.raises(NoEndpointsError):
        scheduler.schedule(make_request(), [])
