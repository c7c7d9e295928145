from collections.abc import Sequence

import pytest

from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    NoEndpointsError,
    ProfileLoopError,
    Scheduler,
    SchedulerProfile,
)
from epp.testing import make_endpoint, make_request
from epp_plugins.pickers import random_picker
from epp_plugins.profile_handlers.single_profile import Params, SingleProfileHandler


class DropAll(Filter):
    type = "drop-all"
    name = "drop-all"

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return []


def scheduler(*names: str, filters: Sequence[Filter] = ()) -> Scheduler:
    picker = random_picker.RandomPicker("pick", random_picker.Params())
    profiles = {n: SchedulerProfile(name=n, picker=picker, filters=filters) for n in names}
    return Scheduler(SingleProfileHandler("single", Params()), profiles)


def test_the_sole_profile_is_the_result() -> None:
    result = scheduler("decode").schedule(make_request(), [make_endpoint("a")])
    assert result.primary == "decode"
    assert [s.endpoint.name for s in result.endpoints] == ["a"]


def test_a_failed_profile_fails_with_its_own_error() -> None:
    with pytest.raises(NoEndpointsError, match="drop-all removed a"):
        scheduler("decode", filters=[DropAll()]).schedule(make_request(), [make_endpoint("a")])


def test_two_profiles_are_refused_by_name() -> None:
    with pytest.raises(ProfileLoopError, match=r"exactly one profile, 2 .*: 'decode', 'prefill'"):
        scheduler("prefill", "decode").schedule(make_request(), [make_endpoint()])


def test_no_profile_at_all_is_refused() -> None:
    with pytest.raises(ProfileLoopError, match="'single' picked no profile"):
        scheduler().schedule(make_request(), [make_endpoint()])
