"""Every query of the dashboards and every alert, evaluated by a real Prometheus.

It scrapes a real endpoint picker with flow control behind a real Envoy, while `epp load` sends more
than the fake servers have room for, and the configuration is reloaded.
"""

import asyncio
import contextlib
import json
import math
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio
import yaml
from running_commands import printed_by, started
from system.tools import find

from tools.harness.ports import free_ports

pytestmark = pytest.mark.integration

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
DASHBOARDS: Final[dict[str, dict[str, Any]]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((DEPLOY / "grafana").glob("*.json"))
}
CONFIGURATION: Final = Path(__file__).with_name("gateway_under_load.yaml")
GATEWAY: Final = (
    "epp up --mode full-duplex --port 0 --grpc-port 0 --grpc-health-port 0 --metrics-port 0"
    f" --fleet-size 2 --config-file configuration.yaml --objects {DEPLOY / 'objects'}"
)
LOADS: Final = (
    # Two tenants that share prefixes, with more requests than the servers take.
    "--concurrency 12 --prefixes 3 --prefix-chars 400 -H x-llm-d-inference-fairness-id:gold",
    "--concurrency 6 --no-stream --model chat -H x-llm-d-inference-fairness-id:silver",
    # Sheddable requests, more than may wait; some of them are given up by the client.
    "--concurrency 8 --abort-share 0.2 -H x-llm-d-inference-objective:batch",
)
SECONDS: Final = 12
VARIABLES: Final = {
    "$__rate_interval": "5s",
    "$__range": "30s",
    "$job": "epp",
    "$namespace": ".*",
    "$pool": "default",
    "$model": ".*",
    "$endpoint": ".*",
}
"""What Grafana would fill in. A Prometheus outside a cluster sets no namespace: All is chosen."""

NO_CLUSTER: Final = "the endpoints do not come from Kubernetes"
NO_EVICTION: Final = "no request in flight is evicted without an eviction policy"
NO_CERTIFICATE: Final = "the certificate is made at the start, and is no file"
NO_FAULT: Final = "nothing of this kind has happened"
EMPTY: Final = {
    ("fleet", "Ejections"): NO_FAULT,
    ("fleet", "Responses that are not 2xx"): NO_FAULT,
    ("requests", "Requests that met a limit"): NO_FAULT,
    ("requests", "Rewrites and hedges"): "no gateway hedges here",
    ("scheduling", "Failures"): NO_FAULT,
    ("scheduling", "Slow calls"): NO_FAULT,
    ("scheduling", "Scores corrected"): NO_FAULT,
    ("flow-control", "Evictions"): NO_EVICTION,
    ("flow-control", "Time until an evicted request has ended"): NO_EVICTION,
    ("flow-control", "Failures of session plugins"): NO_FAULT,
    ("data-layer", "Failed scrapes and pages"): NO_FAULT,
    ("data-layer", "Age of the copies of cluster objects"): NO_CLUSTER,
    ("data-layer", "Copies that cannot be kept current"): NO_CLUSTER,
    ("data-layer", "Read again from the beginning"): NO_CLUSTER,
    ("data-layer", "Leader"): NO_CLUSTER,
    ("process", "Certificate expires"): NO_CERTIFICATE,
}
"""Panels of which a query has no value here: dashboard, panel, reason."""
NOT_ON_THE_PAGE: Final = {
    "llm_d_epp_transport_certificate_expiry_timestamp_seconds",
    "leader_election_master_status",
    *(
        f"llm_d_epp_kubernetes_{name}"
        for name in ("contact_age_seconds", "faulty", "relists_total")
    ),
}
WITHOUT_SERIES: Final = {
    "llm_d_epp_kubernetes_faulty": NO_CLUSTER,
    "leader_election_master_status": NO_CLUSTER,
    "llm_d_epp_plugin_disabled": NO_FAULT,
}
"""Metrics of alerts that are not there."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A Prometheus that has seen the load."""

    client: httpx.AsyncClient
    since: float
    until: float

    async def get(self, path: str, **parameters: Any) -> Any:
        """Return the data of a response; an error fails the test."""
        response = (await self.client.get(f"/api/v1/{path}", params=parameters)).json()
        assert response["status"] == "success", (response["error"], parameters)
        return response["data"]

    async def has_values(self, expr: str) -> bool:
        """Whether the expression had a value, once at least, since the load began."""
        data = await self.get("query_range", query=expr, start=self.since, end=self.until, step=1)
        values = (float(value) for each in data["result"] for _, value in each["values"])
        return any(not math.isnan(value) for value in values)


def configured(folder: Path, metrics: str) -> Path:
    """Write Prometheus's file, with the alerts."""
    document = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus" / "rules.yaml")],
        "scrape_configs": [{"job_name": "epp", "static_configs": [{"targets": [metrics]}]}],
    }
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


