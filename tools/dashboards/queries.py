"""Pieces of PromQL: selectors by the variables of a dashboard, and functions of the series."""

from collections.abc import Sequence
from typing import Final

from tools.dashboards.model import Query, Variable

PROCESS: Final = 'job=~"$job",namespace=~"$namespace"'
"""Series of the chosen endpoint pickers."""

# With one pool, metrics of requests have no label for it; a missing label counts as empty.
POOL: Final = f'{PROCESS},inference_pool=~"$pool|"'
"""Series of the chosen pools."""

STATE: Final = f'{PROCESS},name=~"$pool"'
"""Gauges of the chosen pools and their endpoints."""

ENDPOINT: Final = f'{STATE},model_server_endpoint=~"$endpoint"'
MODEL: Final = f'{POOL},model_name=~"$model"'

INSTANCES: Final = (
    Variable("job", "Job", "label_values(llm_d_epp_info, job)"),
    # A Prometheus outside Kubernetes sets no such label.
    Variable(
        "namespace", "Namespace", 'label_values(llm_d_epp_info{job=~"$job"}, namespace)', ".*"
    ),
)
POOLS: Final = (
    *INSTANCES,
    Variable("pool", "Pool", f"label_values(llm_d_epp_ready_endpoints{{{PROCESS}}}, name)"),
)
MODELS: Final = (
    *POOLS,
    Variable(
        "model", "Model", f"label_values(llm_d_epp_request_total{{{POOL}}}, model_name)", ".*"
    ),
)
ENDPOINTS: Final = (
    *POOLS,
    Variable(
        "endpoint",
        "Endpoint",
        f"label_values(llm_d_epp_endpoint_health{{{STATE}}}, model_server_endpoint)",
        ".*",
    ),
)

PERCENTILES: Final = (0.5, 0.95, 0.99)


def select(metric: str, scope: str, *matchers: str) -> str:
    """Return a selector of the series of a metric."""
    return f"{metric}{{{','.join((scope, *matchers))}}}"


def rate(metric: str, scope: str, *matchers: str) -> str:
    """Return the rate of a counter, in 1/s."""
    return f"rate({select(metric, scope, *matchers)}[$__rate_interval])"


def increase(metric: str, scope: str, *matchers: str) -> str:
    """Return the increase of a counter between two points of the graph."""
    return f"increase({select(metric, scope, *matchers)}[$__rate_interval])"


def total(expr: str, *by: str) -> str:
    """Return the sum for each value of the labels."""
    return _aggregated("sum", expr, by)


def highest(expr: str, *by: str) -> str:
    """Return the maximum: for values that all replicas report alike, or where the worst counts."""
    return _aggregated("max", expr, by)


def lowest(expr: str, *by: str) -> str:
    """Return the minimum."""
    return _aggregated("min", expr, by)


def or_zero(expr: str) -> str:
    """Return an expression that is 0 while it has no series."""
    return f"{expr} or vector(0)"


def share(part: str, whole: str) -> str:
    """Return a fraction that is 0 while there is nothing to divide by."""
    return f"({or_zero(part)}) / ({whole} > 0)"


def refused(scope: str) -> str:
    """Return the fraction of the requests that ended in an error of the endpoint picker.

    ``request_total`` counts the requests that were sent to an endpoint, so refused requests are
    added. Their series have one more label, so that they do not match any of the others.
    """
    errors = rate("llm_d_epp_request_error_total", scope)
    return share(total(errors), total(f"{rate('llm_d_epp_request_total', scope)} or {errors}"))


def quantile(fraction: float, metric: str, scope: str, *matchers: str, by: str = "") -> str:
    """Return a quantile of a histogram, for each value of a label."""
    rates = rate(f"{metric}_bucket", scope, *matchers)
    return f"histogram_quantile({fraction}, {total(rates, *(('le', by) if by else ('le',)))})"


def percentiles(metric: str, scope: str, *matchers: str) -> Sequence[Query]:
    """Return three quantiles of a histogram."""
    return tuple(
        Query(quantile(each, metric, scope, *matchers), f"p{each * 100:g}") for each in PERCENTILES
    )


def mean(metric: str, scope: str, *matchers: str) -> str:
    """Return the mean of a histogram."""
    parts = (total(rate(f"{metric}_{each}", scope, *matchers)) for each in ("sum", "count"))
    return " / ".join(parts)


def buckets(metric: str, scope: str) -> Query:
    """Return a histogram for a heatmap."""
    return Query(total(increase(f"{metric}_bucket", scope), "le"), "{{le}}")


def _aggregated(function: str, expr: str, by: Sequence[str]) -> str:
    return f"{function} by ({', '.join(by)}) ({expr})" if by else f"{function}({expr})"
