"""When each health service is SERVING, with endpoints from the Kubernetes API.

The table is that of the Go EPP, except for what ``docs/differences.md`` names: ``liveness`` tells
whether the event loop moves, ``inference-extension`` follows readiness also where a leader is
elected, and other names are unknown.
"""

import itertools
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from epp.app import App, ServeSettings
from epp.config import DEFAULT_CONFIG, load_text
from epp.health import EXT_PROC_SERVICE
from epp.kubernetes.discovery import SOURCE
from epp.kubernetes.pools import POOLS, Pool
from epp.kubernetes.source import FORMER_POOL_GROUP, POOL_GROUP, PodSelection, PodSource, PoolRef

H2C = "kubernetes.io/h2c"
IN_NAMESPACE = PodSource("d", PoolRef("pool"))
FOLLOW_READINESS = ["", "readiness", "inference-extension", EXT_PROC_SERVICE]
SERVING, NOT_SERVING, UNKNOWN = 1, 2, None


def make_pool(protocol: str | None = None, group: str = POOL_GROUP) -> Pool:
    spec: dict[str, Any] = {"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": 1}]}
    if group == FORMER_POOL_GROUP:
        spec = {"selector": {"a": "b"}, "targetPortNumber": 1}
    elif protocol is not None:
        spec["appProtocol"] = protocol
    return msgspec.convert({"metadata": {"name": "pool"}, "spec": spec}, POOLS[group][1])


def make_app(*parsers: str, pods: PodSource = IN_NAMESPACE, elects_leader: bool = False) -> App:
    """Make an application with these parsers, or the default ones."""
    refs = ", ".join(f"{{pluginRef: {each}}}" for each in parsers)
    plugins = "".join(f"- type: {each}\n" for each in parsers)
    chosen = f"plugins:\n{plugins}requestHandler: {{parsers: [{refs}]}}\n" if parsers else ""
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    config = load_text(head + chosen if parsers else DEFAULT_CONFIG, "test")
    return App(
        ServeSettings(config=config, pods=pods, pool_name="pool", elects_leader=elects_leader)
    )


def set_state(
    app: App, pool: Pool | None, *, leads: bool = False, is_draining: bool = False
) -> None:
    """Set what readiness depends on; the discovery has reported that there are no endpoints."""
    assert app._cluster is not None
    app._cluster.discoveries[0].pool = pool
    app._cluster._elector = SimpleNamespace(is_leader=leads)  # type: ignore[assignment]
    app.pool.store.replace_endpoints(SOURCE, ())
    app._draining = is_draining


def statuses(app: App, *names: str) -> list[int | None]:
    return [app._health.status(name) for name in names]


@pytest.mark.parametrize("elects_leader", [False, True], ids=["no election", "election"])
@pytest.mark.parametrize("parser", ["openai-parser", "vllmgrpc-parser"])
def test_the_matrix_of_readiness(elects_leader: bool, parser: str) -> None:
    app = make_app(parser, elects_leader=elects_leader)
    pools = (None, make_pool("http"), make_pool(H2C))
    seen = set()
    for pool, leads, is_draining in itertools.product(pools, (False, True), (False, True)):
        set_state(app, pool, leads=leads, is_draining=is_draining)
        is_ready = (
            pool is not None
            and (parser == "openai-parser" or pool.app_protocol == H2C)
            and (leads or not elects_leader)
            and not is_draining
        )
        expected = SERVING if is_ready else NOT_SERVING
        assert statuses(app, *FOLLOW_READINESS) == [expected] * 4
        assert statuses(app, "liveness", "another") == [SERVING, UNKNOWN]
        seen.add(expected)
    assert seen == {SERVING, NOT_SERVING}


@pytest.mark.parametrize(
    ("parsers", "protocol", "is_ready"),
    [
        pytest.param([], None, True, id="the default parsers, the default protocol"),
        pytest.param([], H2C, True, id="the default parsers, h2c"),
        pytest.param(["passthrough-parser"], "http", True, id="passthrough names none"),
        pytest.param(["passthrough-parser"], H2C, True, id="passthrough, h2c"),
        *(
            pytest.param([f"{name}-parser"], protocol, True, id=f"{name}, {protocol}")
            for name in ("openai", "anthropic", "vllmhttp", "sglanghttp")
            for protocol in ("http", H2C)
        ),
        pytest.param(["vllmgrpc-parser"], None, False, id="gRPC, the default protocol"),
        pytest.param(["vllmgrpc-parser"], "http", False, id="gRPC, http"),
        pytest.param(["vllmgrpc-parser"], H2C, True, id="gRPC, h2c"),
        pytest.param(["vertexai-parser"], "http", False, id="Vertex AI, http"),
        pytest.param(["vertexai-parser"], H2C, True, id="Vertex AI, h2c"),
        pytest.param(["openai-parser", "vllmgrpc-parser"], "http", False, id="one of two"),
        pytest.param(["openai-parser", "vllmgrpc-parser"], H2C, True, id="both"),
    ],
)
def test_every_parser_must_suit_the_protocol_of_the_pool(
    parsers: list[str], protocol: str | None, is_ready: bool
) -> None:
    app = make_app(*parsers)
    set_state(app, make_pool(protocol))
    assert app.is_ready is is_ready


def test_a_pool_of_the_former_group_names_no_protocol() -> None:
    app = make_app("vllmgrpc-parser", pods=PodSource("d", PoolRef("pool", FORMER_POOL_GROUP)))
    set_state(app, make_pool(group=FORMER_POOL_GROUP))
    assert app.is_ready


def test_pods_selected_by_labels_have_no_pool_to_wait_for() -> None:
    app = make_app("vllmgrpc-parser", pods=PodSource("d", selection=PodSelection("a=b", (1,))))
    set_state(app, None)
    assert app.is_ready


def test_nothing_is_ready_before_the_pods_are_known() -> None:
    app = make_app()
    assert app._cluster is not None
    app._cluster.discoveries[0].pool = make_pool()
    assert statuses(app, *FOLLOW_READINESS) == [NOT_SERVING] * 4


def test_a_protocol_that_does_not_suit_is_reported_once() -> None:
    app = make_app("vllmgrpc-parser")
    with capture_logs() as logs:
        for pool in (make_pool(), make_pool("http"), make_pool(H2C), make_pool("http")):
            set_state(app, pool)
            for _ in range(3):
                assert app.is_ready is (pool.app_protocol == H2C)
    problem = (
        "the pool's appProtocol is http, and vllmgrpc-parser is for kubernetes.io/h2c: change the"
        " pool, or take the parser out of requestHandler.parsers"
    )
    logged = [each for each in logs if each["event"].startswith("not ready")]
    assert [each["problem"] for each in logged] == [problem] * 2
