"""Run a whole gateway in one terminal: a fake fleet, the endpoint picker and a real Envoy.

Each part is a separate process, as in production. This module starts them in order, waits until
each is ready, and stops all of them when one exits or the user stops the command.
"""

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from epp.lab.envoy import (
    EnvoyProcess,
    GatewayConfig,
    GatewayLimits,
    HeaderRules,
    Mode,
    find_envoy,
)
from epp.settings import GrpcHealthPort, GrpcPort, MetricsPort

T = TypeVar("T")

READY_TIMEOUT_SECONDS = 20.0
READY_POLL_SECONDS = 0.05
STOP_TIMEOUT_SECONDS = 10.0


PREDICTED_TIME_CONFIG = Path(__file__).with_name("predicted-time.yaml")
"""Configuration of the endpoint picker if none is given."""


class UpError(Exception):
    """A part of the gateway could not be started, or exited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """Settings of the gateway to start."""

    mode: Mode = Mode.LEAN
    endpoints: tuple[str, ...] = ()
    """Real model servers, ``ip:port``; empty: a fake fleet is started."""
    fleet_size: int = 3
    fleet_args: tuple[str, ...] = ()
    """Further arguments for ``epp fleet``."""
    serve_args: tuple[str, ...] = ()
    """Further arguments for ``epp serve``."""
    port: int = 8080
    """Port of Envoy's listener."""
    grpc_port: GrpcPort = 9002
    grpc_health_port: GrpcHealthPort = 9003
    metrics_port: MetricsPort = 9090
    drain_timeout_seconds: float = 5.0
    model: str = "tiny"
    headers: HeaderRules = field(default_factory=HeaderRules)
    """Changes that Envoy makes to client headers."""
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    """Limits per client."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A running gateway."""

    url: str
    model: str
    endpoints: Sequence[str]
    envoy: EnvoyProcess
    metrics_url: str

    def curl(self, *, stream: bool = False) -> str:
        """Return a curl command that requests a completion through the gateway."""
        body: dict[str, object] = {"model": self.model, "prompt": "Hello", "max_tokens": 8}
        if stream:
            body["stream"] = True
        buffering = "-N " if stream else ""
        return (
            f"curl -i {buffering}{self.url}/v1/completions -H 'content-type: application/json'"
            f" -d '{json.dumps(body)}'"
        )


@dataclass(slots=True)
class _Child:
    """An ``epp`` command as a process in its own session, so that Ctrl-C does not reach it."""

    name: str
    args: Sequence[str]
    process: asyncio.subprocess.Process | None = field(default=None)

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "epp", *self.args, start_new_session=True
        )

    async def ended(self) -> None:
        """Wait until the process exits, and raise UpError."""
        assert self.process is not None  # noqa: S101 - started before it is watched
        code = await self.process.wait()
        raise UpError(f"the {self.name} exited with status {code}; see its last lines above")

    async def stop(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


def default_config(serve_args: Sequence[str]) -> Path | None:
    """Return the configuration of an endpoint picker that is given none.

    Args:
        serve_args: Arguments for ``epp serve``.

    Returns:
        None if these name a configuration, or ask for the behaviour of the Go EPP.
    """
    options = {each.partition("=")[0] for each in serve_args}
    if options & {"--config-file", "--config-text", "--compat"}:
        return None
    return PREDICTED_TIME_CONFIG


async def up(
    settings: UpSettings,
    *,
    stop: asyncio.Event,
    say: Callable[[str], None],
    ready: Callable[[RunningGateway], None],
) -> None:
    """Run a gateway until ``stop`` is set.

    Args:
        settings: The parts to start, and their settings.
        stop: Stops the gateway when set.
        say: Called with a message when a part is ready.
        ready: Called once with the gateway when it can serve requests.

    Raises:
        UpError: A part did not start, or exited.
        EnvoyError: Envoy is missing, rejected its bootstrap, or exited during startup.
    """
    running = asyncio.create_task(_run(settings, say, ready), name="gateway")
    stopped = asyncio.create_task(_wait(stop), name="stop")
    try:
        await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        say("stopping")
    finally:
        # A cancelled _run() stops the parts that it has started.
        await _cancel([running, stopped])


async def _run(
    settings: UpSettings, say: Callable[[str], None], ready: Callable[[RunningGateway], None]
) -> None:
    # In threads, because of disk I/O.
    await asyncio.to_thread(find_envoy)  # fails before the fleet is started
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="epp-up-"))
        stack.push_async_callback(asyncio.to_thread, shutil.rmtree, folder)
        children: list[_Child] = []
        file = folder / "endpoints.json"
        if settings.endpoints:
            serve_from = [arg for each in settings.endpoints for arg in ("--endpoint", each)]
            addresses: Sequence[str] = settings.endpoints
        else:
            args = ("fleet", "--endpoints", str(settings.fleet_size), "--model", settings.model)
            fleet = _Child("fleet", (*args, "--write-endpoints", str(file), *settings.fleet_args))
            await _start(fleet, stack, children)
            addresses = await _until_ready(lambda: _read_addresses(file), children)
            serve_from = ["--endpoints-file", str(file)]
            say(f"fleet ready: {len(addresses)} fake servers at {', '.join(addresses)}")

        ready_file = folder / "epp-ready"
        epp = _Child(
            "endpoint picker",
            (
                "serve",
                "--secure-serving=false",
                "--allow-experimental-plugins",
                *("--grpc-port", str(settings.grpc_port)),
                *("--grpc-health-port", str(settings.grpc_health_port)),
                *("--metrics-port", str(settings.metrics_port)),
                *("--drain-delay-seconds", "0"),
                *("--drain-timeout", f"{settings.drain_timeout_seconds:g}s"),
                *("--ready-file", str(ready_file)),
                *serve_from,
                *settings.serve_args,
            ),
        )
        await _start(epp, stack, children)
        ports = await _until_ready(lambda: _read_json(ready_file), children)
        say(f"endpoint picker ready: ext_proc on port {ports['grpc']}")

        envoy = await _start_envoy(settings, addresses, ports["grpc"], stack)
        host, port = await envoy.listener_address()
        say(f"gateway ready: Envoy in {settings.mode.value} mode on {host}:{port}")
        ready(
            RunningGateway(
                url=f"http://{host}:{port}",
                model=settings.model,
                endpoints=addresses,
                envoy=envoy,
                metrics_url=f"http://127.0.0.1:{ports['metrics']}/metrics",
            )
        )
        await _until_one_ends(children, envoy)


