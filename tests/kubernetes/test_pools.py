"""The pods that a pool selects, in both API groups."""

from typing import Any

import msgspec
import pytest

from epp.kubernetes.pools import CONFIG_KEY, HOSTS_KEY, POOLS
from epp.kubernetes.source import FORMER_POOL_GROUP, POOL_GROUP, PodSelection

SELECTOR = {"selector": {"matchLabels": {"a": "b"}}}


def decode(group: str, spec: dict[str, Any]) -> Any:
    _, type_ = POOLS[group]
    document = {"metadata": {"name": "p", "namespace": "d"}, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(document), type=type_)


@pytest.mark.parametrize(
    ("group", "spec", "selection", "protocol"),
    [
        pytest.param(
            POOL_GROUP,
            {
                "selector": {"matchLabels": {"tier": "x", "app": "vllm"}},
                "targetPorts": [{"number": 8001}, {"number": 8000}],
                "endpointPickerRef": {"name": "epp"},
            },
            PodSelection("app=vllm,tier=x", (8001, 8000)),
            "http",
            id="the order of ports counts, that of labels does not",
        ),
        pytest.param(
            POOL_GROUP,
            {
                "selector": {"matchLabels": {"llm-d.ai/model": ""}},
                "targetPorts": [{"number": 1}],
                "appProtocol": "kubernetes.io/h2c",
            },
            PodSelection("llm-d.ai/model=", (1,)),
            "kubernetes.io/h2c",
            id="an empty value, and a protocol",
        ),
        pytest.param(
            FORMER_POOL_GROUP,
            {"selector": {"app": "vllm"}, "targetPortNumber": 8000, "extensionRef": {"name": "e"}},
            PodSelection("app=vllm", (8000,)),
            "",
            id="former group",
        ),
    ],
)
def test_what_is_read_of_a_pool(
    group: str, spec: dict[str, Any], selection: PodSelection, protocol: str
) -> None:
    pool = decode(group, spec)
    assert pool.selection() == selection
    assert pool.app_protocol == protocol


@pytest.mark.parametrize(
    ("group", "spec", "fault"),
    [
        (POOL_GROUP, SELECTOR, "targetPorts"),
        (POOL_GROUP, {**SELECTOR, "targetPorts": []}, "length >= 1"),
        (POOL_GROUP, {**SELECTOR, "targetPorts": [{"number": 0}]}, ">= 1"),
        (POOL_GROUP, {**SELECTOR, "targetPorts": [{"number": 65536}]}, "<= 65535"),
        (POOL_GROUP, {"targetPorts": [{"number": 8000}]}, "selector"),
        (POOL_GROUP, {"selector": {}, "targetPorts": [{"number": 8000}]}, "matchLabels"),
        (FORMER_POOL_GROUP, {"selector": {"a": "b"}}, "targetPortNumber"),
        (FORMER_POOL_GROUP, {"targetPortNumber": 8000}, "selector"),
    ],
)
def test_a_pool_without_ports_or_labels_is_refused(
    group: str, spec: dict[str, Any], fault: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=fault):
        decode(group, spec)


def metadata(**given: dict[str, str]) -> Any:
    """Return the decoded metadata of a pool."""
    _, type_ = POOLS[POOL_GROUP]
    spec = SELECTOR | {"targetPorts": [{"number": 1}]}
    document = {"metadata": {"name": "p", "namespace": "d", **given}, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(document), type=type_).metadata


@pytest.mark.parametrize(
    ("group", "reference", "service"),
    [
        pytest.param(POOL_GROUP, {"name": "epp"}, "epp", id="a Service"),
        pytest.param(
            POOL_GROUP, {"name": "epp", "kind": "Service", "group": ""}, "epp", id="spelled out"
        ),
        pytest.param(POOL_GROUP, {"name": "epp", "kind": "Picker"}, "", id="another kind"),
        pytest.param(POOL_GROUP, {"name": "epp", "group": "x.io"}, "", id="another group"),
        pytest.param(POOL_GROUP, None, "", id="none"),
        pytest.param(FORMER_POOL_GROUP, {"name": "e"}, "e", id="former group"),
        pytest.param(FORMER_POOL_GROUP, None, "", id="none in the former group"),
    ],
)
def test_the_service_of_the_endpoint_picker(
    group: str, reference: dict[str, str] | None, service: str
) -> None:
    is_former = group == FORMER_POOL_GROUP
    spec: dict[str, Any] = (
        {"selector": {"a": "b"}, "targetPortNumber": 1}
        if is_former
        else SELECTOR | {"targetPorts": [{"number": 1}]}
    )
    if reference is not None:
        spec["extensionRef" if is_former else "endpointPickerRef"] = reference
    assert decode(group, spec).service == service


def test_the_configuration_of_a_pool_is_named_by_an_annotation_or_a_label() -> None:
    assert metadata().config_name == ""
    assert metadata(labels={CONFIG_KEY: "fast"}).config_name == "fast"
    both = metadata(labels={CONFIG_KEY: "fast"}, annotations={CONFIG_KEY: "slow"})
    assert both.config_name == "slow"


def test_the_hosts_of_a_pool_are_separated_by_commas() -> None:
    assert metadata().hosts == ()
    hosts = metadata(annotations={HOSTS_KEY: " Chat.example.com, *.chat.example.com,,"}).hosts
    assert hosts == ("chat.example.com", "*.chat.example.com")
