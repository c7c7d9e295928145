"""The source of pods for ``epp serve``: a pool, or a label selector."""

from pathlib import Path
from typing import Any

import pytest

from epp.kubernetes.source import (
    FORMER_POOL_GROUP,
    POOL_GROUP,
    PodSelection,
    PodSource,
    PoolRef,
    PoolsSource,
)

from .served import ENDPOINT, Outcome, Serve, serve

__all__ = ["serve"]

CONFIG = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig}"
DEPLOYMENT = {"POD_NAME": "epp-7d9f6c-x2x4z"}
SELECTED = ("--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000")


def started(outcome: Outcome) -> Any:
    """Return the settings of a command line that was taken."""
    assert outcome.settings is not None, outcome.stderr
    return outcome.settings


@pytest.fixture(autouse=True)
def _outside_of_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESPACE", "POD_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("args", "env", "source", "pool_name"),
    [
        pytest.param(
            ["--pool-name", "p"],
            {},
            PodSource("default", PoolRef("p", POOL_GROUP)),
            "p",
            id="a pool",
        ),
        pytest.param(
            ["--pool-name=p"],
            {"NAMESPACE": "prod"},
            PodSource("prod", PoolRef("p")),
            "p",
            id="a namespace from the environment",
        ),
        pytest.param(
            ["--pool-name=p", "--pool-namespace=blue"],
            {"NAMESPACE": "prod"},
            PodSource("blue", PoolRef("p")),
            "p",
            id="a namespace from the command line",
        ),
        pytest.param(
            ["--pool-name=p"],
            {"NAMESPACE": ""},
            PodSource("default", PoolRef("p")),
            "p",
            id="an empty variable is none",
        ),
        pytest.param(
            ["--pool-name=p", f"--pool-group={FORMER_POOL_GROUP}"],
            {},
            PodSource("default", PoolRef("p", FORMER_POOL_GROUP)),
            "p",
            id="a group",
        ),
        pytest.param(
            ["--pool-name=a", "--pool-name=b", "--pool-name=a"],
            {"NAMESPACE": "prod"},
            PoolsSource("prod", names=("a", "b")),
            "a",
            id="several pools",
        ),
        pytest.param(
            ["--all-pools", f"--pool-group={FORMER_POOL_GROUP}"],
            {},
            PoolsSource("default", FORMER_POOL_GROUP),
            "default",
            id="all pools of a namespace",
        ),
        pytest.param(
            [*ENDPOINT, "--pool-name=a", "--pool-name=b"],
            {},
            None,
            "b",
            id="of names in metrics the last one",
        ),
        pytest.param(
            SELECTED,
            DEPLOYMENT,
            PodSource("default", selection=PodSelection("app=vllm", (8000,))),
            "epp",
            id="pods; the pool is named after the Deployment",
        ),
        pytest.param(
            ["--endpoint-selector= app ", "--endpoint-target-ports=8001, 8000,8001"],
            {"NAMESPACE": "prod", "POD_NAME": "my-epp-1a-2b"},
            PodSource("prod", selection=PodSelection("app", (8001, 8000))),
            "my-epp",
            id="blanks, and a port twice",
        ),
        pytest.param(
            ["--endpoint-selector=app", "--endpoint-target-ports=1,2,3,4,5,6,7,8,8"],
            DEPLOYMENT,
            PodSource("default", selection=PodSelection("app", (1, 2, 3, 4, 5, 6, 7, 8))),
            "epp",
            id="as many ports as a pool may have",
        ),
        pytest.param([*ENDPOINT], {}, None, "default", id="an endpoint"),
        pytest.param([*ENDPOINT, "--pool-name=p"], {}, None, "p", id="an endpoint and a name"),
        pytest.param([*ENDPOINT, *SELECTED], {}, None, "default", id="an endpoint and a selector"),
        pytest.param(
            ["--endpoints-file=/dev/null", "--pool-name=p"], {}, None, "p", id="a file and a name"
        ),
        pytest.param([f"--config-text={CONFIG}"], {}, None, "default", id="a configuration alone"),
    ],
)
def test_where_the_endpoints_are(
    args: list[str],
    env: dict[str, str],
    source: PodSource | PoolsSource | None,
    pool_name: str,
    serve: Serve,
) -> None:
    made = started(serve("serve", *args, env=env))
    assert (made.pods, made.pool_name) == (source, pool_name)


