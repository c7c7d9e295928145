"""Which worker scrapes for all and owns the queues of flow control: the supervisor appoints it."""

from collections.abc import Callable


class Leadership:
    """Whether this worker is the one; once it is, it remains so until its end."""

    def __init__(self) -> None:
        self.is_ours = False
        self._told: list[Callable[[], None]] = []

    def tell(self, taken: Callable[[], None]) -> None:
        """Call ``taken`` when this worker becomes the one."""
        self._told.append(taken)

    def take(self) -> None:
        """Become the one; does nothing if this worker is it already."""
        if self.is_ours:
            return
        self.is_ours = True
        for taken in self._told:
            taken()
