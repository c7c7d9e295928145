import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from epp.config import ConfigError, GraphBuilder, PluginRegistry, load_text
from epp.scheduling import (
    CycleState,
    DroppedError,
    Endpoint,
    Filter,
    GuardRails,
    NoEndpointsError,
    NullObserver,
    Plugin,
    PluginObserver,
    ProfileResult,
    SchedulerProfile,
)
from epp.testing import (
    make_endpoint,
    make_endpoints,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins import PLUGINS
from epp_plugins.filters.by_label import ByLabelFilter
from epp_plugins.filters.decision_tree import DecisionTreeFilter
from epp_plugins.filters.has_capacity import HasCapacityFilter
from epp_plugins.filters.least_kv_cache import LeastKvCacheFilter
from epp_plugins.filters.least_queue import LeastQueueFilter
from epp_plugins.filters.lora_affinity import LoraAffinityFilter
from epp_plugins.filters.low_queue import LowQueueFilter
from epp_plugins.pickers.max_score import MaxScorePicker

CRITICAL_TREE = {
    "filter": "low-queue",
    "nextOnSuccess": {
        "filter": "lora-affinity",
        "next": {"filter": "least-queue", "next": {"filter": "least-kv-cache"}},
    },
    "nextOnFailure": {
        "filter": "least-queue",
        "next": {"filter": "lora-affinity", "next": {"filter": "least-kv-cache"}},
    },
}
WHOLE_TREE = {
    "priorityAtLeast": 0,
    "nextOnSuccess": {"filter": "critical-tree"},
    "nextOnFailure": {
        "filter": "has-capacity",
        "nextOnSuccess": {"filter": "critical-tree"},
        "nextOnFailure": {"drop": True},
    },
}


def tree(
    parameters: Mapping[str, Any], *more: Filter, name: str = "tree", seed: int = 0
) -> DecisionTreeFilter:
    """Return a tree over the filters of GIE #677, and ``more``, by their names."""
    filters: list[Filter] = [
        make_plugin(LowQueueFilter, name="low-queue"),
        make_plugin(LeastQueueFilter, name="least-queue"),
        make_plugin(LeastKvCacheFilter, name="least-kv-cache"),
        make_plugin(HasCapacityFilter, name="has-capacity"),
        make_plugin(LoraAffinityFilter, name="lora-affinity", rng=random.Random(seed)),
        make_plugin(ByLabelFilter, {"label": "gpu", "validValues": ["h100"]}, name="h100-only"),
        *more,
    ]
    by_name = {each.name: each for each in filters}
    return make_plugin(
        DecisionTreeFilter, parameters, name=name, refer=lambda name, kind: by_name[name]
    )


def whole_tree() -> DecisionTreeFilter:
    return tree(WHOLE_TREE, tree(CRITICAL_TREE, name="critical-tree"))


def run(plugin: Filter, endpoints: list[Endpoint], **request: Any) -> ProfileResult:
    return make_profile(filters=[plugin]).run(make_request(**request), endpoints, CycleState())


PUBLISHED = {
    "p1": {
        "waiting_requests": 0,
        "kv_cache_usage": 0.2,
        "active_adapters": ["foo", "bar"],
        "max_adapters": 2,
    },
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
    "p1": PUBLISHED["p1"] | {"waiting_requests": 10, "kv_cache_usage": 0.9},
    "p2": PUBLISHED["p2"] | {"kv_cache_usage": 0.85},
    "p3": PUBLISHED["p3"] | {"kv_cache_usage": 0.85},
}
OVERLOADED = {name: row | {"waiting_requests": 200} for name, row in PUBLISHED.items()}


@pytest.mark.parametrize(
    ("table", "model", "priority", "want"),
    [
        # Low queue: all. The adapter is on p2, p3 has room for it.
        pytest.param(PUBLISHED, "critical", 0, ["p2"], id="published: critical"),
        # Capacity: p1 and p2. No adapter, no room: the step fails. Least queue: <= 0 + 3 // 2.
        pytest.param(PUBLISHED, "sheddable", -1, ["p1"], id="published: sheddable"),
        # Low queue: all. Room for the adapter: p3.
        pytest.param(PUBLISHED, "other", 0, ["p3"], id="a critical one goes where there is room"),
        # Low queue: none. Least queue: all. Adapter: all. Least KV: <= .1 + .1 / 3.
        pytest.param(OVERLOADED, "foo", 0, ["p2"], id="long queues come before affinity"),
        # Low queue: all. Least queue: <= 3 + 7 // 3. Least KV: p2 alone.
        pytest.param(SATURATED, "foo", 0, ["p2"], id="a critical one is never dropped"),
    ],
)
def test_the_tree_of_gie_677(
    table: dict[str, dict[str, Any]], model: str, priority: int, want: list[str]
) -> None:
    request = make_request(target_model=model, priority=priority)
    profile = make_profile(filters=[whole_tree()])
    assert run_profile(profile, request, make_endpoints(table)) == want


@pytest.mark.parametrize("priority", [-1, -100])
def test_published_a_sheddable_request_is_dropped_if_there_is_no_capacity(priority: int) -> None:
    result = run(whole_tree(), make_endpoints(SATURATED), priority=priority)
    assert isinstance(result.error, DroppedError)
    assert (result.error.profile, result.error.by) == ("default", "tree")
    assert "after 'has-capacity' no other way is left" in str(result.error)


@pytest.mark.parametrize("priority", [0, -1], ids=["critical", "sheddable"])
def test_published_an_empty_pool_is_an_error_and_no_drop(priority: int) -> None:
    result = run(whole_tree(), [], priority=priority)
    assert isinstance(result.error, NoEndpointsError)
    assert "there is no endpoint to choose from" in str(result.error)


def test_affinity_holds_for_its_share_of_the_requests() -> None:
    plugin, endpoints = tree(CRITICAL_TREE), make_endpoints(PUBLISHED)
    request = make_request(target_model="critical")
    picked = [run_filter(plugin, request, endpoints) for _ in range(2000)]
    # 0.1 % of 2000 go where there is room, p3: 2 expected.
    assert 0 < picked.count(["p3"]) < 12
    assert picked.count(["p2"]) + picked.count(["p3"]) == 2000


H100 = make_endpoint("h100", labels={"gpu": "h100"}, waiting_requests=9)
L40 = make_endpoint("l40", labels={"gpu": "l40"})


@pytest.mark.parametrize(
    ("parameters", "endpoints", "want"),
    [
        pytest.param({"filter": "h100-only"}, [H100, L40], ["h100"], id="one node"),
        pytest.param({"filter": "h100-only"}, [L40], [], id="one node that leaves nobody"),
        pytest.param(
            {"filter": "h100-only", "next": {"filter": "least-queue"}},
            [H100, L40],
            ["h100"],
            id="next gets what passed",
        ),
        pytest.param(
            {"filter": "h100-only", "next": {"filter": "least-queue"}},
            [L40],
            ["l40"],
            id="next gets the original set after a failure",
        ),
        pytest.param(
            {"filter": "h100-only", "nextOnFailure": {"filter": "least-queue"}},
            [H100, L40],
            ["h100"],
            id="success without a next node",
        ),
        pytest.param(
            {"filter": "h100-only", "nextOnSuccess": {"drop": True}},
            [L40],
            [],
            id="failure without a next node",
        ),
        pytest.param(
            {
                "filter": "least-queue",
                "next": {"filter": "h100-only", "next": {"filter": "has-capacity"}},
            },
            [H100, L40],
            ["l40"],
            id="the original set is what the failed node was given, not the pool",
        ),
        pytest.param(
            {"priorityAtLeast": 0, "nextOnFailure": {"drop": True}},
            [H100, L40],
            ["h100", "l40"],
            id="a priority removes nobody",
        ),
        pytest.param(
            {"priorityAtLeast": 1, "nextOnSuccess": {"filter": "h100-only"}},
            [H100, L40],
            ["h100", "l40"],
            id="a priority that is too low, without a next node",
        ),
    ],
)
def test_the_way_through_a_tree(
    parameters: dict[str, Any], endpoints: list[Endpoint], want: list[str]
) -> None:
    assert run_filter(tree(parameters), make_request(), endpoints) == want


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        pytest.param({"drop": True}, "the tree has nothing else", id="nothing but a drop"),
        pytest.param(
            {"priorityAtLeast": 5, "nextOnFailure": {"drop": True}},
            "its priority is 3",
            id="a priority",
        ),
        pytest.param(
            {"filter": "h100-only", "nextOnFailure": {"drop": True}},
            "after 'h100-only' no other way is left",
            id="a filter",
        ),
    ],
)
def test_a_drop_says_why(parameters: dict[str, Any], why: str) -> None:
    result = run(tree(parameters), [L40], priority=3)
    assert isinstance(result.error, DroppedError)
    assert str(result.error) == f"profile 'default': tree dropped the request: {why}"
    with pytest.raises(DroppedError, match=why):
        run_filter(tree(parameters), make_request(priority=3), [L40])