@pytest.mark.parametrize(
    ("args", "env", "fault"),
    [
        pytest.param(
            ["--pool-name=p", *SELECTED],
            DEPLOYMENT,
            "--pool-name and --endpoint-selector exclude each other",
            id="a pool and pods",
        ),
        pytest.param(
            ["--all-pools", "--pool-name=p"],
            {},
            "--all-pools and --pool-name exclude each other",
            id="all pools and one",
        ),
        pytest.param(
            ["--all-pools", *SELECTED],
            DEPLOYMENT,
            "--all-pools and --endpoint-selector exclude each other",
            id="all pools and pods",
        ),
        pytest.param(
            ["--all-pools", *ENDPOINT],
            {},
            "--all-pools needs pods: leave out the options that name endpoints",
            id="all pools and an endpoint",
        ),
        pytest.param(
            ["--all-pools", "--pool-config-dir=/dev/null"],
            {},
            "--pool-config-dir: /dev/null is not a directory",
            id="a file in place of a directory",
        ),
        pytest.param(
            ["--endpoint-selector=app=vllm"],
            DEPLOYMENT,
            "--endpoint-selector and --endpoint-target-ports: give both, or neither",
            id="no ports",
        ),
        pytest.param(
            ["--endpoint-target-ports=8000", "--pool-name=p"],
            DEPLOYMENT,
            "--endpoint-selector and --endpoint-target-ports: give both, or neither",
            id="no selector",
        ),
        *(
            pytest.param(
                ["--endpoint-selector=app", f"--endpoint-target-ports={ports}"],
                DEPLOYMENT,
                f"--endpoint-target-ports: {fault}",
                id=f"ports {ports}",
            )
            for ports, fault in {
                "0": "port 0 is not from 1 to 65535",
                "1,65536": "port 65536 is not from 1 to 65535",
                "http": "'http' is not a whole number",
                "8000,": "'' is not a whole number",
                "-1": "'-1' is not a whole number",
                "1,2,3,4,5,6,7,8,9": "9 ports are given, 8 are the most",
            }.items()
        ),
        *(
            pytest.param(
                SELECTED,
                {"POD_NAME": name},
                f"NAME-HASH-HASH; it is {name!r}",
                id=f"the pod is named {name!r}",
            )
            for name in ("", "epp", "epp-0", "epp-7D9F-x2x", "-a-b")
        ),
        pytest.param(
            [*ENDPOINT, "--endpoint-selector=app", "--endpoint-target-ports=0"],
            {},
            "--endpoint-target-ports: port 0",
            id="even if an endpoint is named",
        ),
    ],
)
def test_what_says_too_little_or_too_much_is_refused(
    args: list[str], env: dict[str, str], fault: str, serve: Serve
) -> None:
    outcome = serve("serve", *args, env=env)
    assert outcome.status == 2
    assert outcome.stderr.startswith("epp: --")
    assert fault in outcome.stderr


@pytest.mark.parametrize(
    "selector",
    [
        "app=vllm",
        "app==vllm,tier!=x",
        "app = vllm , tier",
        "app",
        "!app",
        "! app,llm-d.ai/role=decode",
        "app=",
        "app!=",
        "app in (vllm)",
        "app in(vllm, sglang ,),!old",
        "app notin ( a )",
        "replicas>2,replicas < 5",
        "in in (in)",
        "a" * 63 + "=" + "b" * 63,
    ],
)
def test_label_selectors_of_kubernetes_are_taken(selector: str, serve: Serve) -> None:
    args = ("--endpoint-selector", selector, "--endpoint-target-ports=8000")
    made = started(serve("serve", *args, env=DEPLOYMENT))
    assert made.pods.selection == PodSelection(selector, (8000,))


@pytest.mark.parametrize(
    "selector",
    [
        "app=vllm,",
        ",app",
        "app vllm",
        "app=vllm tier=x",
        "app=>x",
        "app=a=b",
        "app in vllm",
        "app in ()x",
        "app in (vllm",
        "app not in (vllm)",
        "!app=vllm",
        "-app",
        "app=-x",
        "A.b/app",
        "a/b/c",
        "app>x",
        "a" * 64,
        "app=" + "b" * 64,
        "äpp",
    ],
)
def test_what_is_no_label_selector_is_refused(selector: str, serve: Serve) -> None:
    args = ("--endpoint-selector", selector, "--endpoint-target-ports=8000")
    outcome = serve("serve", *args, env=DEPLOYMENT)
    assert outcome.status == 2
    fault = f"epp: --endpoint-selector: {selector!r} is no label selector such as app=vllm"
    assert outcome.stderr.startswith(fault)


def test_a_selector_beside_an_endpoint_is_named_as_without_effect(serve: Serve) -> None:
    event = "endpoints are named, so --endpoint-selector has no effect"
    assert serve("serve", *ENDPOINT, *SELECTED).logged(event)
    assert not serve("serve", *ENDPOINT, "--pool-name=p").logged(event)


def test_a_directory_of_configurations_has_no_effect_with_one_pool(
    serve: Serve, tmp_path: Path
) -> None:
    outcome = serve("serve", "--pool-name=p", f"--pool-config-dir={tmp_path}")
    assert started(outcome).pool_config_dir == tmp_path
    assert [line["event"] for line in outcome.logs if line["log_level"] == "warning"] == [
        "at most one pool is served, so --pool-config-dir has no effect"
    ]
    several = serve("serve", "--all-pools", f"--pool-config-dir={tmp_path}")
    assert not [line for line in several.logs if line["log_level"] == "warning"]
