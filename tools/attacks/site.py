"""A gateway of real processes to attack.

They are the fake fleet, hostile model servers, the endpoint picker and Envoy. Envoy has a second
listener, which routes to the healthy servers without the endpoint picker: honest requests on it
show the latency without the endpoint picker.
"""

import asyncio
import copy
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from epp.lab.envoy import (
    ClientHeaders,
    EnvoyProcess,
    GatewayConfig,
    HeaderRules,
    HeaderToSet,
    Mode,
)
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import LISTENER, MODEL_SERVERS_CLUSTER
from tools import REPOSITORY
from tools.attacks.attack import Server, Setup, Target
from tools.attacks.catalogue import Together
from tools.attacks.listed_clients import API_KEY, FAIRNESS
from tools.attacks.log_pipe import LogPipe

START_SECONDS = 60.0
SOUND_SERVERS = 3
TIME_SCALE = 0.2
"""Time scale of the fake fleet: a token takes 2 ms."""
SLOTS_PER_SERVER = 2
"""Requests per server at which the pool is full, with flow control."""
WAITING = 100
"""Maximum number of requests that wait in a band."""
DIRECT = "direct"
"""Listener and cluster without the endpoint picker."""

FLOW_CONFIG = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: session-affinity-scorer
  parameters:
    strategy: encoded_endpoint_header
    encodedEndpointHeaderConfig: {{header: x-session-token}}
- {{type: concurrency-detector, parameters: {{maxConcurrency: {SLOTS_PER_SERVER}}}}}
- type: round-robin-fairness-policy
- type: metrics-data-source
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
  - {{pluginRef: session-affinity-scorer, weight: 5}}
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  defaultPriorityBand: {{maxRequests: {WAITING}, fairnessPolicyRef: round-robin-fairness-policy}}
"""


FLOWS_BY_API_KEY = HeaderRules(
    client_headers=ClientHeaders.STRIP, to_set=(HeaderToSet(FAIRNESS, f"%REQ({API_KEY})%"),)
)


@dataclass(slots=True)
class Site:
    """A running gateway."""

    target: Target
    direct: int
    """The port of Envoy's listener without the endpoint picker."""
    picker: asyncio.subprocess.Process
    envoy: EnvoyProcess
    log: LogPipe


