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

TENANT = "x-llm-d-inference-fairness-id"
QUEUED = "llm_d_epp_flow_control_queue_size"
PEERS = "llm_d_epp_replica_peers"
SHARED = "llm_d_epp_replica_peer_inflight_requests"


LIMITED = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: proportion-fairness-policy, parameters: {defaultQueue: {limit: {requests: 1}}}}
- {type: queue-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]
flowControl:
  defaultPriorityBand: {fairnessPolicyRef: proportion-fairness-policy}
"""
"""Each tenant may have one request in flight."""


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


def limited(folder: Path) -> Sequence[str]:
    (folder / "config.yaml").write_text(LIMITED)
    return (*sockets(folder), "--config-file", str(folder / "config.yaml"))


async def test_a_tenants_limit_holds_at_both_replicas_together() -> None:
    fleet, setting = FleetConfig(endpoints=2, time_scale=5.0), Setting(Mode.LEAN)
    long = {"model": "tiny", "prompt": "Hello", "max_tokens": 2000, "stream": True}
    short = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
    client = await asyncio.to_thread(httpx.AsyncClient, timeout=60.0, trust_env=False)
    async with site(setting, fleet, pickers=2, prepare=limited) as made, client:
        for picker in made.pickers:
            await picker.until(PEERS, 1)
        url, mine, theirs = f"{made.url}/v1/completions", {TENANT: "a"}, {TENANT: "b"}
        async with client.stream("POST", url, json=long, headers=mine) as first:
            assert first.status_code == 200
            shared = [asyncio.create_task(each.until(SHARED, 1)) for each in made.pickers]
            await asyncio.wait(shared, return_when=asyncio.FIRST_COMPLETED)
            (other,) = [
                picker for picker, seen in zip(made.pickers, shared, strict=True) if seen.done()
            ]
            for each in shared:
                each.cancel()
            # Envoy takes turns, so that one of two comes to the replica that has nothing in flight.
            waiting = [
                asyncio.create_task(client.post(url, json=short, headers=mine)) for _ in range(2)
            ]
            await other.until(QUEUED, 1)
            response = await client.post(url, json=short, headers=theirs)
            assert response.status_code == 200
            assert not any(each.done() for each in waiting)
        assert [(await each).status_code for each in waiting] == [200, 200]
        assert await other.errors() == []
