"""Leadership: the worker that the supervisor appoints scrapes for all and owns the queues."""

from collections.abc import Callable


class Leadership:
    """Whether this worker leads; it then leads until its end."""

    def __init__(self) -> None:
        self.is_ours = False
        self._callbacks: list[Callable[[], None]] = []

    def when_taken(self, taken: Callable[[], None]) -> None:
        """Call ``taken`` when this worker becomes the leader."""
        self._callbacks.append(taken)

    def take(self) -> None:
        """Become the leader; does nothing if this worker already leads."""
        if self.is_ours:
            return
        self.is_ours = True
        for taken in self._callbacks:
            taken()
