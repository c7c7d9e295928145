"""Options of a command that are derived from the fields of settings (:mod:`epp.inputs.options`)."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from epp.cli import option_groups as groups
from epp.cli.options import finite
from epp.cli.running import from_flag
from epp.cli.units import TRUE_OR_FALSE, duration, duration_text, size, size_text, true_or_false
from epp.inputs import Form, Option

C = TypeVar("C", bound=Callable[..., None])

_METAVARS: Final = {Form.SIZE: "SIZE", Form.DURATION: "DURATION", Form.BOOLEAN: TRUE_OR_FALSE}
_WRITTEN: Final[Mapping[Form, Callable[[Any], object]]] = {
    Form.SIZE: size_text,
    Form.DURATION: duration_text,
    Form.BOOLEAN: lambda value: str(value).lower(),
}
"""Functions that write a default as text, by the forms whose values are texts."""


@dataclass(frozen=True, slots=True)
class DerivedOption:
    """The option that is derived from one field."""

    name: str
    """Name of the field and of the command's parameter."""
    type: Any
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """Name on the command line."""
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    def parameter(self) -> inspect.Parameter:
        """Return the parameter of a command from which typer creates the option."""
        option, form = self.option, self.option.form
        default, kind = self.default, self.type
        if form in _WRITTEN:
            default, kind = _WRITTEN[form](default), str
        elif self._is_repeatable:
            default, kind = default or None, list[get_args(kind)[0]] | None  # type: ignore[misc]
        number: dict[str, object] = {}
        if kind is not str and (option.min is not None or option.max is not None):
            number = {"min": option.min, "max": option.max}
        if kind is float and option.max is None:
            number["callback"] = finite
        made = groups.panel(option.panel)(
            self.flag,
            help=option.help,
            metavar=option.metavar or _METAVARS.get(form),
            **number,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, made],
        )

    @property
    def _is_repeatable(self) -> bool:
        return get_origin(self.type) is tuple

    def read(self, value: Any) -> object:  # noqa: ANN401 - the type is the form's
        """Return the value of the setting.

        Raises:
            ValueError: ``value`` is invalid; the message names the flag.
        """
        form = self.option.form
        if form is Form.BOOLEAN:
            return true_or_false(self.flag, value)
        if form is Form.SIZE:
            return from_flag(self.flag, size, value)
        if form is Form.DURATION:
            return from_flag(self.flag, duration, value)
        return tuple(value or ()) if self._is_repeatable else value


def derived_options(settings: type, only: Collection[str] | None = None) -> Iterator[DerivedOption]:
    """Return the options of a dataclass, in the order of its fields.

    Args:
        settings: The dataclass.
        only: Names of the fields to include; None for all.
    """
    hints = get_type_hints(settings, include_extras=True)
    for each in fields(settings):
        kind, *extras = get_args(hints[each.name]) or (None,)
        for option in extras:
            if isinstance(option, Option) and (only is None or each.name in only):
                yield DerivedOption(each.name, kind, each.default, option)


def with_options_of(*settings: type, only: Collection[str] | None = None) -> Callable[[C], C]:
    """Add the options of ``settings`` to a command, which gets them as ``**values``.

    Args:
        settings: Dataclasses.
        only: Names of the fields to include; None for all.
    """

    def decorate(command: C) -> C:
        signature = inspect.signature(command)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        derived = [each.parameter() for one in settings for each in derived_options(one, only)]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined] # typer reads it
            parameters=[*own, *derived]
        )
        return command

    return decorate


def read_options(
    settings: type, values: Mapping[str, object], only: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the values of the fields of ``settings`` that are options.

    Args:
        settings: The dataclass.
        values: Values of the command's parameters, by name.
        only: Names of the fields to include; None for all.

    Raises:
        ValueError: A value is invalid; the message names the flag.
    """
    return {each.name: each.read(values[each.name]) for each in derived_options(settings, only)}
