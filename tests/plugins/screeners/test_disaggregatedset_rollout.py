"""``disaggregatedset-rollout-screener`` keeps a request within a complete revision."""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from epp.config.plugin_states import MAX_VALUES
from epp.data_layer.plugins import ObjectChange, ObjectEvent
from epp.observability import PluginMetricsCollector, bounded
from epp.request_control.plugins import ResponseHead
from epp.scheduling import CycleState, Endpoint
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.pods import POD
from epp_plugins.screeners.disaggregatedset_rollout import DisaggregatedSetRolloutScreener

NAME = "disaggregatedset.x-k8s.io/name"
REVISION = "disaggregatedset.x-k8s.io/revision"
ROLE = "disaggregatedset.x-k8s.io/role"
SLICE = "disaggregatedset.x-k8s.io/slice"

STRICT = {
    "name": "revision",
    "headerName": "X-Disagg-Revision",
    "labelKey": REVISION,
    "mode": "strict",
}
PREFER = {"name": "slice", "headerName": "x-disagg-slice", "labelKey": SLICE, "mode": "prefer"}


def parameters(mode: str = "sum", **changes: Any) -> dict[str, Any]:
    return {
        "scope": {"labelSelector": f"{NAME}=my-set"},
        "headerSelectors": [STRICT, PREFER],
        "revisionGating": {"mode": mode, "requireRoles": {"values": ["prefill", "decode"]}},
        **changes,
    }


def screener(mode: str = "sum", seed: int = 1, **changes: Any) -> DisaggregatedSetRolloutScreener:
    return make_plugin(
        DisaggregatedSetRolloutScreener,
        parameters(mode, **changes),
        name="rollout",
        rng=random.Random(seed),
    )


