"""deploy/sidecar: the manifests are valid, and their command lines serve, drain and stop.

There is no container engine here. The command lines are run as processes, with the mounts and the
ports mapped to what this machine has free, in the order in which Kubernetes and Compose start and
stop containers.
"""

import asyncio
import contextlib
import re
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.main import get_command

from epp.cli import cli
from epp.lab.envoy import validate
from epp.lab.envoy.names import STAT_PREFIX

from .harness import DEPLOY
from .processes import Processes, epp_address, gateway_url, processes, socket_address

pytestmark = pytest.mark.integration

SIDECAR = DEPLOY / "sidecar"
CONFIG = "/etc/gateway"
SERVING = health_pb2.HealthCheckResponse.SERVING


@dataclass(frozen=True, slots=True)
class Manifest:
    """What both kinds of manifest say, in one form."""

    picker: tuple[str, ...]
    """Command line behind `epp`."""
    envoy: tuple[str, ...]
    drain: tuple[str, ...]
    """What is run before Envoy is stopped."""
    bootstrap: Path
    """What Envoy finds as envoy.yaml."""
    users: Mapping[str, tuple[int, int]]
    """User and group by container."""
    mounts: Mapping[str, frozenset[str]]
    """Folders by container."""
    images: Mapping[str, str]


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((SIDECAR / name).read_text())
    return document


