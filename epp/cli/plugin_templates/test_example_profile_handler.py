from pathlib import Path

import pytest

from epp.scheduling import NoEndpointsError, Scheduler
from epp.testing import load_plugin, make_endpoint, make_plugin, make_profile, make_request

ExampleProfileHandler = load_plugin(
    Path(__file__).with_name("example_profile_handler.py"), "ExampleProfileHandler"
)
PROFILES = {name: make_profile(name=name) for name in ("preferred", "fallback")}


def test_the_first_profile_that_finds_an_endpoint_is_the_answer() -> None:
    scheduler = Scheduler(make_plugin(ExampleProfileHandler), PROFILES)
    result = scheduler.schedule(make_request(), [make_endpoint("a")])
    assert result.primary == "preferred"
    assert result.endpoints[0].endpoint.name == "a"


def test_without_endpoints_the_request_fails() -> None:
    scheduler = Scheduler(make_plugin(ExampleProfileHandler), PROFILES)
    with pytest.raises(NoEndpointsError):
        scheduler.schedule(make_request(), [])