def pod(
    name: str,
    revision: str | None,
    role: str | None,
    *,
    ready: str = "True",
    part_of: str = "my-set",
    deleting: bool = False,
) -> ObjectEvent:
    labels = {NAME: part_of, REVISION: revision, ROLE: role}
    metadata: dict[str, Any] = {"name": name, "labels": {k: v for k, v in labels.items() if v}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-24T12:00:00Z"
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    return ObjectEvent(
        ObjectChange.UPDATED, POD, "d", name, name, {"metadata": metadata, "status": status}
    )


def gone(name: str) -> ObjectEvent:
    metadata = {"metadata": {"name": name}}
    return ObjectEvent(ObjectChange.DELETED, POD, "d", name, name, metadata)


def roll_out(
    plugin: DisaggregatedSetRolloutScreener, counts: Mapping[str, Mapping[str, int]]
) -> None:
    """Create ready pods: the number of each revision and role."""
    for revision, roles in counts.items():
        for role, count in roles.items():
            for number in range(count):
                plugin.object_changed(pod(f"{revision}-{role}-{number}", revision, role))


def endpoint(name: str, revision: str = "", **labels: str) -> Endpoint:
    return make_endpoint(name, labels={**({REVISION: revision} if revision else {}), **labels})


ENDPOINTS = [
    endpoint("a1", "a"),
    endpoint("b1", "b"),
    endpoint("a2", "a"),
    endpoint("bare"),
]


def screened(
    plugin: DisaggregatedSetRolloutScreener,
    headers: Mapping[str, str] | None = None,
    state: CycleState | None = None,
) -> list[str]:
    request = make_request(headers=headers)
    return [each.name for each in plugin.screen(request, ENDPOINTS, state or make_state())]


def drawn(plugin: DisaggregatedSetRolloutScreener, requests: int = 2000) -> dict[str, float]:
    """Return the share of the requests that each revision gets."""
    counted = Counter(screened(plugin)[0][0] for _ in range(requests))
    return {revision: count / requests for revision, count in sorted(counted.items())}


def test_the_class_is_sound() -> None:
    check(DisaggregatedSetRolloutScreener)


@pytest.mark.parametrize(
    ("mode", "counts", "share_of_b"),
    [
        pytest.param(
            "sum",
            {"a": {"prefill": 2, "decode": 9}, "b": {"prefill": 1, "decode": 1}},
            2 / 13,  # (1 + 1) / (2 + 9 + 1 + 1)
            id="sum of all roles",
        ),
        pytest.param(
            "max-role",
            {"a": {"prefill": 2, "decode": 9}, "b": {"prefill": 1, "decode": 1}},
            1 / 10,  # decode has 10 pods, prefill 3
            id="the role with the most pods",
        ),
        pytest.param(
            "max-role",
            {"a": {"prefill": 8, "decode": 2}, "b": {"prefill": 2, "decode": 8}},
            2 / 10,  # both roles have 10 pods, prefill is the first one
            id="the first of two equal roles",
        ),
        pytest.param(
            "max-role",
            {
                "a": {"prefill": 3, "decode": 1},
                "b": {"prefill": 1, "decode": 2},
                "c": {"decode": 50},
            },
            1 / 4,  # c has no prefill pod: prefill has 4 pods, decode 3
            id="pods of an incomplete revision do not choose the role",
        ),
        pytest.param(
            "sum",
            {"a": {"prefill": 1, "decode": 1, "encode": 90}, "b": {"prefill": 1, "decode": 1}},
            1 / 2,  # encode is not required
            id="other roles have no weight",
        ),
        pytest.param("sum", {"b": {"prefill": 1, "decode": 1}}, 1.0, id="only one revision"),
        pytest.param(
            "sum",
            {"a": {"prefill": 4}, "b": {"prefill": 1, "decode": 1}},
            1.0,
            id="only one complete revision",
        ),
        pytest.param(
            "sum",
            {"a": {"prefill": 1, "decode": 1}, "x": {"prefill": 9, "decode": 9}},
            0.0,  # x has pods, but no endpoint
            id="a revision without endpoints",
        ),
    ],
)
def test_requests_are_shared_among_the_complete_revisions(
    mode: str, counts: dict[str, dict[str, int]], share_of_b: float
) -> None:
    plugin = screener(mode)
    roll_out(plugin, counts)
    # Three standard deviations of 2000 draws are at most 0.034.
    assert drawn(plugin).get("b", 0.0) == pytest.approx(share_of_b, abs=0.034)


def test_a_request_gets_the_endpoints_of_one_revision_in_their_order() -> None:
    plugin = screener()
    roll_out(plugin, {"a": {"prefill": 1, "decode": 1}, "b": {"prefill": 1, "decode": 1}})
    kept = {tuple(screened(plugin)) for _ in range(50)}
    assert kept == {("a1", "a2"), ("b1",)}


def test_without_pods_there_is_no_candidate() -> None:
    assert screened(screener()) == []
    assert screened(screener("max-role"), {"x-disagg-revision": "a"}) == []


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        pytest.param(pod("p", "a", "decode"), True, id="ready"),
        pytest.param(pod("p", "a", "decode", ready="False"), False, id="not ready"),
        pytest.param(pod("p", "a", "decode", ready="Unknown"), False, id="unknown"),
        pytest.param(pod("p", "a", "decode", deleting=True), False, id="being deleted"),
        pytest.param(pod("p", "a", "decode", part_of="other"), False, id="outside of the scope"),
        pytest.param(pod("p", None, "decode"), False, id="without a revision"),
        pytest.param(pod("p", "a", None), False, id="without a role"),
        pytest.param(gone("p"), False, id="deleted"),
        pytest.param(
            ObjectEvent(ObjectChange.UPDATED, POD, "d", "p", "p", {"metadata": {"name": "p"}}),
            False,
            id="without labels and status",
        ),
    ],
)
def test_a_pod_counts_while_it_is_ready_and_in_scope(event: ObjectEvent, counts: bool) -> None:
    plugin = screener()
    plugin.object_changed(pod("prefill", "a", "prefill"))
    plugin.object_changed(event)
    assert screened(plugin) == (["a1", "a2"] if counts else [])
    # And the same for one that has counted before.
    plugin.object_changed(pod("p", "a", "decode"))
    assert screened(plugin) == ["a1", "a2"]
    plugin.object_changed(event)
    assert screened(plugin) == (["a1", "a2"] if counts else [])