@asynccontextmanager
async def site(mode: Mode, setup: Setup, together: Together) -> AsyncIterator[Site]:
    """Run a gateway for some attacks."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-attacks-")))
        sound = await _fleet(folder, stack)
        ports = await _hostile(folder, sorted(together.servers), stack)
        endpoints = folder / "endpoints.json"
        await asyncio.to_thread(endpoints.write_text, _endpoints(sound, ports))
        picker, log, ready = await _picker(folder, endpoints, setup, together.open_files, stack)
        every = [*sound, *(f"127.0.0.1:{port}" for port in ports.values())]
        text = _bootstrap(mode, setup, tuple(every), tuple(sound), ready["grpc"])
        envoy = await stack.enter_async_context(EnvoyProcess(text))
        _, gateway = await envoy.listener_address(LISTENER)
        _, direct = await envoy.listener_address(DIRECT)
        target = Target(gateway, ready["grpc"], ready["health"], ready["metrics"])
        yield Site(target, direct, picker, envoy, log)


def _endpoints(sound: list[str], hostile: dict[Server, int]) -> str:
    named = [(f"endpoint-{n}", address) for n, address in enumerate(sound)]
    named += [(str(kind), f"127.0.0.1:{port}") for kind, port in hostile.items()]
    entries = []
    for name, address in named:
        host, _, port = address.rpartition(":")
        entries.append({"name": name, "address": host, "port": int(port)})
    return json.dumps({"endpoints": entries})


async def _fleet(folder: Path, stack: AsyncExitStack) -> list[str]:
    """Start ``epp fleet`` and return its addresses."""
    file = folder / "fleet.json"
    fleet = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "fleet", "--endpoints", str(SOUND_SERVERS)),
        *("--time-scale", str(TIME_SCALE), "--max-num-seqs", "512"),
        *("--write-endpoints", str(file)),
        stdout=asyncio.subprocess.DEVNULL,
    )
    stack.push_async_callback(_end, fleet)
    await _until_there(file, fleet)
    document = json.loads(await asyncio.to_thread(file.read_text))
    return [f"{each['address']}:{each['port']}" for each in document["endpoints"]]


async def _hostile(
    folder: Path, kinds: Sequence[Server], stack: AsyncExitStack
) -> dict[Server, int]:
    """Start hostile servers of these kinds and return their ports."""
    if not kinds:
        return {}
    file = folder / "hostile.json"
    servers = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.attacks.hostile_servers", "--ready-file", str(file), *kinds),
        cwd=REPOSITORY,
    )
    stack.push_async_callback(_end, servers)
    await _until_there(file, servers)
    document = json.loads(await asyncio.to_thread(file.read_text))
    return {Server(kind): port for kind, port in document.items()}


async def _picker(
    folder: Path, endpoints: Path, setup: Setup, open_files: int, stack: AsyncExitStack
) -> tuple[asyncio.subprocess.Process, LogPipe, dict[str, int]]:
    """Start ``epp serve``; return it, its log and its ports."""
    ready, log = folder / "ready.json", LogPipe()
    stack.callback(log.close)
    limit = f"ulimit -n {open_files}; " if open_files else ""
    options = ["--endpoints-file", str(endpoints), "--ready-file", str(ready)]
    if setup is not Setup.DEFAULT:
        options += ["--config-text", FLOW_CONFIG]
    picker = await asyncio.create_subprocess_exec(
        *("sh", "-c", limit + 'exec "$@"', "sh", sys.executable, "-m", "epp", "serve"),
        *("--host", "127.0.0.1", "--secure-serving=false"),
        *("--drain-delay-seconds", "0", "--drain-timeout", "1s"),
        "--allow-experimental-plugins",
        *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", *options),
        stdout=log.writer,
        stderr=log.writer,
    )
    stack.push_async_callback(_end, picker)
    log.close_writer()
    log.read_on()
    await _until_there(ready, picker)
    return picker, log, json.loads(await asyncio.to_thread(ready.read_text))


async def _until_there(file: Path, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_SECONDS):
        while not await asyncio.to_thread(file.exists):
            if process.returncode is not None:
                raise RuntimeError(f"a process of the gateway ended with {process.returncode}")
            await asyncio.sleep(0.02)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def _bootstrap(
    mode: Mode, setup: Setup, endpoints: tuple[str, ...], sound: tuple[str, ...], epp_port: int
) -> str:
    config = GatewayConfig(
        mode=mode,
        listen_port=0,
        epp_port=epp_port,
        endpoints=endpoints,
        headers=FLOWS_BY_API_KEY if setup is Setup.FLOW else HeaderRules(),
    )
    document = bootstrap(config)
    resources = document["static_resources"]
    (listener,) = resources["listeners"]
    resources["listeners"].append(_past_the_picker(listener))
    alone = bootstrap(replace(config, endpoints=sound))["static_resources"]["clusters"]
    (cluster,) = (each for each in alone if each["name"] == MODEL_SERVERS_CLUSTER)
    resources["clusters"].append(cluster | {"name": DIRECT})
    return json.dumps(document)


def _past_the_picker(listener: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the listener without the endpoint picker."""
    made = copy.deepcopy(listener)
    made["name"] = DIRECT
    manager = made["filter_chains"][0]["filters"][0]["typed_config"]
    filters = manager["http_filters"]
    manager["http_filters"] = [each for each in filters if "ext_proc" not in each["name"]]
    for host in manager["route_config"]["virtual_hosts"]:
        for route in host["routes"]:
            route["route"]["cluster"] = DIRECT
    return made
