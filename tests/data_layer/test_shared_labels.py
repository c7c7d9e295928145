"""Equal labels are one immutable object."""

import gc

from epp.data_layer import EndpointSpec, EndpointStore, share_labels
from epp.data_layer import shared_labels as module


def test_equal_labels_are_the_same_object_in_any_order() -> None:
    one = share_labels({"app": "vllm", "role": "decode"})
    assert share_labels({"role": "decode", "app": "vllm"}) is one
    assert share_labels(one) is one
    assert one == {"app": "vllm", "role": "decode"}
    assert share_labels({"app": "vllm", "role": "prefill"}) is not one


def test_a_later_change_of_the_original_is_not_seen() -> None:
    original = {"app": "vllm"}
    shared = share_labels(original)
    original["app"] = "other"
    assert shared == {"app": "vllm"}
    assert share_labels({"app": "vllm"}) is shared


def test_labels_that_nobody_uses_are_freed() -> None:
    before = len(module._known)
    kept = [share_labels({"pod": str(number)}) for number in range(100)]
    assert len(module._known) >= before + 100
    del kept
    gc.collect()
    assert len(module._known) <= before


def test_the_endpoints_of_a_pool_share_their_labels() -> None:
    store = EndpointStore()
    specs = [EndpointSpec(f"ns/{n}", f"10.0.0.{n}:80", {"app": "vllm"}) for n in range(3)]
    store.replace_endpoints("test", specs)
    one, two, three = (endpoint.labels for endpoint in store.snapshot)
    assert one is two is three
    store.replace_endpoints("test", [*specs[:2], EndpointSpec("ns/2", "10.0.0.2:80", {"app": "x"})])
    assert [endpoint.labels["app"] for endpoint in store.snapshot] == ["vllm", "vllm", "x"]