def test_a_pod_that_takes_another_revision_or_is_reported_again_counts_once() -> None:
    plugin = screener()
    roll_out(plugin, {"a": {"prefill": 1, "decode": 1}})
    plugin.object_changed(pod("a-decode-0", "a", "decode"))
    plugin.object_changed(pod("a-decode-0", "b", "decode"))
    assert screened(plugin) == []
    plugin.object_changed(pod("a-prefill-0", "b", "prefill"))
    assert screened(plugin) == ["b1"]


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        pytest.param({"x-disagg-revision": "b"}, ["b1"], id="the revision asked for"),
        pytest.param({"x-disagg-revision": "c"}, [], id="an incomplete one"),
        pytest.param({"x-disagg-revision": "z"}, [], id="an unknown one"),
        pytest.param({"x-disagg-slice": "0"}, ["a1", "a2"], id="prefer removes nothing"),
        pytest.param({"x-disagg-revision": ""}, ["a1", "a2"], id="an empty header"),
    ],
)
def test_a_strict_header_chooses_in_place_of_the_draw(
    headers: dict[str, str], want: list[str]
) -> None:
    plugin = screener()
    roll_out(
        plugin,
        # b would be drawn once in 501 times
        {"a": {"prefill": 500, "decode": 500}, "b": {"prefill": 1, "decode": 1}},
    )
    plugin.object_changed(pod("c", "c", "decode"))
    assert screened(plugin, headers) == want


def test_every_strict_selector_must_match() -> None:
    zone = {"name": "zone", "headerName": "x-zone", "labelKey": "zone", "mode": "strict"}
    plugin = screener(headerSelectors=[STRICT, zone])
    roll_out(plugin, {"a": {"prefill": 1, "decode": 1}})
    endpoints = [endpoint("a1", "a", zone="1"), endpoint("a2", "a", zone="2"), endpoint("b", "b")]
    for headers, want in (
        ({"x-zone": "2"}, ["a2"]),
        ({"x-zone": "2", "x-disagg-revision": "a"}, ["a2"]),
        ({"x-zone": "3", "x-disagg-revision": "a"}, []),
    ):
        kept = plugin.screen(make_request(headers=headers), endpoints, make_state())
        assert [each.name for each in kept] == want


def test_disabled_gating_reads_no_pods_and_keeps_the_selectors() -> None:
    plugin = screener(revisionGating={"mode": "disabled"})
    assert plugin.object_kind is None
    assert screener().object_kind == POD
    assert screened(plugin) == [each.name for each in ENDPOINTS]
    assert screened(plugin, {"x-disagg-revision": "b"}) == ["b1"]
    assert screened(plugin, {"x-disagg-revision": "z"}) == []


def test_a_request_that_waits_keeps_its_revision_while_that_is_complete() -> None:
    plugin = screener()
    roll_out(plugin, {"a": {"prefill": 1, "decode": 1}, "b": {"prefill": 1, "decode": 1}})
    state = make_state()
    first = screened(plugin, state=state)
    assert all(screened(plugin, state=state) == first for _ in range(20))
    revision = first[0][0]
    plugin.object_changed(gone(f"{revision}-decode-0"))
    others = {"a": ["b1"], "b": ["a1", "a2"]}
    assert screened(plugin, state=state) == others[revision]


def test_the_response_has_the_labels_of_the_endpoint_that_served() -> None:
    plugin = screener()
    head = ResponseHead(200, {})
    served_by = endpoint("a1", "a", **{SLICE: "3"})
    plugin.response_headers(make_request(), head, served_by, make_state())
    assert head.set_headers == {"x-disagg-revision": "a", "x-disagg-slice": "3"}
    head = ResponseHead(200, {})
    plugin.response_headers(make_request(), head, endpoint("bare"), make_state())
    assert head.set_headers == {}


