"""The names that pool, objects and configuration allow in metrics."""

from random import Random

from epp.config import load_text
from epp.data_layer import ObjectStore, configured_names, served_names
from epp.data_layer.objects import Objective, PolicyMeta, Rewrite, RewriteRule
from epp.data_layer.plugins import SERVED_MODELS
from epp.observability import Metrics
from epp.testing import make_endpoint

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: queue-scorer
- type: fairness
  parameters: {shares: {gold: 3, silver: 1}, models: [{name: llama}], on: true, count: 7}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}]
flowControl:
  priorityBands: [{priority: -10}, {priority: 5}]
"""


def test_models_and_adapters_of_the_pool_are_known() -> None:
    first = make_endpoint("a", active_adapters={"lora-1"}, waiting_adapters={"lora-2"})
    second = make_endpoint("b")
    second.attributes[SERVED_MODELS] = frozenset({"llama", "lora-1"})
    assert set(served_names([first, second]).models) == {"llama", "lora-1", "lora-2"}
    assert set(served_names([]).models) == set()


def test_texts_of_parameters_are_known_and_types_of_plugins_are_not() -> None:
    names = configured_names(load_text(CONFIG, "test"))
    assert {"gold", "silver", "llama"} <= set(names.fairness_ids)
    assert set(names.models) == set(names.fairness_ids)
    assert "queue-scorer" not in names.models
    assert list(names.priorities) == [-10, 5]


def test_names_of_objects_are_known() -> None:
    store = ObjectStore(pool_name="pool", rng=Random(0))
    store.replace(
        [
            Objective(PolicyMeta("InferenceObjective", "batch", "f:1"), priority=-7),
            Rewrite(
                PolicyMeta("InferenceModelRewrite", "chat", "f:2"),
                (
                    RewriteRule(("chat",), ("llama", "llama-2"), (9, 1)),
                    RewriteRule((), ("fallback",)),
                ),
            ),
        ]
    )
    names = store.names()
    assert set(names.models) == {"chat"}
    assert set(names.targets) == {"llama", "llama-2", "fallback"}
    assert set(names.priorities) == {-7}


def test_a_rewrite_that_the_operator_wrote_pairs_known_names() -> None:
    metrics = Metrics(max_page_bytes=200_000)
    store = ObjectStore(pool_name="pool", rng=Random(0))
    rule = RewriteRule(("chat",), ("llama",))
    store.replace([Rewrite(PolicyMeta("InferenceModelRewrite", "r", "f:1"), (rule,))])
    metrics.names.learn_from(store.names)
    for n in range(1000):
        metrics.for_request(f"junk-{n}", "llama", "default-flow", 0).total.inc()
    assert metrics.for_request("chat", "llama", "default-flow", 0).labels[:2] == ("chat", "llama")
    assert metrics.for_request("x", "llama", "default-flow", 0).labels[:2] == ("other", "llama")
