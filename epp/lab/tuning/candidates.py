"""The configurations that a search compares."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from random import Random

from epp.building import make_builder
from epp.config import ConfigError, LoadedConfig
from epp.config.instances import close_all
from epp.lab.simulation import Contender
from epp.lab.tuning.domains import Value
from epp.lab.tuning.errors import TuningError
from epp.lab.tuning.parameters import Parameter, with_values

_LARGEST_GRID = 100_000
"""Combinations that are listed to draw from."""


@dataclass(frozen=True, slots=True)
class ConfigCandidate:
    """A configuration with its values of the varied parameters."""

    contender: Contender
    """The configuration."""
    values: Sequence[Value | None]
    """In the order of the parameters; None if the file leaves the parameter out."""


def count_combinations(parameters: Sequence[Parameter]) -> int | None:
    """Return the number of combinations of all values; None for a continuum."""
    sizes = [each.domain.size for each in parameters]
    return None if None in sizes else prod(size for size in sizes if size is not None)


def make_candidates(
    config: LoadedConfig, name: str, parameters: Sequence[Parameter], count: int, seed: int
) -> list[ConfigCandidate]:
    """Return the configuration itself and up to `count` - 1 others.

    If there are more combinations than that, they are drawn so that each parameter alone takes all
    parts of its domain (Latin hypercube).

    Args:
        config: The configuration to begin with.
        name: Its name.
        parameters: The parameters to vary.
        count: Number of candidates, at least 2.
        seed: Seed of the draws.

    Raises:
        ConfigError: The configuration is invalid.
        TuningError: A value cannot be used; the message says why.
    """
    base = ConfigCandidate(
        Contender.of_text(name, config.text, config.directory),
        [each.place.value for each in parameters],  # type: ignore[misc] # scalars, see find_place
    )
    found = [base]
    seen = {tuple(map(repr, base.values))}
    for values in _draws(parameters, count, seed):
        key = tuple(map(repr, values))
        if key in seen or len(found) == count:
            continue
        seen.add(key)
        text = with_values(config.text, parameters, values)
        found.append(
            ConfigCandidate(Contender.of_text(f"#{len(found)}", text, config.directory), values)
        )
    _check(found, parameters)
    return found


def _draws(parameters: Sequence[Parameter], count: int, seed: int) -> list[tuple[Value, ...]]:
    rng = Random(f"{seed}/candidates")  # noqa: S311 - reproducible, not secret
    combinations = count_combinations(parameters)
    if combinations is not None and combinations <= _LARGEST_GRID:
        sizes = [each.domain.size or 1 for each in parameters]
        axes = [
            [each.domain.at((at + 0.5) / size) for at in range(size)]
            for each, size in zip(parameters, sizes, strict=True)
        ]
        grid = list(product(*axes))
        return grid if combinations < count else rng.sample(grid, min(len(grid), count))
    columns = []
    others = count - 1
    for each in parameters:
        positions = [(at + rng.random()) / others for at in range(others)]
        rng.shuffle(positions)
        columns.append([each.domain.at(position) for position in positions])
    return list(zip(*columns, strict=True))


def _check(candidates: Sequence[ConfigCandidate], parameters: Sequence[Parameter]) -> None:
    """Build each configuration once, because a plugin may refuse a value."""
    builder = make_builder()
    paths = {parameter.place.path for parameter in parameters}
    for each in candidates:
        try:
            graph = builder.build(each.contender.load())
        except ConfigError as error:
            if each is candidates[0]:
                raise
            chosen = ", ".join(
                f"{parameter.place.path} = {value}"
                for parameter, value in zip(parameters, each.values, strict=True)
            )
            raise TuningError(f"the configuration with {chosen} is refused: {error}") from None
        close_all(graph.plugins.values())
        for warning in graph.warnings:
            if warning.path in paths:  # "has no effect" among them
                raise TuningError(f"{warning.path}: {warning.message}")