def test_labels_of_ones_own() -> None:
    gating = {
        "mode": "max-role",
        "requireRoles": {"values": ["decode"]},
        "revisionLabelKey": "group",
        "roleLabelKey": "part",
    }
    plugin = screener(scope={"labelSelector": "app in (vllm, sglang)"}, revisionGating=gating)
    labels = {"app": "vllm", "group": "g", "part": "decode"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    found = {"metadata": {"name": "p", "labels": labels}, "status": ready}
    plugin.object_changed(ObjectEvent(ObjectChange.UPDATED, POD, "d", "p", "u", found))
    endpoints = [make_endpoint("x", labels={"group": "g"}), make_endpoint("y")]
    kept = plugin.screen(make_request(), endpoints, make_state())
    assert [each.name for each in kept] == ["x"]


def test_metrics_show_shares_and_misses() -> None:
    metrics = PluginMetricsCollector()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    plugin = make_plugin(
        DisaggregatedSetRolloutScreener,
        parameters(),
        name="rollout",
        rng=random.Random(1),
        metrics=metrics,
    )
    roll_out(plugin, {"a": {"prefill": 1, "decode": 2}, "b": {"prefill": 1, "decode": 0}})
    plugin.object_changed(pod("c", "c", "prefill"))
    plugin.object_changed(gone("c"))
    assert screened(plugin, {"x-disagg-revision": "z"}) == []
    page = generate_latest(registry).decode()
    prefix = "llm_d_epp_disaggregatedset_"
    lines = sorted(each for each in page.splitlines() if each.startswith(prefix))
    instance = 'plugin_name="rollout",plugin_type="disaggregatedset-rollout-screener"'
    assert lines == [
        f'{prefix}revision_gating_share{{mode="sum",{instance},revision="a"}} 1.0',
        f'{prefix}revision_gating_share{{mode="sum",{instance},revision="b"}} 0.0',
        f'{prefix}strict_header_no_match_total{{{instance},selector="revision"}} 1.0',
    ]


ROLES = {"values": ["prefill", "decode"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"scope": {"labelSelector": ""}}, "length >= 1", id="empty scope"),
        pytest.param({"scope": {"labelSelector": "a="}}, None, id="an empty value"),
        pytest.param({"scope": {"labelSelector": "a=b,"}}, "no label selector", id="bad scope"),
        pytest.param(
            {"revisionGating": {"mode": "sum"}}, "needs requireRoles, such as", id="no roles"
        ),
        pytest.param(
            {"revisionGating": {"mode": "sum", "requireRoles": {"values": []}}},
            "length >= 1",
            id="empty roles",
        ),
        pytest.param(
            {"revisionGating": {"mode": "sum", "requireRoles": {"values": ["a", ""]}}},
            "length >= 1",
            id="an empty role",
        ),
        pytest.param(
            {"revisionGating": {"mode": "sum", "requireRoles": {"values": ["a", "a"]}}},
            "values 'a' is there twice",
            id="a role twice",
        ),
        pytest.param(
            {"revisionGating": {"mode": "avg", "requireRoles": ROLES}},
            "Invalid enum value 'avg'",
            id="unknown mode",
        ),
        pytest.param(
            {"headerSelectors": [STRICT, {**PREFER, "name": "revision"}]},
            "name 'revision' is there twice",
            id="a name twice",
        ),
        pytest.param(
            {"headerSelectors": [STRICT, {**PREFER, "headerName": "x-disagg-REVISION"}]},
            "headerName 'x-disagg-revision' is there twice",
            id="a header twice",
        ),
        pytest.param(
            {"headerSelectors": [{**STRICT, "mode": "maybe"}]},
            "Invalid enum value 'maybe'",
            id="unknown selector mode",
        ),
        pytest.param(
            {"headerSelectors": [{**STRICT, "headerName": "x y"}]},
            r"headerName 'x y' is no name of a header - at `\$\.headerSelectors\[",
            id="no header",
        ),
        pytest.param({"revisionGating": None}, "Expected `object`, got `null`", id="no gating"),
    ],
)
def test_bad_parameters_are_refused(changes: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert screener(**changes).name == "rollout"
        return
    with pytest.raises(ValueError, match=message):
        screener(**changes)


def test_the_state_has_the_pods_and_the_share_of_each_revision() -> None:
    plugin = screener()
    roll_out(plugin, {"a": {"prefill": 1, "decode": 2}, "b": {"prefill": 1}})
    assert plugin.dump_state() == {
        "pods": 4,
        "revisions": 2,
        "share_by_revision": {"a": 1.0, "b": 0.0},
        "pods_by_revision": {"a": {"prefill": 1, "decode": 2}, "b": {"prefill": 1, "decode": 0}},
    }


def test_the_state_of_many_revisions_is_bounded() -> None:
    plugin = screener()
    roll_out(plugin, {f"r{n:03}": {"prefill": 1, "decode": 1} for n in range(200)})
    state = plugin.dump_state()
    assert (state["pods"], state["revisions"]) == (400, 200)
    pods = state["pods_by_revision"]
    assert isinstance(pods, dict)
    assert len(pods) == 50
    assert bounded(state, 256, MAX_VALUES) == state
