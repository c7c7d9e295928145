"""Varied parameters of a configuration, and configurations with other values of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from epp.config import LoadedConfig
from epp.inputs.yaml_edits import edited
from epp.inputs.yaml_places import EditError
from epp.lab.tuning.domains import Domain, Value, parse_domain
from epp.lab.tuning.errors import TuningError
from epp.lab.tuning.places import FieldPlace, find_place


@dataclass(frozen=True, slots=True)
class Parameter:
    """A field of the configuration that is varied."""

    place: FieldPlace
    domain: Domain

    @property
    def name(self) -> str:
        """A short name for tables."""
        return self.place.name


def parse_variation(text: str, config: LoadedConfig) -> Parameter:
    """Return the parameter of an option ``PATH=VALUES``.

    Raises:
        TuningError: The path is not in the configuration, or the values are invalid.
    """
    path, values = _split(text)
    place = find_place(config.document.root.value, path)
    is_whole = type(place.value) is int and place.members[-1] != "weight"
    try:
        return Parameter(place, parse_domain(values, is_whole=is_whole))
    except TuningError as error:
        raise TuningError(f"{path}: {error}") from None


def check_distinct(parameters: Sequence[Parameter]) -> None:
    """Check that no field is varied twice.

    Raises:
        TuningError: One is.
    """
    seen: set[str] = set()
    for each in parameters:
        if each.place.path in seen:
            raise TuningError(f"{each.place.path} is varied twice; give it all values at once")
        seen.add(each.place.path)


def with_values(text: str, parameters: Sequence[Parameter], values: Sequence[Value]) -> str:
    """Return the text of a configuration with other values; the rest is unchanged.

    Raises:
        TuningError: A value cannot be written without changing something else.
    """
    for parameter, value in zip(parameters, values, strict=True):
        if value == parameter.place.value:
            continue
        try:
            text = edited(text, [str(each) for each in parameter.place.members], json.dumps(value))
        except EditError as error:
            path = parameter.place.path
            raise TuningError(
                f"{path}: its value cannot be changed alone: {error}; write it out in the file"
            ) from None
    return text


def _split(text: str) -> tuple[str, str]:
    """Split at the first ``=`` outside of brackets."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "=" and not depth:
            return text[:at].strip(), text[at + 1 :]
    raise TuningError(
        f"{text!r} is no PATH=VALUES; write schedulingProfiles[0].plugins[1].weight=0..5"
    )
