"""Destinations of requests without failures; each test is a case of the conformance suite."""

from collections.abc import Sequence

import pytest

from conformance.conftest import PODS, RANKS
from conformance.gateways import (
    BODY,
    DESTINATION,
    PIN,
    SERVED,
    SUBSET,
    SUBSET_LIST,
    Pool,
    PoolGateway,
    echo_in,
    running_gateway,
)
from epp.lab.envoy import Destination, Mode

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

ALL = (0, 1, 2)


async def test_case_1_a_pinned_request_reaches_that_pod_as_it_was_sent(
    gateway: PoolGateway,
) -> None:
    pool = gateway.pools["primary"]
    for address in pool.addresses:
        before = pool.reached()
        response = await gateway.ask("primary", {PIN: address})
        assert response.status_code == 200
        echo = echo_in(response)
        assert (echo.address, echo.body) == (address, BODY.decode())
        assert echo.headers[DESTINATION] == address
        assert pool.reached() == {**before, address: before[address] + 1}


@pytest.mark.parametrize("listed", [(2,), (0, 1), ALL], ids=["one", "two", "three"])
async def test_case_2_only_the_listed_pods_are_reached(
    gateway: PoolGateway, listed: Sequence[int]
) -> None:
    addresses = [gateway.pools["primary"].addresses[each] for each in listed]
    answered = await gateway.ask_often(100, "primary", {PIN: ",".join(addresses)})
    assert answered.total() == 100
    assert answered.keys() == set(addresses)


@pytest.mark.parametrize(
    ("listed", "reached"),
    [
        pytest.param([(1, None)], [(1, 0), (1, 1), (1, 2)], id="a pod"),
        pytest.param(
            [(0, None), (2, 1)], [(0, 0), (0, 1), (0, 2), (2, 1)], id="a pod and a port of another"
        ),
        pytest.param(
            [(0, None), (1, 0), (1, 2), (2, None)],
            [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (2, 2)],
            id="all but a port",
        ),
    ],
)
async def test_case_3_the_ports_of_a_pod_are_told_apart(
    gateway: PoolGateway,
    listed: Sequence[tuple[int, int | None]],
    reached: Sequence[tuple[int, int]],
) -> None:
    addresses = gateway.pools["ranks"].addresses
    names = [PODS[pod] if n is None else addresses[RANKS * pod + n] for pod, n in listed]
    # By chance, one of eight gets none of 200 once in 50 billion runs.
    answered = await gateway.ask_often(200, "ranks", {PIN: ",".join(names)})
    assert answered.total() == 200
    assert answered.keys() == {addresses[RANKS * pod + n] for pod, n in reached}


async def test_case_4_the_response_tells_which_pod_served(gateway: PoolGateway) -> None:
    for address in gateway.pools["primary"].addresses:
        response = await gateway.ask("primary", {PIN: address})
        assert response.headers[SERVED] == echo_in(response).address == address


async def test_case_4_it_tells_so_where_envoy_knows_no_pods(
    pools: dict[str, Pool], mode: Mode
) -> None:
    primary = {"primary": pools["primary"]}
    async with running_gateway(primary, mode=mode, destination=Destination.ORIGINAL_DST) as made:
        for address in pools["primary"].addresses:
            response = await made.ask("primary", {PIN: address})
            assert response.headers[SERVED] == echo_in(response).address == address
        await made.assert_untouched()


async def test_case_6_weights_hold_and_each_pool_is_asked_for_its_own(
    gateway: PoolGateway,
) -> None:
    primary, secondary = gateway.pools["primary"], gateway.pools["secondary"]
    union = ",".join(primary.addresses + secondary.addresses)
    answered = await gateway.ask_often(400, "weighted", {PIN: union})
    assert answered.total() == 400
    share = sum(answered[address] for address in primary.addresses) / 400
    assert share == pytest.approx(0.70, abs=0.13)  # by chance beyond it once in 20 million runs
    assert answered.keys() == {*primary.addresses, *secondary.addresses}


