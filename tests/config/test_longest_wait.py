"""The maximum time of a request in the queue, from the configuration."""

from math import inf

import pytest

from epp.config import load_text, longest_wait_seconds

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
ON = HEAD + "featureGates: [flowControl]\n"
BANDS = "extensions:\n  flowControl:\n    priorityBands:\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param(HEAD + "flowControl: {defaultRequestTTL: 90s}\n", 0.0, id="gate off"),
        pytest.param(ON, 60.0, id="the default"),
        pytest.param(ON + "flowControl: {defaultRequestTTL: 5s}\n", 5.0, id="shorter"),
        pytest.param(ON + "flowControl: {noEndpointRequestTTL: 2m}\n", 120.0, id="an empty pool"),
        pytest.param(
            ON + "flowControl: {defaultRequestTTL: 2s, noEndpointRequestTTL: 1s}\n",
            2.0,
            id="less for an empty pool",
        ),
        pytest.param(ON + BANDS + "    - {priority: 1, requestTTL: 10m}\n", 600.0, id="a band"),
        pytest.param(
            ON + "flowControl: {defaultRequestTTL: 2s}\n" + BANDS + "    - {priority: 1}\n",
            2.0,
            id="a band without a limit of its own",
        ),
        pytest.param(ON + BANDS + "    - {priority: 1, requestTTL: 0s}\n", inf, id="for ever"),
    ],
)
def test_the_longest_wait(text: str, seconds: float) -> None:
    assert longest_wait_seconds(load_text(text, "test")) == seconds
