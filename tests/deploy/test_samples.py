"""The files in deploy/ behave as their comments say."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from epp.building import make_builder
from epp.config import PluginGraph, default_config, load_file
from epp.data_layer import ObjectStore
from epp.request_control.errors import RequestDroppedError
from epp.testing import make_endpoint, make_endpoints

from .harness import BATCH, DEPLOY, PROMPT, Epp, graph_of

CONFIGS = sorted((DEPLOY / "config").glob("*.yaml"))
WELL_KNOWN = {
    *("predicted-time", "predicted-time-holding", "predicted-time-pd"),
    *(
        "approx-prefix-cache",
        "context-length",
        "data-parallel",
        "decision-tree",
        "default",
        "dns",
        "epd",
    ),
    *("flow-control", "flow-control-batch", "flow-control-spot", "flow-control-tenants"),
    *("file-discovery", "gpu-utilization", "header-routing", "load-reports", "lora"),
    *("multimodal", "pd"),
    "optimized-baseline",
    *("pd-joint", "pd-topology", "probabilistic-admitter"),
    *("session-affinity", "session-id"),
    *("shadow", "utilization-limits", "weighted-random"),
}
OURS = {
    *("predicted-time", "predicted-time-holding", "predicted-time-pd"),
    *("decision-tree", "dns", "flow-control-batch", "flow-control-spot", "load-reports"),
    *("pd-joint", "shadow"),
}
"""Samples that llm-d-router does not load."""
DEPRECATED = {"data-parallel": ["data-parallel-profile-handler"]}
"""Deprecated plugin types in samples."""


def test_there_is_a_sample_of_each_well_known_set_up() -> None:
    assert {path.stem for path in CONFIGS} == WELL_KNOWN


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_sample_builds_and_warns_of_nothing_but_deprecated_types(path: Path) -> None:
    config = load_file(path)
    graph = make_builder().build(config)
    warnings = [warning.message for warning in (*config.warnings, *graph.warnings)]
    deprecated = DEPRECATED.get(path.stem, [])
    assert len(warnings) == len(deprecated)
    for warning, plugin_type in zip(warnings, deprecated, strict=True):
        assert warning.startswith(f"type `{plugin_type}` is deprecated")
    for entry in config.file.plugins:
        assert graph.plugins[entry.name].type == entry.type


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_sample_says_what_it_is_for_and_what_is_ours(path: Path) -> None:
    text = path.read_text()
    comment = text[: text.index("apiVersion")]
    assert len(comment.splitlines()) >= 2
    ours = (
        *("extensions:", "joint:"),
        *("decision-tree-filter", "dns-discovery", "orca-load-metrics-reader"),
        "predicted-time-producer",
    )
    is_ours = any(word in text for word in ours)
    assert is_ours is (path.stem in OURS)


# --- default.yaml -----------------------------------------------------------------------------


def test_the_default_sample_is_the_default() -> None:
    assert load_file(DEPLOY / "config" / "default.yaml").file == default_config().file


def test_the_default_sends_a_prompt_where_its_beginning_is_and_others_where_there_is_room() -> None:
    endpoints = [make_endpoint(name) for name in "abc"]
    epp = Epp(graph_of("default"), endpoints)
    first = epp.chosen(PROMPT)
    assert {epp.chosen(PROMPT + str(turn)) for turn in range(20)} == {first}
    busy = next(endpoint for endpoint in endpoints if endpoint.name == first)
    busy.load.assume(waiting=10, running=5, kv_cache_usage=0.9)
    assert first not in {epp.chosen(f"{turn} other prompt") for turn in range(20)}


def weights_of(graph: PluginGraph) -> dict[str, float]:
    scorers = graph.scheduler.profiles["default"].scorers
    return {each.scorer.type: each.weight for each in scorers}


def test_file_discovery_is_the_discovery_of_its_sample() -> None:
    graph = graph_of("file-discovery")
    assert graph.discovery is graph.plugins["file-discovery"]
    assert weights_of(graph) == weights_of(graph_of("default"))


def test_dns_discovery_is_the_discovery_of_its_sample() -> None:
    graph = graph_of("dns")
    assert graph.discovery is graph.plugins["dns-discovery"]
    assert weights_of(graph) == weights_of(graph_of("default"))


# --- lora.yaml --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "want"),
    [
        pytest.param(
            {
                "holder": {"active_adapters": ["tuned"], "max_adapters": 2, "kv_cache_usage": 0.3},
                "room": {"active_adapters": ["x"], "max_adapters": 2, "kv_cache_usage": 0.1},
                "full": {"active_adapters": ["x", "y"], "max_adapters": 2},
            },
            {"holder"},
            id="where it is loaded",
        ),
        pytest.param(
            {
                "room": {"active_adapters": ["x"], "max_adapters": 2, "kv_cache_usage": 0.3},
                "full": {"active_adapters": ["x", "y"], "max_adapters": 2},
            },
            {"room"},
            id="where one more fits",
        ),
        # The holder has 3 * 1 + 2 * 1 + 2 * 0.55 = 6.1, the other 3 * 0.8 + 2 * 1 + 2 * 0.9 = 6.2.
        pytest.param(
            {
                "holder": {
                    "active_adapters": ["tuned"],
                    "max_adapters": 2,
                    "kv_cache_usage": 0.45,
                },
                "room": {"active_adapters": ["x"], "max_adapters": 2, "kv_cache_usage": 0.1},
            },
            {"room"},
            id="not into a much fuller cache",
        ),
        # The holder has 3 * 1 + 2 * 0 + 2 * 1 = 5, the other 3 * 0.8 + 2 * 1 + 2 * 1 = 6.4.
        pytest.param(
            {
                "holder": {
                    "active_adapters": ["tuned"],
                    "max_adapters": 2,
                    "waiting_requests": 40,
                },
                "room": {"active_adapters": ["x"], "max_adapters": 2},
            },
            {"room"},
            id="not into the longest queue of all",
        ),
    ],
)
def test_an_adapter_goes(table: dict[str, dict[str, Any]], want: set[str]) -> None:
    epp = Epp(graph_of("lora"), make_endpoints(table))
    assert {epp.chosen(model="tuned") for _ in range(20)} == want


# --- decision-tree.yaml -----------------------------------------------------------------------

POOL = {
    "p1": {"kv_cache_usage": 0.2, "active_adapters": ["foo", "bar"], "max_adapters": 2},
    "p2": {
        "waiting_requests": 3,
        "kv_cache_usage": 0.1,
        "active_adapters": ["foo", "critical"],
        "max_adapters": 2,
    },
    "p3": {
        "waiting_requests": 10,
        "kv_cache_usage": 0.2,
        "active_adapters": ["foo"],
        "max_adapters": 2,
    },
}
SATURATED = {
    "p1": POOL["p1"] | {"waiting_requests": 10, "kv_cache_usage": 0.9},
    "p2": POOL["p2"] | {"kv_cache_usage": 0.85},
    "p3": POOL["p3"] | {"kv_cache_usage": 0.85},
}
ONE_IDLE = {
    "p1": {},
    "p2": {"waiting_requests": 50, "kv_cache_usage": 1.0},
    "p3": {"waiting_requests": 50, "kv_cache_usage": 1.0},
}


@pytest.mark.parametrize(
    ("table", "model", "headers", "want"),
    [
        pytest.param(POOL, "critical", {}, "p2", id="a critical request to its adapter"),
        pytest.param(POOL, "unknown", BATCH, "p1", id="a sheddable one where there is room"),
        pytest.param(
            ONE_IDLE, "unknown", BATCH, "p1", id="a sheddable one to the only idle server"
        ),
        pytest.param(SATURATED, "critical", {}, "p2", id="a critical one into a full pool"),
    ],
)
def test_the_tree_sends(
    table: dict[str, dict[str, Any]],
    model: str,
    headers: dict[str, str],
    want: str,
    objects: ObjectStore,
) -> None:
    epp = Epp(graph_of("decision-tree"), make_endpoints(table), objects=objects)
    assert epp.chosen(model=model, headers=headers) == want


def test_the_tree_answers_a_sheddable_request_with_429_if_no_server_has_capacity(
    objects: ObjectStore,
) -> None:
    epp = Epp(graph_of("decision-tree"), make_endpoints(SATURATED), objects=objects)
    with pytest.raises(RequestDroppedError, match="by-priority dropped the request") as raised:
        epp.send(headers=BATCH)
    assert (raised.value.status, raised.value.drop_reason) == (429, "rejected-saturated")


# --- shadow.yaml ------------------------------------------------------------------------------


def disagreements(epp: Epp) -> float:
    name, labels = "llm_d_epp_shadow_disagreements_total", {"profile": "candidate"}
    return epp.metrics.registry.get_sample_value(name, labels) or 0.0


def test_the_shadows_pick_is_in_the_log_line_and_a_disagreement_in_the_metric() -> None:
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    epp = Epp(graph_of("shadow"), endpoints)
    holder = epp.chosen(PROMPT)
    for endpoint in endpoints:
        usage = 0.75 if endpoint.name == holder else 0.0
        endpoint.load.assume(waiting=0, running=0, kv_cache_usage=usage)
    before = disagreements(epp)
    with capture_logs() as lines:
        # Holder: 2 * 1 + 2 * 0.25 + 3 * 1 = 5.5, the other: 2 * 1 + 2 * 1 = 4.
        assert epp.chosen(PROMPT) == holder
    (line,) = (line for line in lines if line["event"] == "request finished")
    # In the eyes of the candidate the holder has 2 * 1 + 2 * 0.25 + 1 * 1 = 3.5.
    assert line["shadow"] == [
        {
            "profile": "candidate",
            "endpoint": "b" if holder == "a" else "a",
            "score": 4.0,
            "margin": 0.5,
            "agrees": False,
        }
    ]
    assert disagreements(epp) == before + 1


def test_the_shadow_changes_no_decision() -> None:
    decisions = []
    for with_shadows in (True, False):
        endpoints = [make_endpoint(name) for name in "abcdef"]
        epp = Epp(graph_of("shadow", seed=7), endpoints, with_shadows=with_shadows)
        open_requests = [epp.send(f"{PROMPT}{n % 7}" if n % 3 else f"{n}") for n in range(100)]
        decisions.append([exchange.endpoint.name for exchange in open_requests])
        assert any(exchange.decision.shadow for exchange in open_requests) is with_shadows
    assert decisions[0] == decisions[1]


# --- objects ----------------------------------------------------------------------------------


def test_the_sample_objects_make_batch_sheddable_critical_first_and_chat_another_model(
    objects: ObjectStore,
) -> None:
    assert objects.priority_of("batch") == -1
    assert objects.priority_of("critical") == 10
    assert objects.priority_of("interactive") == 0
    exchange = Epp(graph_of("default"), [make_endpoint()], objects=objects).send(model="chat")
    assert exchange.request.target_model == "tiny"
    assert exchange.body is not None
    assert msgspec.json.decode(exchange.body)["model"] == "tiny"
    assert objects.target_of("tiny") is None
