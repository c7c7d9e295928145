r"""``example-extractor``: reads one gauge from the metrics page into an attribute.

Writes: the attribute ``ExampleExtractor/example-extractor``, a float.
Example::

    plugins:
      - type: metrics-data-source
      - type: core-metrics-extractor
      - type: file:example_extractor.py:ExampleExtractor
        parameters: {metric: "vllm:num_preemptions_total"}
    dataLayer:
      sources:
        - pluginRef: metrics-data-source
          extractors:
            - pluginRef: core-metrics-extractor
            - pluginRef: file:example_extractor.py:ExampleExtractor
"""

import re
from typing import Any, ClassVar

import msgspec

from epp.data_layer.plugins import Extractor, Page
from epp.scheduling import AttributeKey, Endpoint

VALUE = AttributeKey[float]("ExampleExtractor/example-extractor")
"""Filters and scorers read it with ``endpoint.attribute(VALUE)``; None if it is unknown."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-extractor``."""

    metric: str
    """Name of the metric."""


class ExampleExtractor(Extractor):
    """Writes the sum of one metric's series."""

    type: ClassVar[str] = "example-extractor"
    writes: ClassVar[tuple[AttributeKey[Any], ...]] = (VALUE,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        metric = re.escape(params.metric.encode())
        self._line = re.compile(rb"^" + metric + rb"(?:\{[^}]*\})? (\S+)", re.MULTILINE)

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        if series := self._line.findall(page.body):
            endpoint.attributes[VALUE] = sum(map(float, series))
