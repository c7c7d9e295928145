"""deploy/docker-compose.yaml without containers: its commands serve, and Prometheus sees it.

Grafana and vLLM are no Debian packages: their part is checked as files only.
"""

import asyncio
import contextlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from deploy.harness import DEPLOY
from deploy.processes import Processes, gateway_url, processes, until
from system.tools import find

from tools.dashboards import DASHBOARDS
from tools.harness.ports import free_ports

pytestmark = pytest.mark.integration

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "docker-compose.yaml").read_text())[
    "services"
]
CONFIGURED = DEPLOY / "compose"


@dataclass(frozen=True, slots=True)
class Mounts:
    """What a service finds where."""

    files: dict[str, Path]
    """Source by path in the container."""
    volumes: frozenset[str]
    """Paths of named volumes in the container."""


def mounts(name: str) -> Mounts:
    pairs = [volume.split(":")[:2] for volume in SERVICES[name]["volumes"]]
    return Mounts(
        {path: DEPLOY / source for source, path in pairs if source.startswith(".")},
        frozenset(path for source, path in pairs if not source.startswith(".")),
    )


def at_hand(folder: Path, *, metrics_port: int, server: str) -> Path:
    """Write Prometheus's file with the addresses of this machine; return its path."""
    document = yaml.safe_load((CONFIGURED / "prometheus.yaml").read_text())
    picker, servers = document["scrape_configs"]
    assert picker["static_configs"] == [{"targets": ["epp:9090"]}]
    picker["static_configs"] = [{"targets": [f"127.0.0.1:{metrics_port}"]}]
    (names,) = (each["names"] for each in servers.pop("dns_sd_configs"))
    assert names == SERVICES["fake"]["networks"]["default"]["aliases"]
    servers["static_configs"] = [{"targets": [server]}]
    # The default, a minute, would be over after the test.
    document["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    files = mounts("prometheus").files
    document["rule_files"] = [str(files[path]) for path in document["rule_files"]]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(document))
    return folder / "prometheus.yaml"


async def start_prometheus(started: Processes, file: Path) -> str:
    """Start Prometheus with the words of its service; return its URL."""
    found = mounts("prometheus")
    (data,) = found.volumes
    places = {"/etc/prometheus/prometheus.yaml": str(file), data: str(started.folder / "data")}
    words = list(SERVICES["prometheus"]["command"])
    for place, here in places.items():
        assert sum(word.partition("=")[2] == place for word in words) == 1
        words = [word.replace(f"={place}", f"={here}") for word in words]
    (port,) = free_ports(1)
    await started.start(find("prometheus"), *words, f"--web.listen-address=127.0.0.1:{port}")
    return f"http://127.0.0.1:{port}"


async def responds_to_queries(client: httpx.AsyncClient, url: str) -> None:
    """Wait until Prometheus has read its data: it refuses connections, then answers 503."""
    async with asyncio.timeout(40):
        while True:
            with contextlib.suppress(httpx.ConnectError):
                if (await client.get(f"{url}/-/ready")).status_code == httpx.codes.OK:
                    return
            await asyncio.sleep(0.1)  # it says only when asked


async def start_fake(started: Processes) -> str:
    """Start a fake model server; return its address."""
    service = SERVICES["fake"]
    assert service["entrypoint"][0] == "epp"
    (port,) = free_ports(1)
    words = [
        word.replace("--first-port=8000", f"--first-port={port}").replace("0.0.0.0", "127.0.0.1")
        for word in (*service["entrypoint"][1:], *service["command"])
    ]
    listed = started.folder / "endpoints"
    process = await started.start(
        sys.executable, "-m", "epp", *words, f"--write-endpoints={listed}"
    )
    await until(listed.exists, process)
    return f"127.0.0.1:{port}"


async def asked(client: httpx.AsyncClient, url: str, query: str) -> list[dict[str, Any]]:
    response = await client.get(f"{url}/api/v1/query", params={"query": query})
    found: list[dict[str, Any]] = response.json()["data"]["result"]
    return found


