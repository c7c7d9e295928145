"""Metrics of the process: memory, CPU, descriptors, Python, build information."""

import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from epp.compiled import IS_COMPILED
from epp.observability.metric_families import Maker

COMMIT_VARIABLE = "EPP_COMMIT"
"""Environment variable of the image: the commit that it was built from."""
BUILD_REF_VARIABLE = "EPP_BUILD_REF"
"""Likewise the branch or tag."""
UNKNOWN = "unknown"


def register_process(
    registry: CollectorRegistry, environment: Mapping[str, str] = os.environ
) -> None:
    """Export ``process_*``, ``python_*``, ``llm_d_epp_info`` and ``llm_d_epp_compiled``.

    Args:
        registry: Registry for the collectors, which read their values at each scrape.
        environment: Environment variables with build information.
    """
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    make = Maker(registry)
    info = make.gauge("info", "1; the labels say what was built.", ("commit", "build_ref"))
    built = (environment.get(name) or UNKNOWN for name in (COMMIT_VARIABLE, BUILD_REF_VARIABLE))
    info.labels(*built).set(1)
    make.gauge(
        "compiled",
        "1 if the path of requests runs compiled, 0 if it is interpreted.",
        (),
    ).labels().set(int(IS_COMPILED))
