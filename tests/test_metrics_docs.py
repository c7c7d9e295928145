"""The tables of metrics in docs/migrating.md agree with a running process."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from test_app import running

from epp.config import load_text
from epp.lab.fleet import Fleet, FleetConfig
from epp.observability.deprecated_metrics import FORMER_NAMES
from epp.observability.metric_families import Family
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import LEAN, POST, http_headers

SECTION = (
    (Path(__file__).parents[1] / "docs" / "migrating.md")
    .read_text()
    .partition("\n## Metrics\n")[2]
    .partition("\n## ")[0]
)
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
- type: token-load-scorer
- type: inflight-load-producer
- type: program-aware-fairness
- type: max-score-picker
- type: disagg-profile-handler
- type: utilization-detector
schedulingProfiles:
- name: decode
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: prefix-cache-scorer
  - pluginRef: token-load-scorer
  - pluginRef: max-score-picker
flowControl:
  maxRequests: 100
  maxBytes: 1G
  defaultPriorityBand:
    fairnessPolicyRef: program-aware-fairness
"""


@dataclass(frozen=True)
class Row:
    name: str
    kind: str
    labels: frozenset[str]
    former_name: str
    former_labels: frozenset[str]
    note: str


def rows() -> list[Row]:
    found = []
    for line in re.findall(r"^\| `\w+` \| (?:counter|gauge|histogram) \|.*$", SECTION, re.M):
        name, kind, labels, former, note = (cell.strip() for cell in line.strip("|").split("|"))
        own = frozenset(re.findall(r"\w+", labels))
        former_name, colon, former_labels = former.partition(":")
        others = frozenset(re.findall(r"`(\w+)`", former_labels)) if colon else own
        found.append(Row(name.strip("`"), kind, own, former_name.strip("`"), others, note))
    return found


def queries() -> list[str]:
    return [query for _, query in re.findall(r"^\| ([^|`]+|`[^|]*`) \| `([^|]+)` \|", SECTION, re.M)
            if "{" in query or "(" in query]  # fmt: skip


class Exposed:
    """The page of a process that has served a request."""

    def __init__(self, page: str, families: dict[str, tuple[str, ...]]) -> None:
        self.kinds: dict[str, str] = {}
        self.labels: dict[str, frozenset[str]] = {
            name: frozenset(labels) for name, labels in families.items()
        }
        self.samples: set[str] = set()
        for family in text_string_to_metric_families(page):
            name = family.name + ("_total" if family.type == "counter" else "")
            self.kinds[name] = family.type
            for sample in family.samples:
                self.samples.add(sample.name)
                self.labels[name] = frozenset(sample.labels) - {"le"}


class Sink:
    """A stream whose responses nobody reads."""

    is_writable = True

    def send(self, message: bytes) -> None:
        """Drop it."""

    def finish(self, code: int = 0, message: str = "") -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""


def request() -> list[bytes]:
    first = pb.ProcessingRequest(request_headers=http_headers(POST, False))
    request_mode, response_mode = LEAN
    first.protocol_config.request_body_mode = request_mode
    first.protocol_config.response_body_mode = response_mode
    body = b'{"model":"chat","prompt":"' + b"hello " * 200 + b'"}'
    second = pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True))
    return [first.SerializeToString(), second.SerializeToString()]


@pytest_asyncio.fixture(loop_scope="function")
async def exposed() -> AsyncIterator[Exposed]:
    config = await asyncio.to_thread(load_text, CONFIG, "test")
    async with (
        Fleet(FleetConfig(endpoints=2)) as fleet,
        running(
            config=config,
            pool_name="llama",
            endpoints=fleet.addresses,
            has_deprecated_metrics=True,
            has_stream_metrics=True,
        ) as epp,
    ):
        await epp.until_ready()
        handler = epp.app.service.opened(Sink(), {})
        for message in request():
            handler.message(message)
        client = await asyncio.to_thread(httpx.AsyncClient, trust_env=False)
        async with client:
            response = await client.get(f"http://127.0.0.1:{epp.ports.metrics}/metrics")
        families = {
            each.name + ("_total" if each.kind == "counter" else ""): each.label_names
            for each in epp.app.metrics.registry.collectors
            if isinstance(each, Family)
        }
        handler.reset()
        yield Exposed(response.text, families)


async def test_every_metric_of_the_reference_has_its_type_and_labels(exposed: Exposed) -> None:
    missing = {row.name for row in rows() if row.note.startswith("not here")}
    found = {
        row.name: (exposed.kinds.get(f"llm_d_epp_{row.name}"), exposed.labels.get(name))
        for row in rows()
        if row.name not in missing
        for name in (f"llm_d_epp_{row.name}",)
    }
    assert found == {row.name: (row.kind, row.labels) for row in rows() if row.name not in missing}
    assert not {f"llm_d_epp_{name}" for name in missing} & exposed.kinds.keys()
    assert len(found) > 55


async def test_former_names_are_exposed_with_their_type_and_labels(exposed: Exposed) -> None:
    former = [row for row in rows() if row.former_name]
    assert {row.name for row in former} == set(FORMER_NAMES)
    assert {row.former_name: exposed.kinds.get(row.former_name) for row in former} == {
        row.former_name: row.kind for row in former
    }
    shown = [row for row in former if row.former_name in exposed.labels]
    assert {row.former_name: exposed.labels[row.former_name] for row in shown} == {
        row.former_name: row.former_labels for row in shown
    }
    assert len(shown) > 20


async def test_the_queries_of_dashboards_and_autoscalers_find_series(exposed: Exposed) -> None:
    asked = queries()
    assert len(asked) == 11
    for query in asked:
        names = re.findall(r"\b((?:llm_d_epp|inference)_\w+)", re.sub(r"\{[^}]*\}", "", query))
        names = [name for name in names if name not in exposed.labels.get(name, ())]
        assert names, query
        # A histogram of responses has no sample before the first response's end.
        for name in names:
            assert name in exposed.samples or name.removesuffix("_bucket") in exposed.kinds, query


async def test_no_created_series_and_the_process_is_reported(exposed: Exposed) -> None:
    assert not [name for name in exposed.samples if name.endswith("_created")]
    assert {
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_start_time_seconds",
        "python_info",
        "llm_d_epp_info",
        "llm_d_epp_compiled",
    } <= exposed.samples
