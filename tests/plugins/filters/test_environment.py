from collections.abc import Callable

import pytest

from epp.config import ConfigError, GraphBuilder, PluginRegistry, load_text
from epp.scheduling import Filter
from epp.testing import make_endpoint, make_plugin, make_request, run_filter
from epp_plugins import PLUGINS
from epp_plugins.filters import has_capacity, lora_affinity, low_queue
from epp_plugins.filters.has_capacity import HasCapacityFilter
from epp_plugins.filters.lora_affinity import LoraAffinityFilter
from epp_plugins.filters.low_queue import LowQueueFilter


@pytest.mark.parametrize(
    ("variable", "text", "value", "want"),
    [
        pytest.param(
            "QUEUING_THRESHOLD_LORA",
            "64",
            lambda: low_queue.Params().threshold,
            (128, 64),
            id="low queue",
        ),
        pytest.param(
            "QUEUE_THRESHOLD_CRITICAL",
            " 7 ",
            lambda: has_capacity.Params().queue_threshold,
            (5, 7),
            id="queue of those with capacity",
        ),
        pytest.param(
            "KV_CACHE_THRESHOLD",
            "0.9",
            lambda: has_capacity.Params().kv_cache_threshold,
            (0.8, 0.9),
            id="KV cache of those with capacity",
        ),
        pytest.param(
            "LORA_AFFINITY_THRESHOLD",
            "1",
            lambda: lora_affinity.Params().threshold,
            (0.999, 1.0),
            id="LoRA affinity",
        ),
    ],
)
def test_a_variable_that_is_set_is_the_default(
    variable: str,
    text: str,
    value: Callable[[], float],
    want: tuple[float, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unset, when_set = want
    monkeypatch.delenv(variable, raising=False)
    assert value() == unset
    monkeypatch.setenv(variable, "")
    assert value() == unset
    monkeypatch.setenv(variable, text)
    assert value() == when_set


@pytest.mark.parametrize(
    ("variable", "text", "plugin", "error"),
    [
        pytest.param(
            "QUEUING_THRESHOLD_LORA",
            "many",
            LowQueueFilter,
            "QUEUING_THRESHOLD_LORA is 'many'; it must be a whole number from 0 up",
            id="no number",
        ),
        pytest.param(
            "QUEUE_THRESHOLD_CRITICAL",
            "2.5",
            HasCapacityFilter,
            "QUEUE_THRESHOLD_CRITICAL is '2.5'; it must be a whole number from 0 up",
            id="no whole number",
        ),
        pytest.param(
            "QUEUE_THRESHOLD_CRITICAL", "-1", HasCapacityFilter, "is '-1'", id="a negative number"
        ),
        pytest.param(
            "KV_CACHE_THRESHOLD",
            "80",
            HasCapacityFilter,
            "KV_CACHE_THRESHOLD is '80'; it must be a number from 0 to 1",
            id="percent",
        ),
        pytest.param("LORA_AFFINITY_THRESHOLD", "nan", LoraAffinityFilter, "is 'nan'", id="NaN"),
    ],
)
def test_a_variable_without_sense_is_refused_by_name(
    variable: str,
    text: str,
    plugin: type[Filter],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ValueError, match=f"environment variable .*{error}"):
        make_plugin(plugin)


def test_a_variable_without_sense_is_moot_where_the_file_has_a_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUEUING_THRESHOLD_LORA", "many")
    plugin = make_plugin(LowQueueFilter, {"threshold": 3})
    endpoints = [make_endpoint("a", waiting_requests=3), make_endpoint("b", waiting_requests=4)]
    assert run_filter(plugin, make_request(), endpoints) == ["a"]


def test_the_error_names_the_plugin_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_CACHE_THRESHOLD", "80")
    text = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: has-capacity-filter}]\n"
    )
    with pytest.raises(ConfigError, match=r"plugins\[0\].*KV_CACHE_THRESHOLD is '80'"):
        GraphBuilder(PluginRegistry(PLUGINS)).build(load_text(text, "epp.yaml"))
