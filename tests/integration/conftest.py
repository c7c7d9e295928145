"""Fixtures: each transport, and each mode of Envoy."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from epp.app import Transport
from epp.lab.envoy import Mode
from tools.harness.gateway import MODES, TRANSPORTS, Gateway, running


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Transport:
    made: Transport = request.param
    return made


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> Mode:
    made: Mode = request.param
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(mode: Mode, transport: Transport) -> AsyncIterator[Gateway]:
    """A gateway that several tests share: each leaves it as it found it."""
    async with running(mode, transport=transport) as made:
        yield made
