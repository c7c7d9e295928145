"""A lost pod, a lost endpoint picker and a full pool; cases of the conformance suite."""

from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from conformance.echo import EchoPool, EchoServer
from conformance.gateways import (
    ANY,
    DESTINATION,
    PIN,
    PINNED,
    SERVED,
    Json,
    Pool,
    PoolGateway,
    echo_in,
    ext_proc_in,
    running_gateway,
    running_pool,
)
from epp.lab.envoy import Mode
from tools.harness.gateway import picking

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

REASON = "x-llm-d-request-dropped-reason"
OBJECTIVES = (Path(__file__).parents[2] / "deploy/objects/batch.yaml",)
"""The objective ``batch`` has a priority below 0."""
BATCH = {"x-llm-d-inference-objective": "batch"}

LISTS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: destination-endpoint-served-verifier
- type: session-affinity-scorer
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 2}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: session-affinity-scorer
  - pluginRef: max-score-picker
"""
"""Lists two endpoints, that of the session first."""


async def test_case_5_the_one_that_served_after_a_retry_is_reported_and_holds_the_load(
    mode: Mode,
) -> None:
    dead, alive = servers = (EchoServer(), EchoServer())
    async with (
        running_pool(*servers, config=LISTS) as pool,
        running_gateway({"primary": pool}, mode=mode) as gateway,
    ):
        dead.stop()
        endpoint = pool.picker.app.pool.store.find_address(dead.address)
        assert endpoint is not None
        session = {"x-session-token": b64encode(endpoint.name.encode()).decode()}
        with capture_logs() as lines:
            response = await gateway.ask("primary", session)
            await gateway.assert_untouched()
        assert response.status_code == 200
        echo = echo_in(response)
        assert echo.headers[DESTINATION] == f"{dead.address},{alive.address}"
        assert response.headers[SERVED] == echo.address == alive.address
        served_by = pool.picker.app.pool.store.find_address(alive.address)
        assert served_by is not None
        assert [line["endpoint"] for line in lines if "outcome" in line] == [served_by.name]


@asynccontextmanager
async def losing_its_picker(
    mode: Mode, *, opens: bool
) -> AsyncIterator[tuple[PoolGateway, Callable[[], Awaitable[None]]]]:
    """Run a gateway that fails open or closed, and what stops its endpoint picker."""

    def set_failure_mode(document: Json) -> None:
        ext_proc_in(document)["failure_mode_allow"] = opens

    async with EchoPool([EchoServer() for _ in range(3)]) as pods, AsyncExitStack() as stack:
        picker = await stack.enter_async_context(picking(pods, config=PINNED))
        pools = {"primary": Pool(pods, picker)}
        async with running_gateway(pools, edit=set_failure_mode, mode=mode) as gateway:
            for address in pods.addresses:
                response = await gateway.ask("primary", {PIN: address})
                assert (response.status_code, echo_in(response).address) == (200, address)
            yield gateway, stack.aclose


@pytest.mark.parametrize(
    ("mode", "status"),
    [
        pytest.param(Mode.ADAPTIVE, 200, id="adaptive"),
        # Envoy cannot: a body that is on its way to the endpoint picker is lost with it.
        pytest.param(Mode.LEAN, 500, id="lean"),
        pytest.param(Mode.FULL_DUPLEX, 500, id="full-duplex"),
    ],
)
async def test_case_8_failing_open_any_pod_answers_without_the_endpoint_picker(
    mode: Mode, status: int
) -> None:
    async with losing_its_picker(mode, opens=True) as (gateway, stop_picker):
        await stop_picker()
        pool = gateway.pools["primary"]
        pin = {PIN: pool.addresses[0]}
        async for response in gateway.in_one_write(5, "primary", pin):
            assert response.status == status
            bodyless = await gateway.client.get("/v1/models", headers={"host": "primary.test"})
            assert bodyless.status_code == 200
        # Nobody steers any more: round robin.
        assert all(reached > 1 for reached in pool.reached().values())


async def test_case_9_failing_closed_nobody_answers_without_the_endpoint_picker(
    mode: Mode,
) -> None:
    async with losing_its_picker(mode, opens=False) as (gateway, stop_picker):
        await stop_picker()
        before = gateway.pools["primary"].reached()
        for _ in range(5):
            assert (await gateway.ask("primary")).status_code == 500
            bodyless = await gateway.client.get("/v1/models", headers={"host": "primary.test"})
            assert bodyless.status_code == 500
        assert gateway.pools["primary"].reached() == before


async def test_case_12_a_pool_without_endpoints_is_503(mode: Mode) -> None:
    server = EchoServer()
    async with running_pool(server, config=ANY) as pool:
        pool.picker.app.pool.store.replace_endpoints("--endpoint", [])
        async with running_gateway({"any": pool}, mode=mode) as gateway:
            bodyless = await gateway.client.get("/v1/models", headers={"host": "any.test"})
            for response in (bodyless, await gateway.ask("any")):
                assert response.status_code == 503
                assert response.headers[REASON] == "rejected-no-endpoints"
            await gateway.assert_untouched()
    assert server.requests == 0


async def test_case_13_a_full_pool_turns_sheddable_requests_away_and_no_others(
    mode: Mode,
) -> None:
    servers = [EchoServer(waiting=50) for _ in range(3)]
    async with (
        running_pool(*servers, config=ANY, objects=OBJECTIVES) as pool,
        running_gateway({"any": pool}, mode=mode) as gateway,
    ):
        for _ in range(5):
            shed = await gateway.ask("any", BATCH)
            assert shed.status_code == 429
            assert shed.headers[REASON] == "rejected-saturated"
        assert sum(pool.reached().values()) == 0
        answered = await gateway.ask_often(20, "any")
        assert answered.total() == 20
        await gateway.assert_untouched()


async def test_case_13_a_pool_with_room_takes_sheddable_requests(mode: Mode) -> None:
    async with (
        running_pool(config=ANY, objects=OBJECTIVES) as pool,
        running_gateway({"any": pool}, mode=mode) as gateway,
    ):
        assert (await gateway.ask("any", BATCH)).status_code == 200
        await gateway.assert_untouched()
