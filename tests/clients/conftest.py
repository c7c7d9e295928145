"""One gateway for each module and mode."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from epp.lab.envoy import Mode
from tools.harness.gateway import MODES

from .harness import Clients, gateway_for_clients


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> Mode:
    made: Mode = request.param
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(mode: Mode) -> AsyncIterator[Clients]:
    """Clients of a gateway that several tests share: each leaves it as it found it."""
    async with gateway_for_clients(mode) as made:
        yield made
