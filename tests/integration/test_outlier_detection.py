"""A model server that is down, hangs or fails gets no requests, through a real Envoy."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from epp.lab.envoy import Mode
from epp.lab.envoy.names import MODEL_SERVERS_CLUSTER
from epp.lab.fleet import FleetConfig
from epp.outlier_detection import EndpointHealth, HealthState, OutlierSettings
from epp.outlier_detection.silences import WAITING_REQUESTS
from tools.harness.gateway import NO_FAULTS, Gateway, running, until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

FLEET = FleetConfig(endpoints=4, time_scale=0.05)
EJECTING = {
    "outliers": OutlierSettings(health_check_interval_seconds=0.1, response_overdue_seconds=0.3)
}


@pytest_asyncio.fixture(
    loop_scope="module", scope="module", params=Mode, ids=[mode.value for mode in Mode]
)
async def four(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    async with running(request.param, fleet=FLEET, serve=EJECTING) as gateway:
        yield gateway


def health_of(gateway: Gateway, number: int) -> EndpointHealth:
    assert gateway.app.pool.outliers is not None
    address = gateway.fleet.servers[number].address
    (health,) = [
        health for endpoint, health in gateway.app.pool.outliers if endpoint.address == address
    ]
    return health


def state_of(gateway: Gateway, number: int) -> HealthState:
    return health_of(gateway, number).state


async def served(gateway: Gateway, requests: int) -> list[tuple[int, str]]:
    """Send requests at once; return the status and server of each."""
    responses = await asyncio.gather(*(gateway.completion() for _ in range(requests)))
    return [
        (response.status_code, response.headers.get("x-served-by", "")) for response in responses
    ]


async def until_state(gateway: Gateway, number: int, state: HealthState) -> None:
    await until(lambda: state_of(gateway, number) is state)


async def recovered(gateway: Gateway, number: int) -> None:
    """Send requests until a server ejected for failed responses is healthy again; none fails."""
    await until(lambda: state_of(gateway, number) is not HealthState.EJECTED)
    sent = 0
    while state_of(gateway, number) is not HealthState.HEALTHY:
        response = await gateway.completion(prompt=f"{sent} is in no server's prefix cache")
        assert response.status_code == 200
        sent += 1


async def test_a_server_that_refuses_connections_gets_nothing_until_it_is_back(
    four: Gateway,
) -> None:
    await four.fleet.servers[0].refuse()
    await until_state(four, 0, HealthState.EJECTED)
    responses = await served(four, 40)
    assert {status for status, _ in responses} == {200}
    assert "endpoint-0" not in {server for _, server in responses}
    await four.fleet.servers[0].start()
    await until_state(four, 0, HealthState.HEALTHY)
    assert four.app.pool.outliers is not None
    assert len(four.app.pool.outliers.available()) == 4


async def test_a_server_that_hangs_gets_nothing_until_it_is_back(four: Gateway) -> None:
    server = four.fleet.servers[1]
    server.faults.hang = True
    await until_state(four, 1, HealthState.EJECTED)
    responses = await served(four, 40)
    assert {status for status, _ in responses} == {200}
    assert "endpoint-1" not in {name for _, name in responses}
    server.faults.hang = False
    await until_state(four, 1, HealthState.HEALTHY)


async def test_a_server_that_fails_fast_attracts_no_load(four: Gateway) -> None:
    ((_, name),) = await served(four, 1)  # the next ones go there, too: it has their prefix
    number = int(name.removeprefix("endpoint-"))
    server = four.fleet.servers[number]
    server.faults.error_status = 500
    try:
        statuses = []
        while state_of(four, number) is not HealthState.EJECTED:
            ((status, _),) = await served(four, 1)
            statuses.append(status)
            assert len(statuses) < 200, "it was never ejected"
        assert statuses.count(500) == 3
        ejections = sum(health_of(four, number).ejections.values())
        responses = [status for status, _ in await served(four, 40)]
        assert set(responses) <= {200, 500}
        # None while it is ejected; if that ends meanwhile, a probe or two, which eject it again.
        again = sum(health_of(four, number).ejections.values()) - ejections
        assert responses.count(500) <= 2 * again
    finally:
        server.faults.error_status = None
    await recovered(four, number)


async def test_requests_of_a_crashed_server_are_served_by_the_next_best_one(four: Gateway) -> None:
    ((_, name),) = await served(four, 1)  # the next ones go there, too: it has their prefix
    number = int(name.removeprefix("endpoint-"))
    server = four.fleet.servers[number]
    server.faults.hang_generation = True
    batches: list[asyncio.Task[list[tuple[int, str]]]] = []
    while server.counters.in_flight == 0:
        assert len(batches) < 20, "no request was sent to it"
        batches.append(asyncio.create_task(served(four, 16)))
        await until(lambda: server.counters.in_flight > 0 or batches[-1].done())
    await server.refuse()
    responses = [response for batch in await asyncio.gather(*batches) for response in batch]
    assert {status for status, _ in responses} == {200}
    server.faults.hang_generation = False
    await server.start()
    await recovered(four, number)


async def test_a_server_whose_health_page_fails_gets_nothing_until_it_passes(
    four: Gateway,
) -> None:
    server = four.fleet.servers[0]
    server.faults.health_status = 503
    await until_state(four, 0, HealthState.EJECTED)
    assert "endpoint-0" not in {name for _, name in await served(four, 40)}
    server.faults.health_status = None
    await until_state(four, 0, HealthState.HEALTHY)


async def test_responses_and_retries_are_counted_by_endpoint(four: Gateway) -> None:
    await four.fleet.servers[1].refuse()
    await until_state(four, 1, HealthState.EJECTED)
    before = {e.address: list(e.responses) for e in four.app.pool.store.snapshot}
    responses = await served(four, 20)
    await four.settled()
    after = {e.address: list(e.responses) for e in four.app.pool.store.snapshot}
    for server in four.fleet.servers:
        ours = [status for status, name in responses if name == server.name]
        assert after[server.address][2] - before[server.address][2] == len(ours)
    page = (await four.client.get(f"http://127.0.0.1:{four.ports.metrics}/metrics")).text
    counted = [
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("llm_d_epp_endpoint_responses_total") and 'code_class="2xx"' in line
    ]
    assert sum(counted) == sum(counts[2] for counts in after.values())
    assert "llm_d_epp_endpoint_retries_total" in page
    await four.fleet.servers[1].start()
    await until_state(four, 1, HealthState.HEALTHY)


async def test_operators_see_state_reason_and_count(four: Gateway) -> None:
    await four.fleet.servers[3].refuse()
    await until_state(four, 3, HealthState.EJECTED)
    url = f"http://127.0.0.1:{four.ports.metrics}"
    page = (await four.client.get(f"{url}/debug/endpoints")).json()
    shown = {each["address"]: each for each in page["endpoints"]}[four.fleet.servers[3].address]
    assert (shown["state"], page["panic"]) == ("ejected", False)
    assert shown["reason"] in {  # whichever comes first at an idle server
        "2 failed scrapes in a row (connect)",
        "2 failed health checks in a row (connect)",
    }
    metrics = (await four.client.get(f"{url}/metrics")).text
    of_it = [line for line in metrics.splitlines() if line.startswith("llm_d_epp_endpoint_")]
    assert [line for line in of_it if 'state="ejected"' in line] == [
        'llm_d_epp_endpoint_health{model_server_endpoint="'
        + shown["name"].rpartition("/")[2]
        + '",name="default",state="ejected"} 1.0'
    ]
    assert "llm_d_epp_outlier_detection_panic" in metrics
    assert 'llm_d_epp_ready_endpoints{name="default"} 3.0' in metrics
    await four.fleet.servers[3].start()
    await until_state(four, 3, HealthState.HEALTHY)


async def test_a_server_whose_generations_hang_gets_nothing_until_they_work(four: Gateway) -> None:
    server = four.fleet.servers[2]
    server.faults.hang_generation = True
    clients: list[asyncio.Task[httpx.Response]] = []
    while server.counters.in_flight < WAITING_REQUESTS:
        assert len(clients) < 1000, "too few requests were sent to it"
        clients += [
            asyncio.create_task(
                four.completion(stream=True, max_tokens=200, prompt=f"{n} {'x' * 99}")
            )
            for n in range(len(clients), len(clients) + 24)
        ]
        await until(lambda: sum(not c.done() for c in clients) <= server.counters.in_flight)  # noqa: B023
    await until_state(four, 2, HealthState.EJECTED)
    assert "endpoint-2" not in {name for _, name in await served(four, 20)}
    server.faults.hang_generation = False
    for client in clients:
        client.cancel()
    await asyncio.wait(clients)
    await recovered(four, 2)


def circuit_breakers(bootstrap: dict[str, Any]) -> None:
    """Let Envoy send one request at a time to the model servers."""
    (pool,) = [
        c for c in bootstrap["static_resources"]["clusters"] if c["name"] == MODEL_SERVERS_CLUSTER
    ]
    pool["circuit_breakers"] = {"thresholds": [{"max_requests": 1}]}


@pytest.mark.parametrize("mode", Mode)
async def test_requests_above_envoys_own_limits_eject_no_server(mode: Mode) -> None:
    async with running(mode, fleet=FLEET, serve=EJECTING, edit=circuit_breakers) as gateway:
        responses = await served(gateway, 60)
        assert {status for status, _ in responses} == {200, 503}
        await gateway.settled()
        states = {state_of(gateway, number) for number in range(4)}
        assert states == {HealthState.HEALTHY}


@pytest.mark.parametrize("mode", Mode)
async def test_with_all_servers_gone_clients_get_an_error_and_are_asked_to_retry(
    mode: Mode,
) -> None:
    async with running(mode, fleet=FLEET, serve=EJECTING) as gateway:
        outliers = gateway.app.pool.outliers
        assert outliers is not None
        for server in gateway.fleet.servers:
            await server.refuse()
        await until(lambda: len(outliers.why_none_responds()) > 0)
        assert outliers.is_panicking
        for number in range(8):
            response = await gateway.completion(stream=number % 2 == 1)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["error"]["message"].startswith("no model server responds: all 4")
        await gateway.settled()
        assert await gateway.faults() == NO_FAULTS
        for server in gateway.fleet.servers:
            await server.start()
        await until(lambda: not outliers.is_panicking)
        assert {status for status, _ in await served(gateway, 8)} == {200}