async def alerts(client: httpx.AsyncClient, url: str) -> dict[str, tuple[str, str]]:
    """Return the health of each rule, ``unknown`` before its first evaluation, and its state."""
    groups = (await client.get(f"{url}/api/v1/rules")).json()["data"]["groups"]
    return {
        rule["name"]: (rule["health"], rule["state"]) for group in groups for rule in group["rules"]
    }


async def test_a_completion_passes_and_prometheus_counts_it() -> None:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-")))
        places = {"/run/epp": str(folder), "/etc/gateway": str(folder)}
        assert mounts("epp").volumes == mounts("envoy").volumes == {"/run/epp"}
        places |= {path: str(found) for path, found in mounts("epp").files.items()}
        started = await stack.enter_async_context(processes(folder, places))
        server = await start_fake(started)

        words = list(SERVICES["epp"]["command"])
        words[words.index("--endpoint-dns=model-servers:8000")] = f"--endpoint={server}"
        _, ports = await started.picker("serve", *words)
        client, admin = [
            await stack.enter_async_context(
                await asyncio.to_thread(httpx.AsyncClient, trust_env=False, timeout=20)
            )
            for _ in range(2)
        ]
        bootstrap = mounts("envoy").files["/etc/gateway/envoy.yaml"]
        _, address = await started.envoy(bootstrap, 0, *SERVICES["envoy"]["command"])
        admin.base_url = httpx.URL(f"http://{address}")
        gateway = await gateway_url(admin)
        body = {"model": "tiny", "prompt": "Hello"}
        response = await client.post(f"{gateway}/v1/completions", json=body)
        assert response.status_code == 200
        assert response.json()["choices"][0]["text"]

        file = await asyncio.to_thread(
            at_hand, folder, metrics_port=ports["metrics"], server=server
        )
        prometheus = await start_prometheus(started, file)
        await responds_to_queries(client, prometheus)
        async with asyncio.timeout(20):
            while not (counted := await asked(client, prometheus, "llm_d_epp_request_total")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert [float(each["value"][1]) for each in counted] == [1.0]
        assert {each["metric"]["job"] for each in counted} == {"epp"}
        async with asyncio.timeout(20):
            while len(await asked(client, prometheus, "up == 1")) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        mounted = mounts("prometheus").files["/etc/prometheus/rules.yaml"]
        groups = yaml.safe_load(await asyncio.to_thread(mounted.read_text))["groups"]
        names = [rule["alert"] for group in groups for rule in group["rules"]]
        assert list(await alerts(client, prometheus)) == names
        # The alerts look at this job: after its first scrape, none says that it is down.
        async with asyncio.timeout(20):
            while (await alerts(client, prometheus))["EndpointPickerDown"] != ("ok", "inactive"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    file = await asyncio.to_thread(at_hand, tmp_path, metrics_port=1, server="127.0.0.1:1")
    checking = await asyncio.create_subprocess_exec(
        find("promtool"), "check", "config", file, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await checking.communicate()
    assert checking.returncode == 0, output
    assert b"SUCCESS: 1 rule files found" in output


def test_grafana_asks_the_prometheus_of_this_file() -> None:
    path = mounts("grafana").files["/etc/grafana/provisioning/datasources/prometheus.yaml"]
    (source,) = yaml.safe_load(path.read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (port,) = SERVICES["prometheus"]["ports"]
    assert port.endswith(":9090")


def test_grafana_finds_the_dashboards_and_opens_the_fleet_first() -> None:
    files = mounts("grafana").files
    path = files["/etc/grafana/provisioning/dashboards/endpoint-picker.yaml"]
    (provider,) = yaml.safe_load(path.read_text())["providers"]
    folder = files[provider["options"]["path"]]
    assert len(list(folder.glob("*.json"))) == len(DASHBOARDS)
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    place, _, name = home.rpartition("/")
    assert (files[place] / name).exists()
