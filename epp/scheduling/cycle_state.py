"""Per-request data shared by the plugins that handle one request.

One object is made per request and passed, with the request, to data producers, every profile and
the hooks after the choice.
"""

from typing import Any, TypeVar

from epp.scheduling.keys import StateKey

T = TypeVar("T")


class CycleState:
    """Values written by one plugin and read by later ones in the same request."""

    __slots__ = ("_until_sent", "_values")

    def __init__(self) -> None:
        self._values: dict[StateKey[Any], Any] = {}
        self._until_sent: tuple[StateKey[Any], ...] = ()

    def write(self, key: StateKey[T], value: T, *, until_sent: bool = False) -> None:
        """Store ``value``, replacing an earlier one.

        Args:
            key: Its name.
            value: What to store.
            until_sent: Drop the value once the request is sent on. For values as large as a prompt,
                because generating the response takes a long time.

        Raises:
            TypeError: The value is not of the key's class.
        """
        kind = key.kind
        if kind is not None and not isinstance(value, kind):
            raise TypeError(f"the value of {key.name!r} cannot be of {type(value).__name__}")
        self._values[key] = value
        if until_sent:
            self._until_sent += (key,)

    def read(self, key: StateKey[T]) -> T | None:
        """Return the value for ``key``, or None when no plugin wrote it."""
        value: T | None = self._values.get(key)
        return value

    def forget(self, key: StateKey[Any]) -> None:
        """Drop the value for ``key``, if there is one."""
        self._values.pop(key, None)

    def sent(self) -> None:
        """Drop the values that were written with ``until_sent``."""
        for key in self._until_sent:
            self._values.pop(key, None)
        self._until_sent = ()

    def copy(self) -> "CycleState":
        """Return a state with the same values; writes to one do not affect the other."""
        twin = CycleState()
        twin._values = self._values.copy()
        twin._until_sent = self._until_sent
        return twin
