"""Data that a running endpoint picker reports about itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from epp.admin.config_page import ConfigPage
from epp.admin.plugin_page import PluginsPage
from epp.data_layer.endpoints_page import EndpointsPage
from epp.doctor.clock_skew import ClockSkew
from epp.doctor.ext_proc_port import ExtProcPort

Sample = tuple[Mapping[str, str], float]
"""Labels and value of a series."""


class CopyState(msgspec.Struct, frozen=True):
    """State of the local copy of one kind of Kubernetes objects, from ``/debug/kubernetes``."""

    resource: str
    fault: str = ""


class KubernetesState(msgspec.Struct, frozen=True):
    """The part of ``/debug/kubernetes`` that the doctor reads."""

    is_pool_known: bool
    lease_fault: str = ""
    copies: tuple[CopyState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPicker:
    """A running endpoint picker; data that could not be read is None."""

    url: str
    """URL of its metrics port."""
    samples: Mapping[str, Sequence[Sample]]
    """The series of its metrics, by name."""
    skew: ClockSkew | None = None
    endpoints: EndpointsPage | None = None
    plugins: PluginsPage | None = None
    config: ConfigPage | None = None
    kubernetes: KubernetesState | None = None
    readiness: str = ""
    """Status that its health port reports, or why it reports none; "" if it was not queried."""
    ext_proc: ExtProcPort | None = None
    """Its port for gateways; None if it was not queried."""
    faults: tuple[str, ...] = ()
    """Pages that could not be read, and why."""

    def series(self, name: str) -> Iterator[Sample]:
        """Yield the series of a metric."""
        yield from self.samples.get(name, ())

    def total(self, name: str) -> float:
        """Return the sum of a metric's series."""
        return sum(value for _, value in self.series(name))


def samples_of(page: str) -> Mapping[str, Sequence[Sample]]:
    """Return the series of a metrics page, by name.

    Raises:
        ValueError: ``page`` is not a metrics page.
    """
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found
