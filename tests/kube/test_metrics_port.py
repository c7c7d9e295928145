"""The metrics port admits clients that the cluster's RBAC allows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from kube.pickers import LABELS, addresses, cluster_picker, pod_of, pool
from typer.testing import CliRunner

from epp.cli import cli
from tools.harness.gateway import Picker, until
from tools.harness.kube.access import (
    METRICS_AUTH_RULES,
    create_account,
    grant_cluster_role,
    path_rule,
)
from tools.harness.kube.objects import Namespace
from tools.harness.kube.server import ApiServer


@asynccontextmanager
async def guarded_picker(
    api_server: ApiServer, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> AsyncIterator[Picker]:
    """Run an endpoint picker with one pod, whose metrics port asks for the right of its clients."""
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(pod_of(0))
    account = await create_account(namespace, "epp")
    await grant_cluster_role(namespace, account, METRICS_AUTH_RULES)
    async with cluster_picker(
        api_server,
        monkeypatch,
        folder,
        pool(namespace),
        token=api_server.tokens.issue(account),
        metrics_endpoint_auth=True,
    ) as picker:
        await until(lambda: len(addresses(picker)) == 1)
        yield picker


async def test_only_clients_with_the_right_see_metrics_and_debug_pages(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    tokens = api_server.tokens
    reader = await create_account(namespace, "prometheus")
    await grant_cluster_role(namespace, reader, [path_rule("/metrics", "/debug/*")])
    stranger = await create_account(namespace, "stranger")
    async with (
        guarded_picker(api_server, namespace, monkeypatch, tmp_path) as picker,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        url = f"http://127.0.0.1:{picker.ports.metrics}"
        for path in ("/metrics", "/debug/kubernetes", "/debug/plugins/state"):
            statuses = [
                (await client.get(f"{url}{path}", headers=headers)).status_code
                for headers in (
                    {},
                    {"authorization": "Bearer invented"},
                    {"authorization": f"Bearer {tokens.issue(stranger)}"},
                    {"authorization": f"Bearer {tokens.issue(reader)}"},
                )
            ]
            assert statuses == [401, 401, 403, 200]
        file = tmp_path / "token"
        await asyncio.to_thread(file.write_text, tokens.issue(reader))
        options = ["--admin", url, "--json"]
        run = CliRunner().invoke
        refused = await asyncio.to_thread(run, cli, ["explain", "endpoint", *options])
        assert refused.exit_code == 2
        assert "401" in refused.output
        options += ["--page-token-file", str(file)]
        shown = await asyncio.to_thread(run, cli, ["explain", "endpoint", *options])
        assert "vllm-0-rank-0" in shown.output


async def test_the_live_page_loads_for_all_and_its_events_for_those_with_the_right(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    tokens = api_server.tokens
    viewer = await create_account(namespace, "viewer")
    await grant_cluster_role(namespace, viewer, [path_rule("/debug/*")])
    stranger = await create_account(namespace, "stranger")
    async with (
        guarded_picker(api_server, namespace, monkeypatch, tmp_path) as picker,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{picker.ports.metrics}", trust_env=False
        ) as client,
    ):
        # A browser sends no token: the page asks for it, and sends it with the calls.
        for path in ("/ui/", "/ui/main.js"):
            assert (await client.get(path)).status_code == 200
        for token, status in (("", 401), ("invented", 401), (tokens.issue(stranger), 403)):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            for path in ("/debug/live", "/debug/events", "/debug/decisions"):
                assert (await client.get(path, headers=headers)).status_code == status
        headers = {"authorization": f"Bearer {tokens.issue(viewer)}"}
        assert (await client.get("/debug/decisions", headers=headers)).status_code == 200
        async with client.stream("GET", "/debug/events", headers=headers) as events:
            assert events.status_code == 200
            lines = events.aiter_lines()
            assert await anext(lines) == "event: snapshot"
            assert "vllm-0-rank-0" in await anext(lines)
        assert (await client.get("/metrics", headers=headers)).status_code == 403
