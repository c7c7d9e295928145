import pytest

from epp.scheduling import Endpoint
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.deciders.always_disagg_pd import AlwaysDisaggPdDecider


@pytest.mark.parametrize("endpoint", [make_endpoint("a"), None], ids=["chosen", "not chosen yet"])
def test_the_stage_is_always_wanted(endpoint: Endpoint | None) -> None:
    decider = make_plugin(AlwaysDisaggPdDecider)
    assert decider.wants_stage(make_request(), endpoint, make_state()) is True


def test_it_forces_no_producer() -> None:
    check(AlwaysDisaggPdDecider)
    assert not hasattr(make_plugin(AlwaysDisaggPdDecider), "reads")


def test_it_has_no_parameters() -> None:
    with pytest.raises(ValueError, match="unknown field `nonCachedTokens`"):
        make_plugin(AlwaysDisaggPdDecider, {"nonCachedTokens": 1})
