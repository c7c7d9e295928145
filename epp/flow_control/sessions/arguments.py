"""The arguments of a session plugin: a Struct of parameters, or a mapping with getters.

Either way strings are converted (``"1.5"`` to 1.5), as arguments in KAI-Scheduler are strings.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast, get_args, get_origin

import msgspec

T = TypeVar("T")
ParamsT = TypeVar("ParamsT", bound=msgspec.Struct)

Seconds = Annotated[
    float, msgspec.Meta(ge=0, extra_json_schema={"examples": ["300ms", "2s", "5m", 1.5]})
]
"""A duration in seconds: a number, or a text such as ``300ms`` or ``2s``."""


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

    A plugin with a constructor ``__init__(self, params: Params)`` gets them as its ``Params``; one
    without that annotation gets this mapping. Getters return the default for a missing argument and
    raise :class:`ArgumentError` for an invalid one. After the plugin has read its arguments,
    :meth:`check_all_known` refuses those that were not read, such as misspelt ones.
    """

    __slots__ = ("_known", "_values", "plugin")

    def __init__(self, values: Mapping[str, object] | None = None, *, plugin: str = "") -> None:
        self._values = {key: value for key, value in (values or {}).items() if value is not None}
        self._known: dict[str, None] = {}
        self.plugin = plugin
        """The name of the plugin, for error messages."""

    def as_params(self, params: type[ParamsT]) -> ParamsT:
        """Return the arguments as ``params``, a Struct with a field for each.

        Raises:
            ArgumentError: An argument is invalid or missing.
        """
        values: dict[str, object] = {}
        for field in msgspec.structs.fields(params):
            name = field.encode_name
            self._known[name] = None
            if name in self._values:
                values[field.name] = self._value(name, field.type)
            elif field.required:
                raise ArgumentError(f"{self._owner}argument {name!r} is missing", name)
        return params(**values)

    def get_str(self, name: str, default: str = "") -> str:
        """Return a text."""
        return self._get(name, default, str)

    def get_int(self, name: str, default: int = 0) -> int:
        """Return a whole number."""
        return self._get(name, default, int)

    def get_float(self, name: str, default: float = 0.0) -> float:
        """Return a finite number."""
        return self._get(name, default, float)

    def get_bool(self, name: str, *, default: bool = False) -> bool:
        """Return true or false."""
        return self._get(name, default, bool)

    def get_seconds(self, name: str, default: float = 0.0) -> float:
        """Return a duration such as ``1.5``, ``"300ms"``, ``"2s"``, ``"5m"`` in seconds."""
        return self._get(name, default, Seconds)

    def check_all_known(self) -> None:
        """Check that each argument was read.

        Raises:
            UnknownArgumentError: An argument was not read, so the plugin does not know it.
        """
        if unknown := [name for name in self._values if name not in self._known]:
            known = ", ".join(self._known) or "none"
            raise UnknownArgumentError(
                f"{self._owner}unknown argument {unknown[0]!r}; it takes: {known}", unknown[0]
            )

    def _get(self, name: str, default: T, wanted: Any) -> T:  # noqa: ANN401 - a type expression
        self._known[name] = None
        return cast("T", self._value(name, wanted)) if name in self._values else default

    def _value(self, name: str, wanted: Any) -> object:  # noqa: ANN401 - a type expression
        given = self._values[name]
        try:
            return _convert(given, wanted, repr(name))
        except _InvalidError as error:
            raise ArgumentError(f"{self._owner}argument {error}", name) from None

    @property
    def _owner(self) -> str:
        return f"session plugin {self.plugin!r}: " if self.plugin else ""

    def __getitem__(self, name: str) -> object:
        self._known[name] = None
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def params_of(builder: Callable[..., object]) -> type[msgspec.Struct] | None:
    """Return the Struct that annotates the first parameter; None if it is not a Struct."""
    annotation = next((each.annotation for each in _parameters(builder) or ()), None)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return None


def takes_no_arguments(builder: Callable[..., object]) -> bool:
    """Whether a builder takes no parameters and can be called without arguments."""
    parameters = _parameters(builder)
    if parameters is None or params_of(builder) is not None:
        return False
    return all(each.default is not inspect.Parameter.empty for each in parameters)


def _parameters(builder: Callable[..., object]) -> tuple[inspect.Parameter, ...] | None:
    """Return the parameters of a builder; None if they cannot be determined."""
    try:
        return tuple(inspect.signature(builder, eval_str=True).parameters.values())
    except (ValueError, TypeError, NameError, SyntaxError, AttributeError):
        return None


class _InvalidError(ValueError):
    """A value has the wrong form; the message names it."""


def _convert(given: object, wanted: Any, name: str) -> object:  # noqa: ANN401 - a type expression
    """Return ``given`` as ``wanted``; ``name`` is its name in error messages."""
    if get_origin(wanted) in {dict, Mapping}:
        if not isinstance(given, Mapping):
            raise _InvalidError(f"{name} is {given!r}; it must be a mapping")
        _, member = get_args(wanted)
        return {key: _convert(each, member, f"{name}: {key!r}") for key, each in given.items()}
    form = _form_of(wanted)
    try:
        value = given if form is None else form.read(given)
        return msgspec.convert(value, wanted, strict=form is not None)
    except msgspec.ValidationError as error:
        bound = str(error).partition("` ")[2]
        why = f"it must be {form.name} {bound}" if form and bound else f"{error}".lower()
    except (TypeError, ValueError, OverflowError):
        why = f"it must be {form.name}" if form else "it cannot be converted"
    raise _InvalidError(f"{name} is {given!r}; {why}")


class _Form(NamedTuple):
    """How values of one type are written."""

    name: str
    """In words, for error messages."""
    read: Callable[[object], object]
    """Converts a value; raises TypeError or ValueError for the wrong form."""


def _form_of(wanted: Any) -> _Form | None:  # noqa: ANN401 - a type expression
    if wanted == Seconds:
        return _DURATION
    return _FORMS.get(get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted)


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
    text = str(value).lower() if isinstance(value, bool | str) else ""
    if text not in {"true", "false"}:
        raise ValueError
    return text == "true"


_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: object) -> float:
    unit = next((unit for unit in _UNITS if isinstance(value, str) and value.endswith(unit)), "")
    seconds = _number(str(value).removesuffix(unit) if unit else value) * _UNITS.get(unit, 1.0)
    if not 0 <= seconds < float("inf"):
        raise ValueError
    return seconds


_DURATION: Final = _Form("a duration of 0 or more, such as 300ms or 2s", _seconds)
_FORMS: Final[Mapping[object, _Form]] = {
    str: _Form("a text", _text),
    int: _Form("a whole number", _whole),
    float: _Form("a finite number", _number),
    bool: _Form("true or false", _truth),
}
