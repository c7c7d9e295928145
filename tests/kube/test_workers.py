"""Workers follow the objects of a real API server by one watch of each kind, all together."""

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from kube.pickers import LABELS

from tools.faults.processes import PickerProcess
from tools.harness.kube.objects import Namespace, Pod
from tools.harness.kube.server import ApiServer

pytestmark = pytest.mark.timeout(180)  # processes start, each in seconds on a busy machine

KINDS: Final = (
    "pods",
    "inferencepools.inference.networking.k8s.io",
    *(
        f"{plural}.{group}"
        for plural in ("inferenceobjectives", "inferencemodelrewrites")
        for group in ("llm-d.ai", "inference.networking.x-k8s.io")
    ),
)
"""What is followed for a pool, by its names on the pages."""
_WATCH: Final = re.compile(
    r'^apiserver_longrunning_requests\{.*group="(.*?)".*,resource="(.*?)"'
    r'.*scope="(?:namespace|resource)".*verb="WATCH".*\} (\d+)$'
)


async def watches(admin: httpx.AsyncClient) -> Counter[str]:
    """Return how many watches of the kinds are open, but for the API server's of all namespaces."""
    page = (await admin.get("/metrics")).raise_for_status().text
    found: Counter[str] = Counter()
    for line in page.splitlines():
        match = _WATCH.match(line)
        if match is not None:
            kind = ".".join(filter(None, (match[2], match[1])))
            if kind in KINDS:
                found[kind] += int(match[3])
    return found


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds; other processes do not tell of it."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


async def until_watched(admin: httpx.AsyncClient, *kinds: str) -> None:
    """Wait until each of these kinds has one watch, and no other has any; a test may have had."""

    async def are_watched() -> bool:
        return await watches(admin) == Counter(kinds)

    await until(are_watched)


@asynccontextmanager
async def serving(
    api_server: ApiServer, namespace: Namespace, workers: int
) -> AsyncIterator[PickerProcess]:
    """Run `epp serve --workers` for the pool ``pool``; all are ready."""
    with tempfile.TemporaryDirectory(prefix="epp-") as name:
        folder = Path(name)
        api_server.write_kubeconfig(folder / "kubeconfig")
        ready, log = folder / "ready", folder / "log"
        with await asyncio.to_thread(log.open, "wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "epp", "serve", "--workers", str(workers)),
                *("--pool-name", "pool", "--pool-namespace", namespace.name),
                *("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0"),
                *("--metrics-port", "0", "--metrics-endpoint-auth=false", "--secure-serving=false"),
                *("--drain-timeout", "1s", "--ready-file", str(ready)),
                env=os.environ | {"KUBECONFIG": str(folder / "kubeconfig")},
                stdout=output,
                stderr=output,
            )
        try:

            async def has_started() -> bool:
                assert process.returncode is None, log.read_text()
                return await asyncio.to_thread(ready.exists)

            await until(has_started)
            yield PickerProcess(process, json.loads(ready.read_text()), log)
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), 30)


