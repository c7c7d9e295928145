from typing import Any

import pytest
from stage_stubs import Stages

from epp.scheduling import AttributeKey, NoEndpointsError, ProfileLoopError
from epp.testing import check, make_endpoint, make_plugin
from epp_plugins.profile_handlers.data_parallel_profile import DataParallelProfileHandler

RANK = "x-data-parallel-host-port"
NOTE = AttributeKey[str]("note")


def stages(*profiles: str, parameters: dict[str, Any] | None = None) -> Stages:
    return Stages(make_plugin(DataParallelProfileHandler, parameters, name="ranks"), profiles)


@pytest.mark.parametrize(
    ("parameters", "address", "want"),
    [
        pytest.param({}, "10.0.0.1:8003", "10.0.0.1:8000", id="port 8000 by default"),
        pytest.param({"primaryPort": 9000}, "10.0.0.1:8003", "10.0.0.1:9000", id="another port"),
        pytest.param({}, "10.0.0.1:8000", "10.0.0.1:8000", id="the rank at the port itself"),
        pytest.param({}, "[fd00::1]:8003", "[fd00::1]:8000", id="IPv6"),
    ],
)
@pytest.mark.parametrize("sent", [{}, {RANK: "6.6.6.6:80"}], ids=["plain", "a forged header"])
def test_the_gateway_gets_the_port_and_the_server_the_rank(
    parameters: dict[str, Any], address: str, want: str, sent: dict[str, str]
) -> None:
    rank = make_endpoint("rank-3", address=address, attributes={NOTE: "mine"})
    outcome = stages("rank", parameters=parameters).send([rank], sent)
    assert outcome.result.destination == want
    assert outcome.headers == {RANK: address}
    (scored,) = outcome.result.endpoints
    assert scored.endpoint is rank, "with its attributes"
    assert rank.address == address


def test_of_several_the_best_is_the_destination() -> None:
    ranks = [
        make_endpoint(f"rank-{host}", address=f"10.0.0.{host}:8003", attributes={NOTE: "x"})
        for host in (1, 2)
    ]
    outcome = stages("rank").send(ranks)
    assert [each.endpoint.name for each in outcome.result.endpoints] == ["rank-1", "rank-2"]
    assert outcome.result.destination == "10.0.0.1:8000"
    assert outcome.headers == {RANK: "10.0.0.1:8003"}


def test_a_failed_profile_fails_with_its_own_error() -> None:
    with pytest.raises(NoEndpointsError, match="only-rank removed other-1"):
        stages("rank").send(["other-1"])


def test_two_profiles_are_refused_by_name() -> None:
    want = r"'ranks' \(data-parallel-profile-handler\) takes exactly one profile, 2 .*: 'a', 'b'"
    with pytest.raises(ProfileLoopError, match=want):
        stages("b", "a").send(["a-1"])


def test_two_profiles_are_a_fault_of_the_configuration() -> None:
    plugin = make_plugin(DataParallelProfileHandler)
    assert list(plugin.profile_faults(["any"])) == []
    assert list(plugin.profile_faults(["b", "a"])) == [
        (
            "data-parallel-profile-handler runs a sole profile; configured: 'a', 'b'; remove all"
            " but one, or use a handler that chooses among them"
        )
    ]


@pytest.mark.parametrize("port", [0, 65536])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=r"at `\$\.primaryPort`"):
        stages(parameters={"primaryPort": port})


def test_the_class_is_sound() -> None:
    check(DataParallelProfileHandler)
