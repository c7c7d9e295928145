"""Fixtures of all tests: a watched event loop, reproducible examples and, on demand, the log."""

import gc
import inspect
import signal
import ssl
import sys
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any

import httpx
import pytest
import structlog
from blockbuster import blockbuster_ctx
from grpc import aio
from hypothesis import is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers
from log_watch import Logs, watched_logs
from looptime._internal import plugin

from epp.observability.log_levels import LEVELS

_HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""The signals that commands handle."""

settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")
# Hypothesis also draws the constants of all modules that are loaded: examples would depend on what
# ran before them in the process, and a failure could not be reproduced alone.
providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt what collection leaves, 2 million objects, from garbage collection.

    To traverse them repeatedly took 9 s of a worker's 25 s of collection and a quarter of the time
    of its tests. A test that calls ``gc.unfreeze`` has to freeze them again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()  # the garbage, too: to collect it takes a second


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set the limit of long tests to 90 s, and run files that start processes first.

    Those files take the longest: if they run first, no worker waits long for another at the end.
    By itself xdist would begin with files of many tests; the Makefile tells it not to.
    """
    first = set()
    for item in items:
        starts_processes = item.get_closest_marker("integration") is not None
        if starts_processes:
            first.add(item.path)
        # These need 2 s of CPU time: ten times as long on a machine with ten busy processes.
        is_random = is_hypothesis_test(getattr(item, "obj", None))
        needs_cpu = is_random or item.path.parent.name == "tool_runs"
        if (starts_processes or needs_cpu) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(90))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path not in first)


@pytest.fixture(scope="session", autouse=True)
def _remember_fixtures_of_event_loops() -> Iterator[None]:
    """Let looptime decide once for each fixture whether it makes an event loop.

    It searches pytest-asyncio for that in the setup of every fixture: 2 ms a test.
    """
    search = plugin._should_patch
    known: dict[tuple[str, str], bool] = {}

    def remembered(fixture: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> bool:
        key = fixture.func.__module__, fixture.argname  # all that the search depends on
        if key not in known:
            known[key] = search(fixture, request)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin, "_should_patch", remembered)
        yield


@pytest.fixture(scope="session", autouse=True)
def _share_certificate_authorities() -> Iterator[None]:
    """Give all clients of httpx one default TLS context: it takes 25 ms to make, some 500 times."""
    make = httpx.create_ssl_context
    default = cache(make)

    def shared(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None:
            return default(trust_env=trust_env)
        return make(verify, cert, trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", shared)
        yield


@pytest.fixture(scope="session", autouse=True)
def _keep_grpc_aio() -> Iterator[None]:
    """Keep grpc.aio's poller for the whole run.

    When its last server or channel is collected it joins the poller's thread, in whatever test the
    collector happens to run: that test's loop would count as blocked.
    """
    aio.init_grpc_aio()
    yield
    aio.shutdown_grpc_aio()


@pytest.fixture(autouse=True)
def _keep_the_configuration_of_the_process() -> Iterator[None]:
    """Undo what a command that runs in the test's process has configured."""
    logging, seconds, thresholds = (
        structlog.get_config(),
        sys.getswitchinterval(),
        gc.get_threshold(),
    )
    handlers = [(number, signal.getsignal(number)) for number in _HANDLED]
    yield
    if structlog.get_config() != logging:
        structlog.configure(**logging)
    sys.setswitchinterval(seconds)
    gc.set_threshold(*thresholds)
    for number, handler in handlers:
        # A closed uvloop leaves its own handler there.
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _watch_the_event_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail an async test in which our code blocks the event loop."""
    # Sync tests run no loop of ours; watching costs 0.3 ms a test.
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        yield
        return
    with blockbuster_ctx(["epp", "epp_plugins"]) as watch:
        # A page of metrics lists /proc/self/fd, on a loop where nothing else is served.
        counting = "epp/sockets/descriptor_limit.py", "open_descriptors"
        watch.functions["os.scandir"].can_block_in(*counting)
        # It also reads /proc/self/stat and, at the start, what the kernel counts time in.
        for name in ("os.listdir", "io.BufferedReader.read", "io.TextIOWrapper.read"):
            watch.functions[name].can_block_in("prometheus_client/process_collector.py", "collect")
        yield


@pytest.fixture
def logs() -> Iterator[Logs]:
    with watched_logs() as captured:
        yield captured


@pytest.fixture
def debug_level() -> Iterator[None]:
    """Log at level debug."""
    LEVELS.change("", "debug")
    yield
    LEVELS.start("info")