@pytest.mark.parametrize("by", ["host", "path"])
async def test_case_7_each_route_is_answered_by_its_pool(gateway: PoolGateway, by: str) -> None:
    for name in ("primary", "secondary"):
        pool = gateway.pools[name]
        union = gateway.pools["primary"].addresses + gateway.pools["secondary"].addresses
        host, path = (name, "") if by == "host" else ("paths", f"/{name}")
        for _ in range(20):
            response = await gateway.ask(
                host, {PIN: ",".join(union)}, path=f"{path}/v1/completions"
            )
            assert response.status_code == 200
            echo = echo_in(response)
            assert echo.address in pool.addresses
            assert echo.headers[DESTINATION] == echo.address


@pytest.mark.parametrize("form", [SUBSET, SUBSET_LIST], ids=["text", "list"])
@pytest.mark.parametrize(
    ("subset", "reached"),
    [
        pytest.param("{1}", {1}, id="one"),
        pytest.param("{0},{1}", {0, 1}, id="two"),
        pytest.param("{1} , ,{2},", {1, 2}, id="blanks and empty items"),
        pytest.param("127.0.0.2", {1}, id="an address without a port"),
        pytest.param("127.0.0.9:80,{2}", {2}, id="one that is known and one that is not"),
    ],
)
async def test_case_10_only_the_subset_is_reached(
    gateway: PoolGateway, subset: str, reached: set[int], form: str
) -> None:
    addresses = gateway.pools["any"].addresses
    # By chance, one of two gets none of 40 once in 500 billion runs.
    answered = await gateway.ask_often(40, "any", {form: subset.format(*addresses)})
    assert answered.keys() == {addresses[each] for each in reached}


async def test_case_10_without_a_subset_any_pod_is_reached(gateway: PoolGateway) -> None:
    answered = await gateway.ask_often(60, "any")
    assert answered.keys() == set(gateway.pools["any"].addresses)


@pytest.mark.parametrize(
    ("form", "subset"),
    [
        pytest.param(SUBSET_LIST, "", id="an empty list"),
        pytest.param(SUBSET_LIST, "127.0.0.9:80", id="a list of unknown ones"),
        pytest.param(SUBSET, ", ,", id="a text of blanks"),
        pytest.param(SUBSET, "127.0.0.9:80,127.0.0.1:9", id="a text of unknown ones"),
    ],
)
async def test_case_10_a_subset_that_names_nobody_is_503(
    gateway: PoolGateway, form: str, subset: str
) -> None:
    before = gateway.pools["any"].reached()
    response = await gateway.ask("any", {form: subset})
    assert response.status_code == 503
    assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
    assert gateway.pools["any"].reached() == before


@pytest.mark.parametrize("form", [SUBSET, SUBSET_LIST], ids=["text", "list"])
async def test_case_11_the_subset_binds_what_the_test_header_asks_for(
    gateway: PoolGateway, form: str
) -> None:
    pool = gateway.pools["primary"]
    one, other, third = pool.addresses
    both = {form: f"{one},{other}", PIN: f"{other},{third}"}
    assert await gateway.ask_often(20, "primary", both) == {other: 20}
    before = pool.reached()
    # The subset leaves an endpoint, the filter then none: 429, as the reference answers whatever
    # the filters of a profile leave empty.
    outside = await gateway.ask("primary", {form: one, PIN: other})
    assert outside.status_code == 429
    assert pool.reached() == before


@pytest.mark.parametrize(
    ("name", "protocol"), [("primary", "HTTP/1.1"), ("h2c", "HTTP/2")], ids=["http", "h2c"]
)
async def test_case_15_each_pool_is_spoken_to_in_its_protocol(
    gateway: PoolGateway, name: str, protocol: str
) -> None:
    for address in gateway.pools[name].addresses:
        response = await gateway.ask(name, {PIN: address})
        assert response.status_code == 200
        echo = echo_in(response)
        assert (echo.protocol, echo.address, echo.body) == (protocol, address, BODY.decode())
        assert response.headers[SERVED] == address
