"""LoRA adapter slots of one fake server, and the metric in which vLLM reports them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

SERIES_KEPT = 64
"""Maximum number of series of `lora_requests_info`; vLLM never removes one."""


class LoraSlots:
    """The loaded adapters; an adapter that the batch uses keeps its slot."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        """Number of slots (`max_loras`)."""
        self._users: OrderedDict[str, int] = OrderedDict()

    def fits(self, adapter: str | None) -> bool:
        """Whether a sequence with this adapter can join the batch now."""
        if adapter is None or adapter in self._users or len(self._users) < self.slots:
            return True
        return 0 in self._users.values()

    def acquire(self, adapter: str | None) -> bool:
        """Use an adapter that fits; return whether it had to be loaded."""
        if adapter is None:
            return False
        load = adapter not in self._users
        if load and len(self._users) >= self.slots:
            del self._users[next(name for name, users in self._users.items() if not users)]
        self._users[adapter] = self._users.get(adapter, 0) + 1
        self._users.move_to_end(adapter)
        return load

    def release(self, adapter: str | None) -> None:
        """Stop using an adapter; it stays loaded until another one needs its slot."""
        if adapter is not None:
            self._users[adapter] -= 1


class LoraSeries:
    """`vllm:lora_requests_info`: a series for each pair of running and waiting adapters.

    The value of a series is the time at which the pair was last current; readers use the newest.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], float] = OrderedDict()

    def record(self, running: Iterable[str], waiting: Iterable[str], now: float) -> None:
        """Record the adapters in the batch and in the queue; repeated names count once."""
        key = (",".join(dict.fromkeys(running)), ",".join(dict.fromkeys(waiting)))
        self._seen[key] = now
        self._seen.move_to_end(key)
        if len(self._seen) > SERIES_KEPT:
            self._seen.popitem(last=False)

    def repeat(self, now: float) -> None:
        """Record the pair that was recorded last again."""
        key = next(reversed(self._seen))
        self._seen[key] = now

    def items(self) -> list[tuple[str, str, float]]:
        """Return running adapters, waiting adapters and engine time in seconds, oldest first."""
        return [(running, waiting, at) for (running, waiting), at in self._seen.items()]