class Workers:
    """The workers of a picker."""

    def __init__(self, picker: PickerProcess, count: int) -> None:
        self.picker = picker
        self.count = count

    async def page(self, worker: int, path: str) -> dict[str, Any]:
        """Return a page of a worker; an empty one while it is away."""
        response = await self.picker.page(f"/debug/{path}?worker={worker}")
        page: dict[str, Any] = response.json() if response.status_code == httpx.codes.OK else {}
        return page

    async def all_have(self, *names: str) -> None:
        """Wait until every worker has the endpoints of these pods and no others."""
        expected = {f"{name}-rank-0" for name in names}

        async def have() -> bool:
            pages = [await self.page(each, "endpoints") for each in range(self.count)]
            return all(
                {each["name"].rpartition("/")[2] for each in page.get("endpoints", [])} == expected
                for page in pages
            )

        await until(have)

    async def copies(self, worker: int) -> list[dict[str, Any]]:
        """Return what a worker says of its copies."""
        page = await self.page(worker, "kubernetes")
        copies: list[dict[str, Any]] = page.get("copies", [])
        return copies

    async def all_copies(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until it holds for all copies of every worker."""

        async def hold() -> bool:
            found = [await self.copies(each) for each in range(self.count)]
            return all(copies and all(map(holds, copies)) for copies in found)

        await until(hold)


def pod(number: int) -> Pod:
    return Pod(name=f"vllm-{number}", labels=LABELS, ip=f"127.1.0.{number + 1}")


async def test_workers_have_one_watch_of_each_kind_and_know_what_a_single_process_knows(
    api_server: ApiServer, namespace: Namespace, admin: httpx.AsyncClient
) -> None:
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_objective("urgent", "pool", 7)
    await namespace.create_pods(*(pod(number) for number in range(3)))
    await until_watched(admin)
    async with serving(api_server, namespace, 2) as picker:
        workers = Workers(picker, 2)
        await workers.all_have("vllm-0", "vllm-1", "vllm-2")
        await workers.all_copies(lambda copy: copy["synced"] and not copy["fault"])
        await until_watched(admin, *KINDS)

        await namespace.create_pods(pod(3))
        await namespace.delete_pods("vllm-0")
        await workers.all_have("vllm-1", "vllm-2", "vllm-3")

        old = await asyncio.to_thread(picker.workers)
        os.kill(old[0], signal.SIGKILL)

        async def is_another() -> bool:
            return (await asyncio.to_thread(picker.workers)).get(0) not in {None, old[0]}

        await until(is_another)
        await workers.all_have("vllm-1", "vllm-2", "vllm-3")
        await namespace.create_pods(pod(4))
        await workers.all_have("vllm-1", "vllm-2", "vllm-3", "vllm-4")
        await until_watched(admin, *KINDS)


async def test_while_the_api_server_is_away_every_worker_says_so_and_keeps_what_it_knows(
    api_server: ApiServer, namespace: Namespace
) -> None:
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(pod(0), pod(1))
    async with serving(api_server, namespace, 2) as picker:
        workers = Workers(picker, 2)
        await workers.all_have("vllm-0", "vllm-1")
        await asyncio.to_thread(api_server.kill)
        fault = f"cannot connect to {api_server.url}: connection refused"
        await workers.all_copies(lambda copy: copy["fault"] == fault)
        await workers.all_have("vllm-0", "vllm-1")
        # The page of all workers has the worst of them.
        assert await picker.metric("llm_d_epp_kubernetes_faulty") == len(KINDS)
        counts = Counter(
            each["resource"]
            for each in await picker.log()
            if each["event"] == "objects not followed"
        )
        # Once for all of them; of lines that are alike, the log has five in ten seconds.
        assert counts.total() >= 5
        assert counts <= Counter(kind.partition(".")[0] for kind in KINDS)
        await asyncio.to_thread(api_server.start)
        await namespace.create_pods(pod(2))
        await namespace.delete_pods("vllm-0")
        await workers.all_have("vllm-1", "vllm-2")
        await workers.all_copies(lambda copy: copy["synced"] and not copy["fault"])


async def test_a_worker_that_starts_while_the_api_server_is_away_is_not_ready_until_it_is_back(
    api_server: ApiServer, namespace: Namespace
) -> None:
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(pod(0))
    async with serving(api_server, namespace, 2) as picker:
        workers = Workers(picker, 2)
        await workers.all_have("vllm-0")
        await asyncio.to_thread(api_server.kill)
        old = await asyncio.to_thread(picker.workers)
        os.kill(old[1], signal.SIGKILL)

        async def says_why() -> bool:
            text = await asyncio.to_thread(picker.log_file.read_text)
            return "kinds of the API server unknown" in text

        await until(says_why)
        page = (await workers.page(0, "endpoints"))["endpoints"]
        assert [each["name"].rpartition("/")[2] for each in page] == ["vllm-0-rank-0"]
        await asyncio.to_thread(api_server.start)
        await workers.all_have("vllm-0")
        await workers.all_copies(lambda copy: copy["synced"] and not copy["fault"])
