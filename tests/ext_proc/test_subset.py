"""The subset hint (protocol E3 to E5): which endpoints the gateway lets a request go to."""

from typing import Any

import pytest
from request_control.harness import Epp

from epp.ext_proc import reading
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import OutsideSubsetError
from epp.request_control.subset import within
from epp.scheduling import Endpoint
from epp.testing import make_endpoint
from ext_proc.harness import BUFFERED, FULL_DUPLEX, Envoy, Modes, assert_routes

pytestmark = pytest.mark.usefixtures("wire")

BEST, RANK, OTHER = "10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000"


def pool() -> list[Endpoint]:
    """Return three endpoints, the best first; two of them share an address."""
    return [
        make_endpoint(f"default/{n}", address=address, waiting_requests=n)
        for n, address in enumerate((BEST, RANK, OTHER))
    ]


def routed(subset: Any, modes: Modes = FULL_DUPLEX, *, follow: bool = True) -> Envoy:
    envoy = Envoy(Epp(pool(), follow_subset_hint=follow), modes)
    envoy.request_headers(subset=subset)
    envoy.request_body()
    return envoy


@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
@pytest.mark.parametrize(
    ("subset", "chosen"),
    [
        pytest.param([OTHER], OTHER, id="a list of one"),
        pytest.param([OTHER, RANK], RANK, id="the best of a list"),
        pytest.param([RANK], RANK, id="ranks of one address are told apart by port"),
        pytest.param(["10.0.0.2"], OTHER, id="an address without a port"),
        pytest.param(["10.0.0.1"], BEST, id="an address without a port means all of its ports"),
        pytest.param(["192.0.2.9:1", RANK], RANK, id="one that the pool does not have is skipped"),
        pytest.param(f"{OTHER},{RANK}", RANK, id="a text with commas"),
        pytest.param(f" {OTHER} , ,", OTHER, id="blanks and empty items"),
        pytest.param([7, OTHER, None], OTHER, id="what is no text is skipped"),
    ],
)
def test_e3_only_what_the_hint_names_is_chosen(subset: Any, chosen: str, modes: Modes) -> None:
    envoy = routed(subset, modes)
    kind = "request_body" if modes == BUFFERED else "request_headers"
    assert_routes(envoy.answers[0], kind, chosen)


@pytest.mark.parametrize(
    ("subset", "said"),
    [
        pytest.param([], "nobody", id="an empty list"),
        pytest.param("", "nobody", id="an empty text"),
        pytest.param([1, 2], "nobody", id="numbers"),
        pytest.param(7.0, "nobody", id="a number"),
        pytest.param(["192.0.2.9:8000"], "192.0.2.9:8000", id="one that the pool does not have"),
        pytest.param(["10.0.0.1:9999"], "10.0.0.1:9999", id="another port"),
        pytest.param([f"192.0.2.{n}" for n in range(9)], "and 4 more", id="many"),
    ],
)
def test_e4_nobody_to_choose_from_is_503(subset: Any, said: str) -> None:
    envoy = routed(subset)
    (answer,) = envoy.answers
    refused = answer.immediate_response
    assert refused.status.code == 503
    assert said in refused.body.decode()
    (reason,) = (
        each.header.raw_value
        for each in refused.headers.set_headers
        if each.header.key == "x-llm-d-request-dropped-reason"
    )
    assert reason == b"rejected-no-endpoints"
    assert envoy.epp.in_flight == 0


@pytest.mark.parametrize(
    ("subset", "follow"),
    [
        pytest.param(None, True, id="no hint"),
        pytest.param([OTHER], False, id="--disable-endpoint-subset-filter"),
    ],
)
def test_e5_without_a_hint_all_of_the_pool_is_chosen_from(subset: Any, follow: bool) -> None:
    assert_routes(routed(subset, follow=follow).answers[0], "request_headers", BEST)


def test_a_null_is_no_hint() -> None:
    request = pb.ProcessingRequest()
    hint = request.metadata_context.filter_metadata[reading.SUBSET_NAMESPACE]
    hint.update({reading.SUBSET_KEY: None})
    assert reading.message(request.SerializeToString())[2].subset is None


@pytest.mark.parametrize("entry", ["[fd00::7]:8000", "[fd00::7]", "fd00::7"])
def test_an_ipv6_address_is_found_in_each_of_its_forms(entry: str) -> None:
    endpoints = [
        make_endpoint("a", address="[fd00::7]:8000"),
        make_endpoint("b", address="[fd00::8]:8000"),
    ]
    assert list(within((entry,), endpoints)) == endpoints[:1]


def test_order_is_that_of_the_pool() -> None:
    endpoints = pool()
    assert list(within((OTHER, BEST), endpoints)) == [endpoints[0], endpoints[2]]
    with pytest.raises(OutsideSubsetError, match="none of the 3 endpoints"):
        within((), endpoints)