@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: tree({"filter": "t"}, inner)])
def test_a_branch_that_ends_empty_names_the_filter_that_emptied_it(
    wrap: Callable[[DecisionTreeFilter], DecisionTreeFilter],
) -> None:
    inner = tree({"filter": "least-queue", "next": {"filter": "h100-only"}}, name="t")
    busy = make_endpoint("busy", labels={"gpu": "h100"}, waiting_requests=50)
    result = run(wrap(inner), [busy, L40])
    assert isinstance(result.error, NoEndpointsError)
    assert result.removed == {"least-queue": ["busy"], "h100-only": ["l40"]}


def guarded(plugin: Filter, observer: PluginObserver) -> SchedulerProfile:
    """Return a profile in which failures are not raised, as in production."""
    picker = make_plugin(MaxScorePicker, name="pick")
    guards = GuardRails(observer=observer)
    return SchedulerProfile(name="default", filters=[plugin], picker=picker, guards=guards)


class Raising(LowQueueFilter):
    type = "raising"

    def filter(self, *_: object) -> list[Endpoint]:
        raise RuntimeError("broken")


class RaisingClosed(Raising):
    type = "raising-closed"
    fails_open = False


@pytest.mark.parametrize(
    ("broken", "want"),
    [
        pytest.param(Raising, ["h100"], id="an open one passes all and the tree goes on"),
        pytest.param(RaisingClosed, ["l40"], id="a closed one passes none: the other way"),
    ],
)
def test_a_filter_that_raises_inside_of_a_tree(broken: type[Raising], want: list[str]) -> None:
    plugin = tree(
        {
            "filter": "broken",
            "nextOnSuccess": {"filter": "h100-only"},
            "nextOnFailure": {"filter": "least-queue"},
        },
        make_plugin(broken, name="broken"),
    )
    assert run_profile(guarded(plugin, NullObserver()), make_request(), [H100, L40]) == want


