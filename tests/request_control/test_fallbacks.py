"""The endpoints that a gateway may retry on, and the gateway's request for them."""

from collections.abc import Sequence

from epp.request_control import fallbacks
from epp.scheduling import Endpoint
from epp.testing import make_endpoint
from tools.harness.request_control import Epp


def named(loads: Sequence[int], hosts: Sequence[int] | None = None) -> list[Endpoint]:
    """Return endpoints ``0``, ``1``, … with so many waiting requests each."""
    return [
        make_endpoint(
            f"default/{number}",
            address=f"10.0.0.{number if hosts is None else hosts[number]}:{8000 + number}",
            waiting_requests=waiting,
            requested_at=99.5,
        )
        for number, waiting in enumerate(loads)
    ]


def names(epp: Epp, count: int) -> list[str]:
    routed = epp.handle()
    return [each.name.removeprefix("default/") for each in fallbacks(routed.decision, count)]


def test_the_fallbacks_are_the_next_best_endpoints() -> None:
    assert names(Epp(named([9, 0, 3, 6])), 2) == ["2", "3"]


def test_there_are_as_many_as_the_pool_has() -> None:
    assert names(Epp(named([0, 5])), 4) == ["1"]
    assert names(Epp(named([0])), 4) == []
    assert names(Epp(named([0, 5])), 0) == []


def test_ranks_on_the_same_host_come_last() -> None:
    pool = named([0, 1, 5, 6], hosts=[1, 1, 2, 2])
    assert names(Epp(pool), 3) == ["2", "1", "3"]


def test_on_one_host_all_are_fallbacks() -> None:
    assert names(Epp(named([0, 2, 1], hosts=[1, 1, 1])), 2) == ["2", "1"]


def test_of_equal_scores_the_least_loaded_comes_first() -> None:
    pool = named([0, 0, 0, 0])
    for number, running in ((1, 3), (2, 1), (3, 2)):
        pool[number].load.running_requests = running
    assert names(Epp(pool), 3) == ["2", "3", "1"]


def test_equal_endpoints_share_the_requests_of_one_that_fails() -> None:
    epp = Epp(named([0] * 4))
    found = {epp.handle().decision.endpoint.name: names(epp, 1)[0] for _ in range(40)}
    assert len(set(found.values())) > 1


def test_a_picker_that_names_several_decides_about_fallbacks_itself() -> None:
    assert names(Epp(named([0, 5, 6]), picks=2), 2) == []
