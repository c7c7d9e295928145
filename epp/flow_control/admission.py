"""Who is admitted while no queues are configured: all but sheddable requests to a full pool."""

from collections.abc import Sequence

from epp.flow_control.plugins import SaturationDetector
from epp.flow_control.saturation import FULL, saturation_of
from epp.scheduling import Endpoint, Guard, GuardRails


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
        if priority >= 0:
            return None
        saturation = saturation_of(self._guard, endpoints)
        return saturation if saturation is not None and saturation >= FULL else None
