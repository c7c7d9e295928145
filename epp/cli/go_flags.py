"""Boolean flags as Go's command lines take them: bare, or with a value behind ``=``.

Manifests written for the reference have ``--secure-serving``, ``--secure-serving=true`` and
``--emit-endpoint-scores=true`` alike; click knows flags without a value and options with one.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from typer.core import TyperCommand, TyperOption

TRUE_OR_FALSE = "true|false"
"""The ``metavar`` of an option with a value that is meant as a flag."""

_TRUE = frozenset({"1", "t", "true"})
_FALSE = frozenset({"0", "f", "false"})


class GoFlagsCommand(TyperCommand):
    """A command whose flags may be written as for Go."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer hides it
        options = [each for each in self.params if isinstance(each, TyperOption)]
        bare = {name for each in options if each.is_flag for name in each.opts}
        valued = {name for each in options if each.metavar == TRUE_OR_FALSE for name in each.opts}
        return super().parse_args(ctx, list(_plain(bare, valued, args)))


def _plain(bare: set[str], valued: set[str], args: Sequence[str]) -> Iterator[str]:
    for text, following in pairwise((*args, "")):
        name, separator, value = text.partition("=")
        if text in valued and following.lower() not in _TRUE | _FALSE:
            yield f"{text}=true"
        elif separator and name in bare and value.lower() in _TRUE:
            yield name
        elif not (separator and name in bare and value.lower() in _FALSE):
            yield text
