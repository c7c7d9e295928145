"""Which pods a pool selects, in both API groups."""

from typing import Any

import msgspec
import pytest

from epp.kubernetes.pools import POOLS
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
            "http",
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
