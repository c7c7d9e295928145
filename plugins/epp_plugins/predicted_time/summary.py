"""The state of a model for operators."""

from epp_plugins.predicted_time.constants import UNIT_TOKENS
from epp_plugins.predicted_time.endpoint import EndpointModel
from epp_plugins.predicted_time.fleet import FleetModel


def fleet_summary(model: FleetModel) -> dict[str, object]:
    """Return what is learned of the whole fleet."""
    learner = model.learner
    mode, trust = learner.mode, learner.trust
    service = learner.serial if mode.is_serial else learner.slots
    return {
        "mode": "serial" if mode.is_serial else "slots",
        "is_trusted": trust.is_given,
        "error": round(trust.error, 4),
        "constant_error": round(trust.constant_error, 4),
        "constant_seconds": round(trust.constant_seconds, 4),
        "first_tokens": trust.samples,
        "serial_error": round(mode.serial_error, 4),
        "slots_error": round(mode.slots_error, 4),
        "base_seconds": round(service.base, 6),
        "seconds_per_1000_tokens": round(service.unit, 6),
        "further_seconds_with_ten_beside": round(service.crowd, 6),
        "mean_service_seconds": round(learner.mean_service, 6),
    }


def endpoint_summary(model: FleetModel, endpoint: EndpointModel) -> dict[str, object]:
    """Return what is learned of one endpoint, and what it does."""
    return {
        "slowness": round(model.slowness(endpoint), 3),
        "in_flight": len(endpoint.requests),
        "before_first_token": len(endpoint.pending),
        "tokens_before_first_token": round(endpoint.pending_units * UNIT_TOKENS),
        "slots": round(endpoint.slots, 1) or None,
        "decode_seconds": round(endpoint.decode_seconds, 4),
        "first_tokens": endpoint.first_tokens,
        "failures": endpoint.failures,
    }
