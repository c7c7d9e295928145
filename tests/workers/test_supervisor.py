"""The supervisor starts workers, appoints a leader, restarts dead ones, and stops all."""

import asyncio
import mmap
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kubernetes.conftest import write_kubeconfig
from kubernetes.fake_api import PODS, fake_api
from structlog.testing import capture_logs

from epp.config import DEFAULT_CONFIG, load_text
from epp.kubernetes.api import ApiClient, load_connection
from epp.kubernetes.source import PodSource, PoolRef
from epp.settings import Ports, ServeSettings
from epp.workers import Supervisor, WorkerError, worker_process
from epp.workers import supervisor as supervisor_module
from epp.workers.control import WorkerReport, messages
from epp.workers.flight_rows import ROW_BYTES, OwnRow, PeerRow

DISCOVERY = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, name: found, parameters: {path: /none}}
dataLayer: {discovery: {pluginRef: found}}
"""
STUB = Path(__file__).with_name("stub_worker.py")


def settings(workers: int = 2, **more: Any) -> ServeSettings:
    return ServeSettings(
        **{
            "config": load_text(DEFAULT_CONFIG, "test"),
            "workers": workers,
            "host": "127.0.0.1",
            "grpc_port": 0,
            "grpc_health_port": 0,
            "metrics_port": 0,
            **more,
        }
    )


class Run:
    """A supervisor with stubs."""

    def __init__(self, folder: Path, made: Supervisor, stop: asyncio.Event, memory: int) -> None:
        self.folder = folder
        self.supervisor = made
        self.stop = stop
        self.ports = Ports(0, 0, 0)
        self.rows = memory

    def pid(self, index: int) -> int:
        return int((self.folder / f"pid-{index}").read_text())

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(15):
            while not holds():  # noqa: ASYNC110 - other processes do not tell of it
                await asyncio.sleep(0.01)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def ready(self) -> int:
        return sum(each.is_ready for each in self.supervisor._workers)

    async def health(self) -> int:
        request = health_pb2.HealthCheckRequest(service="readiness")
        async with aio.insecure_channel(f"127.0.0.1:{self.ports.health}") as channel:
            return int((await health_pb2_grpc.HealthStub(channel).Check(request)).status)


@asynccontextmanager
async def supervised(
    folder: Path, workers: int = 2, *, program: Path = Path(sys.executable), **more: Any
) -> AsyncIterator[Run]:
    """Run a supervisor with stubs, which ``program`` runs; all are ready."""
    memory, stop = os.memfd_create("test"), asyncio.Event()
    made = Supervisor(settings(workers, **more), memory, [str(program), str(STUB), str(folder)])
    run = Run(folder, made, stop, memory)
    ready: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(made.run(stop, ready.set_result))
            running.add_done_callback(lambda _: ready.done() or ready.cancel())
            run.ports = await ready
            try:
                yield run
            finally:
                stop.set()
    finally:
        os.close(memory)


async def test_all_workers_run_one_leads_and_all_end_at_the_stop(tmp_path: Path) -> None:
    async with supervised(tmp_path, 3) as run:
        assert await run.health() == health_pb2.HealthCheckResponse.SERVING
        assert run.ports.grpc > 0
        assert run.has("leads-0")
        assert not run.has("leads-1")
        pids = [run.pid(index) for index in range(3)]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_it_watches_the_kubernetes_api_for_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_api() as api:
        path = await asyncio.to_thread(write_kubeconfig, tmp_path / "kubeconfig", api.url)
        monkeypatch.setenv("KUBECONFIG", str(path))
        connection = await asyncio.to_thread(load_connection)
        api.create(PODS, "a")
        async with supervised(tmp_path, pods=PodSource("d", PoolRef("pool"))) as run:
            for worker in run.supervisor._workers:
                relay = worker.place.watch_relay
                assert relay is not None
                assert (await asyncio.to_thread(relay.parent.stat)).st_mode & 0o777 == 0o700
                async with ApiClient(connection, relay=relay) as client:
                    body = await client.list_page(
                        PODS, namespace="d", params={}, timeout_seconds=10
                    )
                assert b'"name":"a"' in body.replace(b" ", b"")
            assert len(api.requests) == api.watches == 1
        await api.until(lambda: api.watches == 0)


@pytest.mark.parametrize("has_discovery", [False, True])
async def test_without_pods_it_watches_nothing(tmp_path: Path, has_discovery: bool) -> None:
    more: dict[str, Any] = {}
    if has_discovery:  # it comes before the pool
        more["pods"] = PodSource("d", PoolRef("pool"))
        more["config"] = load_text(DISCOVERY, "test")
    async with supervised(tmp_path, **more) as run:
        assert [each.place.watch_relay for each in run.supervisor._workers] == [None, None]


async def test_without_the_extra_the_workers_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "epp.kubernetes.watch_relay", None)
    async with supervised(tmp_path, pods=PodSource("d", PoolRef("pool"))) as run:
        assert [each.place.watch_relay for each in run.supervisor._workers] == [None, None]


async def test_a_killed_worker_comes_back_and_another_one_leads_at_once(tmp_path: Path) -> None:
    async with supervised(tmp_path) as run:
        with capture_logs() as logs:
            before = run.pid(0)
            os.kill(before, signal.SIGKILL)
            await run.until(lambda: run.has("leads-1"))
            await run.until(lambda: run.pid(0) != before)
            await run.until(lambda: run.supervisor.is_ready)
        ended = [each for each in logs if each["event"] == "worker ended, it is started again"]
        assert [(each["worker"], each["status"]) for each in ended] == [(0, -9)]
        # The one that has come back does not take over again.
        assert (tmp_path / "leads-0").stat().st_mtime <= (tmp_path / "leads-1").stat().st_mtime


async def test_the_requests_of_a_dead_worker_are_cleared(tmp_path: Path) -> None:
    async with supervised(tmp_path) as run:
        memory = memoryview(mmap.mmap(run.rows, 2 * ROW_BYTES))
        row, peer = OwnRow(memory, 1), PeerRow(memory, 1)
        slot = row.take_slot(7)
        assert slot is not None
        row.add(slot, 5, 1.0)
        assert [change for _, change, _ in peer.changes()] == [5]
        before = run.pid(1)
        os.kill(before, signal.SIGKILL)
        await run.until(lambda: run.pid(1) != before)
        assert [change for _, change, _ in peer.changes()] == [-5]
        assert peer.in_flight.get(7, 0) == 0


async def test_a_worker_that_ends_before_it_is_ready_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "fails-0").write_text("3")
    with pytest.raises(ExceptionGroup) as caught:
        async with supervised(tmp_path):
            pytest.fail("it must not become ready")
    (error,) = _leaves(caught.value, WorkerError)
    assert str(error).startswith("worker 0 ended with status 3 before it was ready")
    assert not (tmp_path / "pid-1").exists()  # the others were not even started


async def test_a_later_worker_that_cannot_start_ends_all(tmp_path: Path) -> None:
    (tmp_path / "fails-1").write_text("4")
    with pytest.raises(ExceptionGroup) as caught:
        async with supervised(tmp_path):
            pytest.fail("it must not become ready")
    (error,) = _leaves(caught.value, WorkerError)
    assert "worker 1 ended with status 4" in str(error)


async def test_ready_means_at_least_half_of_the_workers(tmp_path: Path) -> None:
    async with supervised(tmp_path, 3) as run:
        (tmp_path / "unready-2").touch()
        await run.until(lambda: run.ready() == 2)
        assert run.supervisor.is_ready
        (tmp_path / "unready-1").touch()
        await run.until(lambda: not run.supervisor.is_ready)
        assert await run.health() == health_pb2.HealthCheckResponse.NOT_SERVING
        (tmp_path / "unready-1").unlink()
        await run.until(lambda: run.supervisor.is_ready)


async def test_a_silent_worker_is_killed_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "SILENT_SECONDS", 0.5)
    async with supervised(tmp_path) as run:
        before = run.pid(1)
        with capture_logs() as logs:
            (tmp_path / "silent-1").touch()
            await run.until(lambda: any("hangs" in each["event"] for each in logs))
            (tmp_path / "silent-1").unlink()
            await run.until(lambda: run.pid(1) != before)


async def test_a_worker_that_ends_again_and_again_is_started_with_longer_pauses(
    tmp_path: Path,
) -> None:
    async with supervised(tmp_path) as run:
        (tmp_path / "fails-1").write_text("5")
        with capture_logs() as logs:
            os.kill(run.pid(1), signal.SIGKILL)
            await run.until(lambda: len(_restarts(logs)) >= 4)
        pauses = [each["pause_seconds"] for each in _restarts(logs)]
        assert pauses[:4] == [0.0, 0.1, 0.2, 0.4]
        (tmp_path / "fails-1").unlink()
        await run.until(lambda: run.supervisor.is_ready)


async def test_a_reload_reaches_all_and_their_outcomes_come_back(tmp_path: Path) -> None:
    async with supervised(tmp_path) as run:
        assert await run.supervisor.reload_now() == ["fault of 0", "fault of 1"]


async def test_a_worker_that_ends_during_a_reload_says_so_and_spoils_no_later_one(
    tmp_path: Path,
) -> None:
    async with supervised(tmp_path) as run:
        (tmp_path / "dies-at-reload-0").touch()
        assert await run.supervisor.reload_now() == [
            "worker 0 has ended during the reload",
            "fault of 1",
        ]
        (tmp_path / "dies-at-reload-0").unlink()
        await run.until(lambda: run.ready() == 2)
        assert await run.supervisor.reload_now() == ["fault of 0", "fault of 1"]


async def test_a_worker_that_does_not_reload_in_time_hides_no_other_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path) as run:
        monkeypatch.setattr(supervisor_module, "_RELOAD_SECONDS", 0.5)
        os.kill(run.pid(0), signal.SIGSTOP)
        assert await run.supervisor.reload_now() == [
            "worker 0 has not reloaded within 0.5 s",
            "fault of 1",
        ]
        os.kill(run.pid(0), signal.SIGCONT)
        monkeypatch.undo()
        # The late outcome of the first reload is not taken for that of the second one.
        worker = run.supervisor._workers[0]
        await run.until(lambda: not worker._reloads)
        assert await run.supervisor.reload_now() == ["fault of 0", "fault of 1"]


async def test_a_worker_that_cannot_be_started_again_is_tried_again_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    program = tmp_path / "python"
    program.symlink_to(sys.executable)
    async with supervised(tmp_path, program=program) as run:
        other = run.pid(0)
        program.unlink()
        with capture_logs() as logs:
            os.kill(run.pid(1), signal.SIGKILL)
            await run.until(lambda: len(_events(logs, "worker cannot be started")) >= 2)
            assert run.supervisor.is_ready  # half of the workers
            program.symlink_to(sys.executable)
            await run.until(lambda: run.ready() == 2)
        assert run.pid(0) == other
        assert "No such file" in _events(logs, "worker cannot be started")[0]["error"]


async def test_a_program_that_cannot_be_started_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with supervised(tmp_path, program=tmp_path / "python"):
            pytest.fail("it must not become ready")
    (error,) = _leaves(caught.value, WorkerError)
    assert str(error).startswith("worker 0 cannot be started: ")


async def _run_without_becoming_ready(folder: Path, stop: asyncio.Event) -> Supervisor:
    """Run a supervisor to its end; return it."""
    memory = os.memfd_create("test")
    try:
        made = Supervisor(settings(), memory, [sys.executable, str(STUB), str(folder)])
        async with asyncio.timeout(15):
            await made.run(stop, lambda _: pytest.fail("it must not become ready"))
    finally:
        os.close(memory)
    return made


async def test_a_stop_before_the_first_worker_runs_ends_the_supervisor(tmp_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    await _run_without_becoming_ready(tmp_path, stop)
    assert not await asyncio.to_thread((tmp_path / "pid-0").exists)


async def test_a_worker_whose_process_is_created_during_the_stop_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, stop = asyncio.create_subprocess_exec, asyncio.Event()

    async def create_after_the_stop(*args: Any, **named: Any) -> asyncio.subprocess.Process:
        stop.set()
        await asyncio.sleep(0)  # the signal for all workers is sent, and there is none yet
        await asyncio.sleep(0)
        return await create(*args, **named)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_after_the_stop)
    made = await _run_without_becoming_ready(tmp_path, stop)
    assert made._workers[0].returncode == -signal.SIGKILL


def test_silence_counts_while_the_supervisor_listens_not_while_it_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(worker_process, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def seconds_after(silence: worker_process.Silence, *checked_at: float) -> float:
        for clock[0] in checked_at:
            silence.check()
        return silence.seconds

    silence = worker_process.Silence()
    assert seconds_after(silence, 101.0, 102.0, 103.5) == 3.5
    silence.end()
    assert seconds_after(silence, 104.5) == 1.0
    # The container was frozen for an hour: not a reason to kill a worker.
    assert seconds_after(silence, 3704.5) == 3.0
    silence.end()
    assert seconds_after(silence, *(3705.5 + n for n in range(10))) == 10.0


async def test_messages_that_cannot_be_read_are_passed_over() -> None:
    reader = asyncio.StreamReader(limit=100)
    reader.feed_data(b'nonsense\n{"streams":1}\n{"streams":"x"}\n' + b"x" * 200 + b"\n")
    reader.feed_data(b'{"streams":2}\n{"stre')  # killed while it wrote
    reader.feed_eof()
    with capture_logs() as logs:
        got = [each.streams async for each in messages(reader, WorkerReport)]
    assert got == [1, 2]
    assert len(logs) == 3


async def test_workers_with_a_port_each(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with supervised(tmp_path, worker_ports="each") as run:
            assert run.ports.grpc > 0
    (entry,) = [each for each in logs if each["event"] == "workers started"]
    assert len(entry["grpc_ports"]) == 2


async def test_a_port_in_use_is_refused_before_a_worker_starts(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, reuse_port=True)
    port = server.sockets[0].getsockname()[1]
    memory = os.memfd_create("test")
    try:
        in_use = replace(settings(), grpc_port=port)
        made = Supervisor(in_use, memory, [sys.executable, str(STUB), str(tmp_path)])
        with pytest.raises(WorkerError, match=f"port {port}: Address already in use; stop the"):
            await made.run(asyncio.Event(), lambda _: None)
    finally:
        server.close()
        os.close(memory)
    assert not (tmp_path / "pid-0").exists()


async def test_a_worker_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_AFTER_DRAIN_SECONDS", 0.2)
    monkeypatch.setattr(supervisor_module, "LAST_CHUNK_SECONDS", 0.0)
    with capture_logs() as logs:
        async with supervised(tmp_path, drain_timeout_seconds=0.0) as run:
            os.kill(run.pid(1), signal.SIGSTOP)
    assert "worker does not end, it is killed" in [each["event"] for each in logs]


def _restarts(logs: list[Any]) -> list[Any]:
    return _events(logs, "worker ended, it is started again")


def _events(logs: list[Any], event: str) -> list[Any]:
    return [each for each in logs if each["event"] == event]


def _leaves(group: BaseExceptionGroup[Any], kind: type[Exception]) -> list[Exception]:
    found = group.subgroup(kind)
    leaves: list[Exception] = []
    while found is not None:
        for each in found.exceptions:
            if isinstance(each, BaseExceptionGroup):
                found = each
                break
            leaves.append(each)
        else:
            found = None
    return leaves
