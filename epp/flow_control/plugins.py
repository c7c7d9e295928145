"""The extension points of flow control."""

from abc import abstractmethod
from collections.abc import Sequence

from epp.scheduling import Endpoint, Plugin

__all__ = ["SaturationDetector"]


class SaturationDetector(Plugin):
    """Says how full a pool is.

    While it is full, requests of negative priority are turned away. The one in force stands under
    ``flowControl.saturationDetector``.
    """

    @abstractmethod
    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        """Return how much of what ``endpoints`` can take is in use.

        At least 0; from 1.0 on the pool is full, and so is one without endpoints.
        """