async def send_load(url: str, folder: Path) -> None:
    """Send all loads at a time, and a bad request; reload the configuration meanwhile."""
    sending = [
        asyncio.create_task(
            printed_by(f"epp load --url {url} --duration {SECONDS} {words}", folder), name=words
        )
        for words in LOADS
    ]
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        refused = await client.post(f"{url}/v1/completions", content=b'{"model": ')
        assert refused.status_code == 400
    configuration = folder / "configuration.yaml"
    text = await asyncio.to_thread(configuration.read_text)
    changed = text.replace(
        "pluginRef: queue-scorer, weight: 2", "pluginRef: queue-scorer, weight: 1"
    )
    await asyncio.to_thread((folder / "changed.yaml").write_text, changed)
    await asyncio.to_thread((folder / "changed.yaml").rename, configuration)
    await asyncio.gather(*sending)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Asked]:
    folder = tmp_path_factory.mktemp("gateway")
    shutil.copyfile(CONFIGURATION, folder / "configuration.yaml")
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(started(GATEWAY, "Check all of it", folder))
        url, metrics = [
            re.findall(r"127\.0\.0\.1:\d+", await gateway.until(*texts))[0]
            for texts in (("gateway ready",), ("curl", "/metrics"))
        ]
        (port,) = free_ports(1)
        words = (
            f"{find('prometheus')} --config.file {configured(folder, metrics)}"
            f" --storage.tsdb.path {folder / 'data'} --web.listen-address 127.0.0.1:{port}"
        )
        await stack.enter_async_context(started(words, "Server is ready", folder))
        since = time.time()
        await send_load(f"http://{url}", folder)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60
        ) as client:
            yield Asked(client, since, time.time())


def filled_in(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr


def panels(dashboard: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the panels: title, and queries."""
    for panel in DASHBOARDS[dashboard]["panels"]:
        if panel["type"] != "row":
            yield panel["title"], [filled_in(each["expr"]) for each in panel["targets"]]


each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS)
in_the_loop = pytest.mark.asyncio(loop_scope="module")


@in_the_loop
@each_dashboard
async def test_every_query_of_a_dashboard_has_values(asked: Asked, dashboard: str) -> None:
    empty = [
        (dashboard, title, expr)
        for title, queries in panels(dashboard)
        for expr in queries
        if not await asked.has_values(expr) and (dashboard, title) not in EMPTY
    ]
    assert empty == []


@in_the_loop
@each_dashboard
async def test_every_variable_has_values(asked: Asked, dashboard: str) -> None:
    for variable in DASHBOARDS[dashboard]["templating"]["list"][1:]:
        form = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
        assert form, variable["definition"]
        selector, label = form.groups()
        data = await asked.get(f"label/{label}/values", **{"match[]": filled_in(selector)})
        assert bool(data) == (variable["name"] != "namespace"), variable["name"]


@in_the_loop
@each_dashboard
async def test_a_new_configuration_and_a_start_are_marked(asked: Asked, dashboard: str) -> None:
    marked = {
        each["name"]: await asked.has_values(filled_in(each["target"]["expr"]))
        for each in DASHBOARDS[dashboard]["annotations"]["list"]
    }
    assert marked == {
        "New configuration": True,
        "Configuration refused": False,
        "Process started": True,
    }


@in_the_loop
async def test_every_metric_is_on_the_page(asked: Asked) -> None:
    known = (await asked.get("metadata")).keys()
    used = {
        name
        for dashboard in DASHBOARDS
        for _, queries in panels(dashboard)
        for expr in queries
        for name in re.findall(r"(\w+)\{", expr)
    }
    # With OpenMetrics, the names of families have no such end.
    families = {name: re.sub(r"_(total|bucket|sum|count)$", "", name) for name in used}
    assert len(families) > 80
    missing = {name for name, family in families.items() if not {name, family} & known}
    assert missing == NOT_ON_THE_PAGE | {"up"}


def test_panels_that_may_be_empty_are_there() -> None:
    there = {(dashboard, title) for dashboard in DASHBOARDS for title, _ in panels(dashboard)}
    assert there >= EMPTY.keys()


@in_the_loop
async def test_prometheus_evaluates_every_alert_and_none_fires(asked: Asked) -> None:
    (group,) = (await asked.get("rules"))["groups"]
    assert [each["name"] for each in group["rules"] if each["health"] != "ok"] == []
    for rule in group["rules"]:
        assert rule["state"] != "firing", rule["name"]
        for name, labels in re.findall(r"(\w+)(\{job=\"epp\"[^}]*\})", rule["query"]):
            has_series = await asked.has_values(name + labels)
            assert has_series == (name not in WITHOUT_SERIES), (rule["name"], name)
