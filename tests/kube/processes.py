"""The containers of a rendered Deployment as processes of this machine: there is no kubelet.

A volume is a folder; wherever a mount's path occurs, in arguments or in files of a ConfigMap, it
becomes the path of that folder.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import httpx
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kube.charts import containers

from epp.lab.envoy import find_envoy
from epp.lab.envoy.names import LISTENER
from tools.chart.helm import Document, of_kind
from tools.harness.kube.access import Account, until_granted
from tools.harness.kube.manifests import Manifests
from tools.harness.kube.objects import Namespace, checked
from tools.harness.kube.server import ApiServer

POD: Final = "llama-epp-7d9c5b8f4c-x2x9z"
SERVING: Final = health_pb2.HealthCheckResponse.SERVING


async def install_release(
    objects: Sequence[Document], namespace: Namespace, manifests: Manifests
) -> Account:
    """Create the objects of a release; return the account of its pods, whose rights count."""
    await manifests.create(objects, namespace.name)
    name = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    account = await account_of(namespace, name)
    await until_granted(namespace, account, of_kind(objects, "Role")["rules"], namespace.name)
    for each in objects:
        if each["kind"] == "ClusterRole" and "metrics-auth" in each["metadata"]["name"]:
            await until_granted(namespace, account, each["rules"], "")
    return account


async def account_of(namespace: Namespace, name: str) -> Account:
    """Return an account that is there."""
    found = checked(await namespace.admin.get(namespace.path("serviceaccounts", name)))
    return Account(namespace.name, name, found["metadata"]["uid"])


@dataclass(frozen=True, slots=True)
class Process:
    """A container that was started."""

    handle: asyncio.subprocess.Process
    log: Path
    """What it has written."""

    def runs(self) -> bool:
        """Return whether it has not ended."""
        return self.handle.returncode is None

    def end(self) -> str:
        """Return how it has ended, and what it had to say."""
        return f"ended with {self.handle.returncode}: {self.log.read_text()}"

    async def terminate(self) -> int:
        """Stop it as a kubelet does, with SIGTERM; return its exit status."""
        self.handle.terminate()
        return await self.handle.wait()


@dataclass(slots=True)
class Processes:
    """Containers that run, and those that can be started."""

    objects: Sequence[Document]
    folder: Path
    environment: dict[str, str]
    running: list[Process] = field(default_factory=list)

    async def picker(self, *more: str) -> Process:
        """Start the endpoint picker as its image does, and wait until it is ready.

        Args:
            more: Further arguments, which win over the chart's.
        """
        container = containers(list(self.objects))["epp"]
        words = [*self._mapped(container, container["args"]), *more]
        process = await self._start(sys.executable, "-m", "epp", "serve", *words)
        port = int(option(words, "--grpc-health-port"))
        await until_async(lambda: serves(port, "liveness"), process)
        return process

    async def envoy(self) -> str:
        """Start Envoy with free ports in its bootstrap; return the URL for clients."""
        container = containers(list(self.objects))["envoy"]
        self._free_ports_of_envoy(container)
        admin = self.folder / "admin"
        assert container["command"] == ["envoy"]
        binary = await asyncio.to_thread(find_envoy)
        words = self._mapped(container, container["args"])
        process = await self._start(
            str(binary), *words, "--admin-address-path", str(admin), "--concurrency", "1"
        )
        await until(lambda: admin.exists() and bool(admin.read_text()), process)
        return await _listener_url(admin.read_text())

    def _free_ports_of_envoy(self, container: Document) -> None:
        (bootstrap,) = self._mapped(container, ["/etc/envoy/envoy.yaml"])
        path = Path(bootstrap)
        (text,) = self._mapped(container, [path.read_text()])
        document = yaml.safe_load(text)
        (listener,) = document["static_resources"]["listeners"]
        for each in (listener, document["admin"]):
            each["address"]["socket_address"]["port_value"] = 0
        listener["address"]["socket_address"]["address"] = "127.0.0.1"
        path.write_text(yaml.safe_dump(document))

    async def stop(self) -> None:
        """Kill what still runs."""
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                process.handle.kill()
            await process.handle.wait()

    def _mapped(self, container: Document, texts: Sequence[str]) -> list[str]:
        result = list(texts)
        for mount in container["volumeMounts"]:
            target = str(self.folder / mount["name"])
            result = [text.replace(mount["mountPath"], target) for text in result]
        return result

    async def _start(self, *words: str) -> Process:
        path = self.folder / f"{len(self.running)}.log"
        with await asyncio.to_thread(path.open, "wb") as log:
            process = await asyncio.create_subprocess_exec(
                *words,
                env=self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
            )
        made = Process(process, path)
        self.running.append(made)
        return made


@asynccontextmanager
async def processes(
    objects: Sequence[Document], namespace: Namespace, api_server: ApiServer, token: str
) -> AsyncIterator[Processes]:
    """Prepare the volumes and the environment of the Deployment's pod."""
    # Not tmp_path: that of a long test name is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="epp-") as name:
        folder = Path(name)
        spec = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
        for volume in spec["volumes"]:
            path = folder / volume["name"]
            path.mkdir()
            if "configMap" in volume:
                files = of_kind(objects, "ConfigMap", volume["configMap"]["name"])["data"]
                for file, text in files.items():
                    (path / file).write_text(text)
        (folder / "token").write_text(token)
        kubeconfig = folder / "kubeconfig"
        api_server.write_kubeconfig(kubeconfig, tokenFile=str(folder / "token"))
        environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig)}
        for each in containers(list(objects))["epp"]["env"]:
            environment[each["name"]] = _value(each, namespace.name)
        made = Processes(objects, folder, environment)
        try:
            yield made
        finally:
            await made.stop()


def _value(variable: Document, namespace: str) -> str:
    if "value" in variable:
        return str(variable["value"])
    fields = {"metadata.namespace": namespace, "metadata.name": POD}
    return fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]


def option(words: Sequence[str], name: str) -> str:
    """Return the last value of ``name=value``."""
    return [each.partition("=")[2] for each in words if each.startswith(f"{name}=")][-1]


async def serves(port: int, service: str) -> bool:
    """Return whether a gRPC health check of a kubelet would succeed."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=2)
        except grpc.aio.AioRpcError:
            return False
    return bool(response.status == SERVING)


async def until(holds: Callable[[], bool], process: Process | None = None) -> None:
    """Wait for what another process does, unless it ends; fail after 20 s."""
    async with asyncio.timeout(20):
        while not holds():
            assert process is None or process.runs(), process.end()
            await asyncio.sleep(0.01)  # nothing there tells of it


async def until_async(holds: Callable[[], object], process: Process | None = None) -> None:
    """Wait in the same way for the result of a coroutine."""
    async with asyncio.timeout(20):
        while not await holds():  # type: ignore[misc]
            assert process is None or process.runs(), process.end()
            await asyncio.sleep(0.02)


async def _listener_url(admin_address: str) -> str:
    async with await asyncio.to_thread(
        httpx.AsyncClient, base_url=f"http://{admin_address}", trust_env=False
    ) as admin:
        async with asyncio.timeout(20):
            while (await admin.get("/ready")).status_code != httpx.codes.OK:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        listeners = json.loads((await admin.get("/listeners", params={"format": "json"})).text)
    (found,) = (each for each in listeners["listener_statuses"] if each["name"] == LISTENER)
    return f"http://127.0.0.1:{found['local_address']['socket_address']['port_value']}"
