"""The wires for the protocol's rules, and one gateway with five pools for the cases."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from ext_proc.conftest import _hang_up, wire

from conformance.echo import EchoServer
from conformance.gateways import ANY, Pool, PoolGateway, running_gateway, running_pool
from epp.lab.envoy import Mode, ModelServerProtocol

__all__ = ["_hang_up", "wire"]

PODS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
RANKS = 3
"""Ports of each pod of the pool ``ranks``."""


@pytest.fixture(scope="module", params=Mode, ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> Mode:
    made: Mode = request.param
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pools() -> AsyncIterator[dict[str, Pool]]:
    """Five pools, as the suite's manifests have them."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(made)
            for name, made in {
                "primary": running_pool(),
                "secondary": running_pool(),
                "ranks": running_pool(*(EchoServer(ip) for ip in PODS for _ in range(RANKS))),
                "h2c": running_pool(protocol=ModelServerProtocol.H2C),
                "any": running_pool(*(EchoServer(ip) for ip in PODS), config=ANY),
            }.items()
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(pools: dict[str, Pool], mode: Mode) -> AsyncIterator[PoolGateway]:
    """A gateway that tests share; each leaves it as it was."""
    hosts = {
        "weighted": {"/": {"primary": 70, "secondary": 30}},
        "paths": {"/primary/": {"primary": 1}, "/secondary/": {"secondary": 1}},
    }
    async with running_gateway(pools, hosts, mode=mode) as made:
        yield made
        await made.assert_untouched()
