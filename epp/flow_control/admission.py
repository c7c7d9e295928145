"""Who is admitted while no queues are configured: all but sheddable requests to a full pool."""

from collections.abc import Sequence
from math import isnan
from time import perf_counter

from epp.flow_control.plugins import SaturationDetector
from epp.scheduling import PLUGIN_FAULTS, Endpoint, Guard, GuardRails, PluginContractError

FULL = 1.0
"""The saturation from which on a pool is full."""


class SheddingAdmission:
    """Turns requests of negative priority away while the pool is full.

    A detector that fails says nothing about the pool, so everybody is admitted.

    Args:
        detector: Says how full the pool is.
        guards: Makes its guard.
    """

    def __init__(self, detector: SaturationDetector, guards: GuardRails) -> None:
        self._guard: Guard[SaturationDetector] = guards.guard("SaturationDetector", detector)

    @property
    def detector_name(self) -> str:
        """Name of the plugin that is asked."""
        return self._guard.plugin.name

    def excess(self, priority: int, endpoints: Sequence[Endpoint]) -> float | None:
        """Return the saturation that turns a request away; None if it is admitted.

        Args:
            priority: The request's; the detector is asked for sheddable ones only.
            endpoints: All of the pool.
        """
        guard = self._guard
        if priority >= 0 or guard.is_off:
            return None
        began = perf_counter()
        try:
            saturation = guard.plugin.saturation(endpoints)
            if not isinstance(saturation, int | float) or isnan(saturation):
                raise PluginContractError(
                    f"saturation() returned {saturation!r}, which is no number"
                )
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            return None
        guard.passed(perf_counter() - began)
        return saturation if saturation >= FULL else None
