"""Two ``epp serve`` on one host that share their state over sockets, behind a real Envoy."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import httpx
import pytest

from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from tools.faults.processes import Setting, site

pytestmark = pytest.mark.integration

PEERS = "llm_d_epp_replica_peers"
SHARED = "llm_d_epp_replica_peer_inflight_requests"


def sockets(folder: Path) -> Sequence[str]:
    # A lease that does not end during the test.
    return ("--replica-state", f"unix://{folder}/replicas", "--replica-lease", "10m")


@pytest.mark.parametrize("end", [SIGKILL, SIGTERM], ids=["killed", "stopped"])
async def test_a_replica_that_ends_frees_its_load_at_once(end: Signals) -> None:
    fleet, setting = FleetConfig(endpoints=2, time_scale=5.0), Setting(Mode.LEAN)
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 2000, "stream": True}
    drain = ("--drain-timeout", "0s", "--drain-delay-seconds", "0")
    client = await asyncio.to_thread(httpx.AsyncClient, timeout=60.0, trust_env=False)
    async with site(setting, fleet, *drain, pickers=2, prepare=sockets) as made, client:
        ended, left = made.pickers
        for picker in made.pickers:
            await picker.until(PEERS, 1)
        url = f"{made.url}/v1/completions"
        async with (
            client.stream("POST", url, json=body) as first,
            client.stream("POST", url, json=body) as second,
        ):
            assert first.status_code == second.status_code == 200
            await left.until(SHARED, 1)
            ended.signal(end)
            await ended.wait()
            await left.until(SHARED, 0)
            assert await left.metric(PEERS) == 0
            again = await made.start_picker()
            await again.until(SHARED, 1)
        await again.until(SHARED, 0)
        assert await left.errors() == await again.errors() == []
