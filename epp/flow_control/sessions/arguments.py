"""The arguments of a session plugin: a mapping with typed getters."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class ArgumentError(ValueError):
    """An argument is invalid; the message names it.

    Attributes:
        argument: The name; "" if the plugin did not give it.
    """

    def __init__(self, text: str, argument: str = "") -> None:
        super().__init__(text)
        self.argument = argument


class UnknownArgumentError(ArgumentError):
    """The plugin has no argument of this name."""


class Arguments(Mapping[str, object]):
    """The configured arguments of one plugin.

    Getters return the default for a missing argument, convert strings (``"1.5"`` to 1.5), and raise
    :class:`ArgumentError` for anything else. After the plugin has read its arguments,
    :meth:`check_all_known` refuses those that were not read, such as misspelt ones.
    """

    __slots__ = ("_read", "_values", "plugin")

    _read: dict[str, tuple[str, object]]

    def __init__(self, values: Mapping[str, object] | None = None, *, plugin: str = "") -> None:
        self._values = dict(values or {})
        self._read = {}
        self.plugin = plugin
        """The name of the plugin, for error messages."""

    def get_str(self, name: str, default: str = "") -> str:
        """Return a text."""
        return self._get(name, default, "a text", _text)

    def get_int(self, name: str, default: int = 0) -> int:
        """Return a whole number."""
        return self._get(name, default, "a whole number", _whole)

    def get_float(self, name: str, default: float = 0.0) -> float:
        """Return a finite number."""
        return self._get(name, default, "a finite number", _number)

    def get_bool(self, name: str, *, default: bool = False) -> bool:
        """Return true or false."""
        return self._get(name, default, "true or false", _truth)

    def get_seconds(self, name: str, default: float = 0.0) -> float:
        """Return a duration such as ``1.5``, ``"300ms"``, ``"2s"``, ``"5m"`` in seconds."""
        return self._get(name, default, "a duration of 0 or more, such as 300ms or 2s", _seconds)

    def asked(self) -> Mapping[str, tuple[str, object]]:
        """Return the type (in words) and the default of each argument that was read.

        The type is "" for an argument that was read without a getter.
        """
        return self._read

    def check_all_known(self) -> None:
        """Check that each argument was read.

        Raises:
            UnknownArgumentError: An argument was not read, so the plugin does not know it.
        """
        if unknown := [name for name in self._values if name not in self._read]:
            known = ", ".join(self._read) or "none"
            raise UnknownArgumentError(
                f"{self._owner}unknown argument {unknown[0]!r}; it takes: {known}", unknown[0]
            )

    def _get(self, name: str, default: T, kind: str, read: Callable[[object], T]) -> T:
        self._read[name] = (kind, default)
        value = self._values.get(name)
        if value is None:
            return default
        try:
            return read(value)
        except (TypeError, ValueError, OverflowError):
            raise ArgumentError(
                f"{self._owner}argument {name!r} is {value!r}; it must be {kind}", name
            ) from None

    @property
    def _owner(self) -> str:
        return f"session plugin {self.plugin!r}: " if self.plugin else ""

    def __getitem__(self, name: str) -> object:
        self._read.setdefault(name, ("", None))
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return str(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if not abs(number) < float("inf"):
        raise ValueError
    return number


def _truth(value: object) -> bool:
    said = str(value).lower() if isinstance(value, bool | str) else ""
    if said not in {"true", "false"}:
        raise ValueError
    return said == "true"


_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: object) -> float:
    unit = next((unit for unit in _UNITS if isinstance(value, str) and value.endswith(unit)), "")
    seconds = _number(str(value).removesuffix(unit) if unit else value) * _UNITS.get(unit, 1.0)
    if not 0 <= seconds < float("inf"):
        raise ValueError
    return seconds
