"""The saturation up to which each band may dispatch, according to the usage-limit policy."""

from collections.abc import Sequence
from math import isnan
from time import perf_counter

from epp.flow_control.plugins import UsageLimitPolicy
from epp.flow_control.pressure.saturation import FULL
from epp.flow_control.queues.bands import Bands
from epp.scheduling import PLUGIN_FAULTS, Guard, PluginContractError


class Ceilings:
    """The ceilings of the bands; full saturation if the policy fails or omits a band."""

    def __init__(self, guard: Guard[UsageLimitPolicy], bands: Bands) -> None:
        self._guard = guard
        self._bands = bands
        self._last: tuple[Sequence[int], Sequence[float]] = ((), ())

    @property
    def by_priority(self) -> dict[int, float]:
        """The last result of the policy."""
        return dict(zip(*self._last, strict=True))

    def all(self, saturation: float) -> Sequence[float]:
        """Return the ceilings of all bands, from high to low."""
        priorities = self._bands.priorities
        ceilings = self._computed(saturation, priorities)
        if len(ceilings) < len(priorities):
            ceilings = (*ceilings, *[FULL] * (len(priorities) - len(ceilings)))
        self._last = (priorities, ceilings)
        return ceilings

    def of(self, priority: int, saturation: float) -> float:
        """Return the ceiling of one band."""
        return self.all(saturation)[self._bands.priorities.index(priority)]

    def _computed(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        guard = self._guard
        if guard.is_off:
            return ()
        began = perf_counter()
        try:
            # A copy: the policy may modify the list that it returned.
            ceilings = tuple(guard.plugin.ceilings(saturation, priorities))
            if len(ceilings) > len(priorities) or any(map(isnan, ceilings)):
                raise PluginContractError(
                    f"ceilings() returned {ceilings!r}, which is not one number for each of"
                    f" {len(priorities)} bands"
                )
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            return ()
        guard.passed(perf_counter() - began)
        return ceilings
