"""``dcgm-extractor``: reads the GPU utilization of an endpoint from a DCGM exporter's metrics.

The value is that of the endpoint's busiest GPU: the largest ``DCGM_FI_DEV_GPU_UTIL`` (a percentage)
divided by 100. A GPU belongs to the endpoint if its label ``pod`` is the endpoint's name without
the namespace. If the page has pods with this name in several namespaces, the label ``namespace``
decides. If no sample has a label ``pod``, as from a sidecar, all samples belong to the endpoint.
Values that are not percentages (DCGM's value for "not supported", NaN) are ignored. If the page has
no sample for the endpoint, the attribute is removed and an extract error is counted.

Writes: attribute ``GPUUtilization/dcgm-extractor``, 0.0 to 1.0, and, if the extractor has another
        name, also ``GPUUtilization/NAME``.
Example::

    plugins:
      - type: dcgm-data-source
      - type: dcgm-extractor
    dataLayer:
      sources:
        - pluginRef: dcgm-data-source
          extractors: [{pluginRef: dcgm-extractor}]
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import msgspec

from epp.data_layer.plugins import Extractor, Page, PageError, PageTooLargeError
from epp.scheduling import AttributeKey, Endpoint
from epp_plugins.data_sources.metric_spec import parse_labels
from epp_plugins.data_sources.page_parts import PART_BYTES, parts
from epp_plugins.state_keys import GPU_UTILIZATION

METRIC: Final = "DCGM_FI_DEV_GPU_UTIL"
MAX_SAMPLES: Final = 5000
"""Maximum GPUs on one page."""
_WHOLLY_BUSY: Final = 100.0

# Labels have some 500 bytes. Possessive ``*+`` for spaces: 8 MB of them would take 0.6 s.
_SAMPLE = re.compile(rb"\n%b(?:[ \t]*+(\{[^\n]{0,8192}\}))?[ \t]++([^\s]+)" % METRIC.encode())


_Sample = tuple[str | None, str | None, float]
"""The labels ``pod`` and ``namespace`` and the percentage of a GPU."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``dcgm-extractor``: none."""


class DcgmExtractor(Extractor):
    """Reads the utilization of an endpoint's busiest GPU."""

    type: ClassVar[str] = "dcgm-extractor"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        # Attribute keys with equal names are the same object.
        own = AttributeKey[float](f"GPUUtilization/{name}")
        self._keys = tuple(dict.fromkeys((GPU_UTILIZATION, own)))
        # Set per instance, unlike the keys of most plugins: a key may contain the instance's name.
        self.writes: tuple[AttributeKey[Any], ...] = self._keys  # type: ignore[misc]

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        for _ in self._steps(endpoint, page):
            pass

    def steps(self, endpoint: Endpoint, page: Page) -> Iterator[None]:
        return self._steps(endpoint, page)

    def _steps(self, endpoint: Endpoint, page: Page) -> Iterator[None]:
        samples: list[_Sample] = []
        for part in parts(page.body):
            samples += _samples(part)
            if len(samples) > MAX_SAMPLES:
                raise PageTooLargeError(
                    f"the page has more than {MAX_SAMPLES} series of {METRIC}: configure the"
                    " exporter to report only the GPUs of its own node"
                )
            if len(page.body) > PART_BYTES:
                yield
        busiest = _busiest(endpoint.name, samples)
        if busiest is None:
            for key in self._keys:
                endpoint.attributes.pop(key, None)
            raise PageError(f"the page has no {METRIC} of pod {endpoint.name}")
        for key in self._keys:
            endpoint.attributes[key] = busiest / _WHOLLY_BUSY


def _busiest(endpoint_name: str, samples: Sequence[_Sample]) -> float | None:
    """Return the percentage of the busiest GPU of an endpoint."""
    namespace, _, pod = endpoint_name.rpartition("/")
    unlabelled: list[float] = []
    in_namespace: list[float] = []
    anywhere: list[float] = []
    some_labelled = False
    for pod_label, namespace_label, value in samples:
        if pod_label is None:
            unlabelled.append(value)
            continue
        some_labelled = True
        if pod_label == pod:
            anywhere.append(value)
            if namespace_label == namespace:
                in_namespace.append(value)
    found = in_namespace or anywhere or ([] if some_labelled else unlabelled)
    return max(found, default=None)


def _samples(part: bytes) -> Iterator[_Sample]:
    """Yield the labels ``pod`` and ``namespace`` and the percentage of each GPU."""
    for text, number in _SAMPLE.findall(part):
        try:
            value = float(number)
        except ValueError:
            continue
        if 0.0 <= value <= _WHOLLY_BUSY:  # excludes NaN
            labels = parse_labels(text)
            yield labels.get("pod"), labels.get("namespace"), value