async def _start(child: _Child, stack: contextlib.AsyncExitStack, children: list[_Child]) -> None:
    stack.push_async_callback(child.stop)
    await child.start()
    children.append(child)


async def _start_envoy(
    settings: UpSettings,
    addresses: Sequence[str],
    epp_port: int,
    stack: contextlib.AsyncExitStack,
) -> EnvoyProcess:
    config = GatewayConfig(
        mode=settings.mode,
        endpoints=tuple(addresses),
        listen_port=settings.port,
        epp_port=epp_port,
        headers=settings.headers,
        limits=settings.limits,
    )
    # A late import, in a thread: importing Envoy's types takes most of a second.
    text = await asyncio.to_thread(_render, config)
    return await stack.enter_async_context(EnvoyProcess(text))


def _render(config: GatewayConfig) -> str:
    from epp.lab.envoy.bootstrap import render_yaml  # noqa: PLC0415

    return render_yaml(config)


async def _until_ready(look: Callable[[], T | None], children: Sequence[_Child]) -> T:
    """Call `look` until its result is not None.

    Raises:
        UpError: A child exited, or the time is over.
    """
    watchers = [asyncio.create_task(child.ended(), name=child.name) for child in children]
    try:
        async with asyncio.timeout(READY_TIMEOUT_SECONDS):
            while (found := await asyncio.to_thread(look)) is None:
                done, _ = await asyncio.wait(watchers, timeout=READY_POLL_SECONDS)
                for watcher in done:
                    await watcher
    except TimeoutError as error:
        name = children[-1].name
        raise UpError(f"the {name} is not ready after {READY_TIMEOUT_SECONDS:g} s") from error
    finally:
        await _cancel(watchers)
    return found


async def _until_one_ends(children: Sequence[_Child], envoy: EnvoyProcess) -> None:
    gone = asyncio.create_task(_envoy_ended(envoy), name="envoy")
    watchers = [asyncio.create_task(child.ended(), name=child.name) for child in children]
    try:
        done, _ = await asyncio.wait([gone, *watchers], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
    finally:
        await _cancel([gone, *watchers])


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


async def _envoy_ended(envoy: EnvoyProcess) -> None:
    code = await envoy.wait()
    raise UpError(f"Envoy exited with status {code}:\n{envoy.log_tail}")


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _read_json(path: Path) -> dict[str, int] | None:
    try:
        document: dict[str, int] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return document


def _read_addresses(path: Path) -> list[str] | None:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return [f"{each['address']}:{each['port']}" for each in document["endpoints"]]
