"""Requests that wait in flows, and the metrics page that shows them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from epp.flow_control.flows import Band, Flow
from epp.scheduling import LLMRequest
from epp.testing import make_request

PREFIX = "llm_d_epp_"

Labels = dict[str, str]


def make_band(priority: int = 0, *, max_requests: int = 100, max_bytes: int = 1000) -> Band:
    return Band(priority, max_requests=max_requests, max_bytes=max_bytes, created=0.0)


@dataclass
class State:
    """What a controller knows."""

    by_priority: dict[int, Band] = field(default_factory=dict)
    max_requests: int | None = None
    max_bytes: int | None = None
    full: dict[str, float] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)

    @property
    def bands(self) -> Collection[Band]:
        return self.by_priority.values()

    def saturation(self) -> Mapping[str, float]:
        return self.full

    def stale_endpoints(self) -> Mapping[str, int]:
        return self.stale


def make_flow(fairness_id: str = "tenant", priority: int = 0) -> Flow:
    return Flow(fairness_id, make_band(priority), created=0.0)


def make_flow_request(
    fairness_id: str = "tenant", priority: int = 0, *, model: str = "chat", body_bytes: int = 0
) -> LLMRequest:
    request = make_request(model=model, target_model="llama", priority=priority)
    request.fairness_id = fairness_id
    request.body_bytes = body_bytes
    return request


@dataclass(eq=False)
class Queued:
    """A request that waits."""

    request: LLMRequest

    @property
    def size_bytes(self) -> int:
        return self.request.body_bytes


def flow_labels(
    fairness_id: str = "tenant", priority: str = "0", model: str = "chat", target: str = "llama"
) -> Labels:
    return {
        "fairness_id": fairness_id,
        "priority": priority,
        "inference_pool": "pool",
        "model_name": model,
        "target_model_name": target,
    }


def samples(registry: CollectorRegistry, name: str) -> list[tuple[Labels, float]]:
    """Labels and value of every sample of that name, as Prometheus reads the page."""
    text = generate_latest(registry).decode()
    return [
        (dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == PREFIX + name
    ]


def kinds(registry: CollectorRegistry) -> dict[str, str]:
    """The type of every metric on the page that has samples, by the samples' names."""
    text = generate_latest(registry).decode()
    return {
        sample.name.removeprefix(PREFIX): family.type
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
