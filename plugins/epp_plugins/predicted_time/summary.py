"""The state of a model for operators: gauges and a dump."""

from collections.abc import Mapping
from heapq import nlargest
from typing import Final

from epp.observability.plugins import PluginMetrics
from epp.scheduling import Plugin
from epp_plugins.predicted_time.constants import UNIT_TOKENS
from epp_plugins.predicted_time.endpoint import EndpointModel
from epp_plugins.predicted_time.fleet import FleetModel

_SUMMARISED_ENDPOINTS: Final = 100
"""Maximum endpoints in a summary."""


class ModelGauges:
    """The gauges of a plugin's model; they are removed with this object.

    Args:
        plugin: The plugin.
        metrics: Declares the gauges.
        model: The model that the plugin currently uses.
    """

    def __init__(self, plugin: Plugin, metrics: PluginMetrics, model: FleetModel) -> None:
        self.model = model
        metrics.gauge(
            plugin,
            "predicted_time_slowness",
            "Service time of an endpoint relative to the fleet's median.",
            self.slowness_by_endpoint,
            ("endpoint_name",),
        )
        metrics.gauge(
            plugin,
            "predicted_time_error_ratio",
            "Error of the predicted times to the first token, relative to that of a constant.",
            self.error_ratio,
        )
        metrics.gauge(
            plugin,
            "predicted_time_trusted",
            "1 while predicted times decide, 0 while the default scores do.",
            self.is_trusted,
        )

    def slowness_by_endpoint(self) -> dict[tuple[str, ...], float]:
        """Return the slowness of each endpoint."""
        model = self.model
        return {
            (key,): model.slowness(endpoint)
            for key, endpoint in tuple(model.endpoints.items())  # read in another thread
        }

    def error_ratio(self) -> dict[tuple[str, ...], float]:
        """Return the predictions' error divided by that of a constant; empty until known."""
        ratio = self.model.trust.ratio
        return {} if ratio is None else {(): ratio}

    def is_trusted(self) -> dict[tuple[str, ...], float]:
        """Return 1.0 while predictions are trusted, else 0.0."""
        return {(): float(self.model.trust.is_given)}


def model_summary(model: FleetModel) -> Mapping[str, object]:
    """Return what the model has learned about the fleet and its busiest endpoints."""
    busiest = nlargest(
        _SUMMARISED_ENDPOINTS, model.endpoints.values(), key=lambda each: len(each.requests)
    )
    return {
        **_fleet_summary(model),
        "endpoints": {each.key: _endpoint_summary(model, each) for each in busiest},
    }


def _fleet_summary(model: FleetModel) -> dict[str, object]:
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
        "mean_held_seconds": round(learner.mean_held, 4),
        "cached_share": round(learner.cached_share, 4),
        "mean_service_seconds": round(learner.mean_service, 6),
    }


def _endpoint_summary(model: FleetModel, endpoint: EndpointModel) -> dict[str, object]:
    return {
        "slowness": round(model.slowness(endpoint), 3),
        "in_flight": len(endpoint.requests),
        "in_flight_of_others": endpoint.others.requests,
        "before_first_token": len(endpoint.pending),
        "tokens_before_first_token": round(endpoint.pending_units * UNIT_TOKENS),
        "slots": round(endpoint.slots, 1) or None,
        "decode_seconds": round(endpoint.decode_seconds, 4),
        "first_tokens": endpoint.first_tokens,
        "failures": endpoint.failures,
    }