def containers(pod: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    (picker,), (envoy,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    return picker, envoy


def from_pod() -> Manifest:
    pod = load("pod.yaml")
    picker, envoy = containers(pod)
    both = {each["name"]: each for each in (picker, envoy)}
    group = pod["spec"]["securityContext"]["runAsGroup"]
    return Manifest(
        picker=tuple(picker["args"]),
        envoy=tuple(envoy["command"]),
        drain=tuple(envoy["lifecycle"]["preStop"]["exec"]["command"]),
        bootstrap=DEPLOY / "envoy" / "sidecar-unix-socket.yaml",
        users={name: (each["securityContext"]["runAsUser"], group) for name, each in both.items()},
        mounts={
            name: frozenset(mount["mountPath"] for mount in each["volumeMounts"])
            for name, each in both.items()
        },
        images={name: each["image"] for name, each in both.items()},
    )


def from_compose() -> Manifest:
    services = load("docker-compose.yaml")["services"]
    envoy = services["envoy"]
    sources = {volume.split(":")[1]: volume.split(":")[0] for volume in envoy["volumes"]}
    assert (SIDECAR / sources[f"{CONFIG}/drain.sh"]).samefile(SIDECAR / "drain.sh")
    return Manifest(
        picker=tuple(services["epp"]["command"]),
        envoy=(*envoy["entrypoint"], *envoy["command"]),
        drain=tuple(envoy["pre_stop"][0]["command"]),
        bootstrap=(SIDECAR / sources[f"{CONFIG}/envoy.yaml"]).resolve(),
        users={name: _user_and_group(each["user"]) for name, each in services.items()},
        mounts={
            name: frozenset(volume.split(":")[1] for volume in each["volumes"])
            for name, each in services.items()
        },
        images={name: each["image"] for name, each in services.items()},
    )


def _user_and_group(text: str) -> tuple[int, int]:
    user, group = text.split(":")
    return int(user), int(group)


BOTH = [pytest.param(from_pod(), id="pod"), pytest.param(from_compose(), id="compose")]


def option(line: tuple[str, ...], name: str) -> str:
    """Return the value of `name=value` or of `name value`."""
    for index, each in enumerate(line):
        if each.startswith(f"{name}="):
            return each.partition("=")[2]
        if each == name:
            return line[index + 1]
    return ""


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


@pytest.mark.parametrize("manifest", BOTH)
def test_epp_serve_takes_the_command_line(manifest: Manifest) -> None:
    serve = get_command(cli).commands["serve"]  # type: ignore[attr-defined]
    taken = serve.make_context("epp serve", list(manifest.picker)).params
    assert str(taken["endpoints_file"]) == f"{CONFIG}/endpoints.yaml"
    assert taken["secure_serving"] == "false"
    assert (taken["grpc_health_port"], taken["metrics_port"]) == (9003, 9090)


@pytest.mark.parametrize("manifest", BOTH)
def test_envoy_finds_the_endpoint_picker_where_it_listens(manifest: Manifest) -> None:
    document = yaml.safe_load(manifest.bootstrap.read_text())
    address = epp_address(document["static_resources"]["clusters"][0])
    if listen := option(manifest.picker, "--listen"):
        path = Path(listen.removeprefix("unix:"))
        assert address == {"pipe": {"path": str(path)}}
        assert all(str(path.parent) in mounts for mounts in manifest.mounts.values())
    else:
        host = option(manifest.picker, "--host")
        assert address == {"socket_address": {"address": host, "port_value": 9002}}


@pytest.mark.parametrize("manifest", BOTH)
def test_envoy_accepts_the_bootstrap_and_the_drain_fits_it(manifest: Manifest) -> None:
    text = manifest.bootstrap.read_text()
    validate(text)
    document = yaml.safe_load(text)
    (listener,) = document["static_resources"]["listeners"]
    assert socket_address(listener) == {"address": "0.0.0.0", "port_value": 8080}
    shell, script, admin_port, accept, longest = manifest.drain
    assert (shell, script) == ("bash", f"{CONFIG}/drain.sh")
    assert socket_address(document["admin"])["port_value"] == int(admin_port)
    assert option(manifest.envoy, "--drain-time-s") == accept
    assert int(accept) < int(longest)
    assert option(manifest.envoy, "--config-path") == f"{CONFIG}/envoy.yaml"
    # The script reads the figure of this listener's requests.
    assert f"http\\.{STAT_PREFIX}\\.downstream_rq_active" in (SIDECAR / "drain.sh").read_text()


@pytest.mark.parametrize("manifest", BOTH)
def test_users_are_those_of_the_images_and_share_the_group_of_the_socket(
    manifest: Manifest,
) -> None:
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text()
    assert re.search(r"^USER (\d+):(\d+)$", dockerfile, re.M)[0] == "USER 65532:65532"  # type: ignore[index]
    assert manifest.users == {"epp": (65532, 65532), "envoy": (101, 65532)}
    assert "distroless" not in manifest.images["envoy"]


def test_the_pod_probes_what_the_endpoint_picker_answers() -> None:
    picker, envoy = containers(load("pod.yaml"))
    probes = {kind: picker[f"{kind}Probe"]["grpc"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {
        "startup": {"port": 9003, "service": "readiness"},
        "liveness": {"port": 9003, "service": "liveness"},
        "readiness": {"port": 9003, "service": "readiness"},
    }
    # The kubelet asks at the Pod's address.
    assert option(tuple(picker["args"]), "--host") == ""
    assert (
        envoy["readinessProbe"]["tcpSocket"]["port"] == envoy["ports"][0]["containerPort"] == 8080
    )
    assert {each["name"]: each["containerPort"] for each in picker["ports"]} == {
        "health": 9003,
        "metrics": 9090,
    }


def test_the_pod_stops_envoy_first_and_in_time() -> None:
    spec = load("pod.yaml")["spec"]
    picker, _ = containers({"spec": spec})
    assert picker["restartPolicy"] == "Always", "else it is no sidecar container, and stopped first"
    manifest = from_pod()
    needed = int(manifest.drain[-1]) + seconds(option(manifest.picker, "--drain-timeout"))
    assert spec["terminationGracePeriodSeconds"] >= needed + 10


def test_the_volumes_of_the_pod_are_mounted_and_the_socket_is_for_the_group() -> None:
    spec = load("pod.yaml")["spec"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    for container in containers({"spec": spec}):
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "emptyDir" in volumes["socket"]
    context = spec["securityContext"]
    assert context["fsGroup"] == context["runAsGroup"] == 65532
    text = (SIDECAR / "pod.yaml").read_text()
    made = re.search(r"create configmap (\S+)(.*?)#   kubectl", text, re.S)
    assert made is not None
    assert made[1] == volumes["config"]["configMap"]["name"]
    files = {
        target or Path(source).name: DEPLOY.parent / source
        for target, source in re.findall(r"--from-file=(?:([\w.]+)=)?(\S+)", made[2])
    }
    assert files.keys() == {"envoy.yaml", "endpoints.yaml", "drain.sh"}
    assert all(path.is_file() for path in files.values())
    assert files["envoy.yaml"] == from_pod().bootstrap


def test_compose_starts_the_endpoint_picker_first_and_so_stops_it_last() -> None:
    services = load("docker-compose.yaml")["services"]
    assert services["envoy"]["depends_on"] == {"epp": {"condition": "service_healthy"}}
    assert "depends_on" not in services["epp"]
    assert {each["network_mode"] for each in services.values()} == {"host"}
    assert all(each["read_only"] for each in services.values())
    (mount,) = services["epp"]["volumes"]
    assert mount == f".:{CONFIG}:ro"
    drain_timeout = seconds(option(tuple(services["epp"]["command"]), "--drain-timeout"))
    assert seconds(services["epp"]["stop_grace_period"]) >= drain_timeout + 10


class ModelServer:
    """Answers completions; a streamed one is held after its first event."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.port = 0
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as connections:

            def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = connections.create_task(self._serve(reader, writer))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            try:
                yield
            finally:
                server.close()
                for task in self._connections:
                    task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = b""
                if b"transfer-encoding: chunked" in head.lower():
                    body = await reader.readuntil(b"\r\n0\r\n\r\n")
                elif length := re.search(rb"content-length: *(\d+)", head, re.I):
                    body = await reader.readexactly(int(length[1]))
                await self._respond(head, body, writer)
        writer.close()

    async def _respond(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        elif b'"stream":true' not in body.replace(b" ", b""):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        else:
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            for event in EVENTS:
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                await self.go_on.wait()
            writer.write(b"0\r\n\r\n")
        await writer.drain()


EVENTS = [b'data: {"n":%d}\n\n' % number for number in range(20)] + [b"data: [DONE]\n\n"]


@dataclass(slots=True)
class Mapped:
    """A manifest's command lines with this machine's paths and ports."""

    manifest: Manifest
    processes: Processes

    @property
    def folder(self) -> Path:
        return self.processes.folder

    async def picker(self) -> tuple[asyncio.subprocess.Process, dict[str, int]]:
        return await self.processes.picker(*self.manifest.picker)

    async def envoy(self, picker_port: int) -> tuple[asyncio.subprocess.Process, str]:
        """Start Envoy; return the address of its admin endpoint, too."""
        name, *args = self.manifest.envoy
        assert name == "envoy"
        return await self.processes.envoy(self.manifest.bootstrap, picker_port, *args)

    async def drain(self, admin: str) -> asyncio.subprocess.Process:
        shell, script, *_ = map(self.processes.here, self.manifest.drain)
        return await self.processes.start(shell, script, admin.rpartition(":")[2], "1", "40")


@asynccontextmanager
async def mapping(manifest: Manifest) -> AsyncIterator[Mapped]:
    # Not tmp_path: that of a long test name is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="epp-") as name:
        folder = Path(name)
        (folder / "run").mkdir()
        (folder / "etc").mkdir()
        (folder / "etc" / "drain.sh").write_bytes((SIDECAR / "drain.sh").read_bytes())
        places = {CONFIG: str(folder / "etc"), "/run/epp": str(folder / "run")}
        async with processes(folder, places) as started:
            yield Mapped(manifest, started)


async def health(port: int, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    return int(response.status)


async def no_more_lets_in(port: int) -> None:
    """Wait until new connections are refused."""
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            writer.close()
            await asyncio.sleep(0.01)


def completion(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Hello", **more}


@pytest.mark.asyncio
@pytest.mark.parametrize("manifest", BOTH)
async def test_it_serves_and_stops_in_order_with_a_response_in_flight(manifest: Manifest) -> None:
    server = ModelServer()
    async with (
        server.running(),
        mapping(manifest) as mapped,
        contextlib.AsyncExitStack() as stack,
    ):
        sample = yaml.safe_load((SIDECAR / "endpoints.yaml").read_text())
        (first, _) = sample["endpoints"]
        listed = {"endpoints": [{**first, "address": "127.0.0.1", "port": server.port}]}
        (mapped.folder / "etc" / "endpoints.yaml").write_text(yaml.safe_dump(listed))

        picker, ports = await mapped.picker()
        for service in ("liveness", "readiness"):
            assert await health(ports["health"], service) == SERVING
        if option(manifest.picker, "--listen"):
            assert ports["grpc"] == 0
            mode = (mapped.folder / "run" / "ext-proc.sock").stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o660

        envoy, admin_address = await mapped.envoy(ports["grpc"])
        clients = [
            await asyncio.to_thread(httpx.AsyncClient, base_url=url, trust_env=False, timeout=30)
            for url in (f"http://{admin_address}", "")
        ]
        admin, client = [await stack.enter_async_context(each) for each in clients]
        client.base_url = httpx.URL(await gateway_url(admin))
        assert (await client.post("/v1/completions", json=completion())).text == "{}"

        streamed = client.stream("POST", "/v1/completions", json=completion(stream=True))
        response = await stack.enter_async_context(streamed)
        assert response.status_code == 200
        pieces = response.aiter_bytes()
        received = await anext(pieces)
        assert received == EVENTS[0], "the rest is held"

        drain = await mapped.drain(admin_address)
        # While it drains requests are scheduled still, on connections that end with the response.
        await until_responses_close(client)
        await no_more_lets_in(client.base_url.port or 0)
        before = await looks(admin)
        while await looks(admin) < before + 3:
            assert drain.returncode is None, "it waits for the response in flight"
            await asyncio.sleep(0.02)
        server.go_on.set()
        received += b"".join([piece async for piece in pieces])
        assert received == b"".join(EVENTS)
        assert await asyncio.wait_for(drain.wait(), 20) == 0

        envoy.terminate()
        assert await asyncio.wait_for(envoy.wait(), 20) == 0
        assert await health(ports["health"], "readiness") == SERVING, "it goes last"
        picker.terminate()
        assert await asyncio.wait_for(picker.wait(), 20) == 0
        assert not list((mapped.folder / "run").iterdir())


async def looks(admin: httpx.AsyncClient) -> int:
    """Connections to Envoy's admin endpoint: drain.sh makes one for each look."""
    name = "http.admin.downstream_cx_total"
    response = await admin.get("/stats", params={"filter": f"^{name}$", "format": "json"})
    (found,) = response.json()["stats"]
    return int(found["value"])


async def until_responses_close(client: httpx.AsyncClient) -> None:
    """Wait until responses, all of them good, tell their clients that the connection ends."""
    async with asyncio.timeout(60):
        while True:
            response = await client.post("/v1/completions", json=completion())
            assert response.status_code == 200
            if response.headers.get("connection") == "close":
                return


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("page", "status"),
    [
        pytest.param("http.gateway.downstream_rq_active: 0", 0, id="nothing in flight"),
        pytest.param("http.gateway.downstream_rq_active: 10", 2, id="requests are left"),
        pytest.param("", 2, id="the figure is not there"),
        pytest.param(None, 1, id="Envoy cannot be reached"),
    ],
)
async def test_the_drain_tells_how_it_ended(page: str | None, status: int) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.partition(b" HTTP/")[0])
        writer.write(f"HTTP/1.1 200 OK\r\n\r\n{page}\n".encode())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if page is None:
        server.close()
        await server.wait_closed()
    process = await asyncio.create_subprocess_exec(
        *("bash", SIDECAR / "drain.sh", str(port), "0", "2"), stderr=asyncio.subprocess.DEVNULL
    )
    assert await asyncio.wait_for(process.wait(), 20) == status
    server.close()
    if page is not None:
        first, *more = asked
        assert first == b"POST /drain_listeners?graceful"
        assert set(more) == {b"GET /stats?filter=^http\\.gateway\\.downstream_rq_active$"}


@pytest.mark.asyncio
@pytest.mark.parametrize("service", ["readiness", "nobody"])
async def test_the_health_check_of_compose_tells_ready_from_not(service: str) -> None:
    command = load("docker-compose.yaml")["services"]["epp"]["healthcheck"]["test"]
    assert command == ["CMD", "epp", "health"]
    servicer = grpc_health.aio.HealthServicer()
    await servicer.set("readiness", SERVING)
    health_server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, health_server)
    port = health_server.add_insecure_port("127.0.0.1:0")
    await health_server.start()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command[1:], "--address", f"127.0.0.1:{port}"),
        *("--service", service),
        stderr=asyncio.subprocess.DEVNULL,
    )
    status = await asyncio.wait_for(process.wait(), 20)
    await health_server.stop(0)
    assert (status == 0) == (service == "readiness")
