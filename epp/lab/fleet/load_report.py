"""The load report in the head of a response (ORCA), as vLLM sends it to a client that asks."""

from __future__ import annotations

import json
from collections.abc import Mapping

from epp.lab.fleet.engine import Engine

_FORMAT = b"endpoint-load-metrics-format"
_HEADER = b"endpoint-load-metrics"


def report_headers(asked: Mapping[bytes, bytes], engine: Engine) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of the report; () unless the request asks for a format that vLLM has.

    Args:
        asked: Headers of the request by lower-case name.
        engine: The engine that has served it.
    """
    metrics = {
        "kv_cache_usage_perc": float(engine.kv.usage),
        "num_requests_waiting": float(engine.num_waiting + engine.config.phantom_waiting),
    }
    match asked.get(_FORMAT, b"").lower():
        case b"text":
            text = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
            return ((_HEADER, f"TEXT {text}".encode()),)
        case b"json":
            return ((_HEADER, f"JSON {json.dumps({'named_metrics': metrics})}".encode()),)
        case _:
            return ()
