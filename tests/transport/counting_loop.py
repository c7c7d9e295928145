"""An event loop that counts created tasks, futures and callbacks."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

# call_later calls call_at.
_WATCHED = (
    "call_at",
    "call_soon",
    "call_soon_threadsafe",
    "create_future",
    "create_task",
    "run_in_executor",
)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts calls of its scheduling methods by name."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: Counter[str] = Counter()
        for name in _WATCHED:
            setattr(self, name, self._counting(name, getattr(self, name)))

    def _counting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self._asked[name] += 1
            return method(*args, **options)

        return counted

    @contextmanager
    def watched(self) -> Iterator[Counter[str]]:
        """Yield a counter, which is filled at the end of the block."""
        self._asked.clear()
        asked: Counter[str] = Counter()
        yield asked
        asked.update(self._asked)


def run_counting(test: Callable[[CountingLoop], Coroutine[Any, Any, None]]) -> None:
    """Run ``test`` on a :class:`CountingLoop`."""
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        runner.run(test(loop))