class Timed(NullObserver):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        return lambda seconds: self.calls.append(f"{extension_point} {plugin.name}")


def test_filters_in_a_tree_are_timed_one_by_one_under_their_own_names() -> None:
    observer = Timed()
    profile = guarded(whole_tree(), observer)
    request = make_request(target_model="critical", priority=-1)
    assert run_profile(profile, request, make_endpoints(PUBLISHED)) == ["p2"]
    assert observer.calls == [
        "Filter has-capacity",
        "Filter low-queue",
        "Filter lora-affinity",
        "Filter least-queue",
        "Filter least-kv-cache",
        "Filter critical-tree",
        "Filter tree",
        "Picker pick",
    ]


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        pytest.param({}, "one of filter, priorityAtLeast, drop: true; found none", id="nothing"),
        pytest.param(
            {"filter": "a", "next": {"filter": "b", "next": {}}},
            r"found none of them - at `\$\.next\.next`",
            id="an empty node says where",
        ),
        pytest.param(
            {"filter": "a", "drop": True}, "found filter and drop", id="a filter that drops"
        ),
        pytest.param(
            {"filter": "a", "priorityAtLeast": 0},
            "found filter and priorityAtLeast",
            id="a filter with a priority",
        ),
        pytest.param(
            {"filter": "a", "next": {"filter": "b"}, "nextOnFailure": {"drop": True}},
            "next stands for both nextOnSuccess and nextOnFailure",
            id="both kinds of next",
        ),
        pytest.param(
            {"drop": True, "next": {"filter": "a"}}, "drop ends the request", id="after a drop"
        ),
        pytest.param(
            {"priorityAtLeast": 0, "next": {"filter": "a"}},
            "priorityAtLeast needs nextOnSuccess or nextOnFailure",
            id="a priority that decides nothing",
        ),
        pytest.param(
            {"filter": "a", "nextOnSucess": {"filter": "b"}},
            "unknown field `nextOnSucess`",
            id="a misspelt field",
        ),
    ],
)
def test_a_tree_without_sense_is_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        tree(parameters)


HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"


@pytest.mark.parametrize(
    ("plugins", "error"),
    [
        pytest.param(
            "- {type: decision-tree-filter, name: t, parameters: {filter: t}}",
            "in a circle: t -> t",
            id="a tree in itself",
        ),
        pytest.param(
            "- {type: decision-tree-filter, name: t, parameters: {filter: u}}\n"
            "- {type: decision-tree-filter, name: u, parameters: {filter: t}}",
            "in a circle: t -> u -> t",
            id="two trees in each other",
        ),
        pytest.param(
            "- {type: decision-tree-filter, parameters: {filter: low-queue}}",
            "refers to plugin `low-queue`, which is not defined",
            id="an unknown name",
        ),
        pytest.param(
            "- type: queue-scorer\n"
            "- {type: decision-tree-filter, parameters: {filter: queue-scorer}}",
            "refers to plugin `queue-scorer` (queue-scorer), which is no Filter",
            id="no filter",
        ),
    ],
)
def test_a_configuration_with_an_impossible_tree_is_refused(plugins: str, error: str) -> None:
    config = load_text(HEAD + plugins, "epp.yaml")
    with pytest.raises(ConfigError) as raised:
        GraphBuilder(PluginRegistry(PLUGINS)).build(config)
    assert error in str(raised.value)
    assert "plugins[" in str(raised.value)
