"""Headers of a request that the endpoint picker reads."""

from epp.lab.traffic.mix import Labels

REQUEST_ID = "x-request-id"
FAIRNESS_ID = "x-llm-d-inference-fairness-id"
OBJECTIVE = "x-llm-d-inference-objective"
TTFT_SLO = "x-llm-d-slo-ttft-ms"
TPOT_SLO = "x-llm-d-slo-tpot-ms"


def label_headers(labels: Labels) -> tuple[tuple[str, str], ...]:
    """Return the headers for tenant, objective and SLO, those that are set."""
    headers = []
    if labels.tenant:
        headers.append((FAIRNESS_ID, labels.tenant))
    if labels.objective:
        headers.append((OBJECTIVE, labels.objective))
    for name, seconds in ((TTFT_SLO, labels.slo.ttft_seconds), (TPOT_SLO, labels.slo.tpot_seconds)):
        if seconds is not None:
            headers.append((name, f"{seconds * 1000:g}"))
    return tuple(headers)
