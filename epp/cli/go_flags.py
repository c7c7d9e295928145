"""Translates a command line from the syntax of Go's pflag library to that of click.

Manifests written for the Go EPP use ``--secure-serving``, ``--secure-serving=1`` and ``-v=4``;
click supports only flags without a value and options with one. Unknown flags pass through
unchanged: click refuses them and suggests the nearest name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from typer.core import TyperOption

from epp.cli.help_pages import GroupedCommand
from epp.cli.reference_flags import FLAGS, Given, ReferenceFlag, WithdrawnFlagError
from epp.cli.running import fail
from epp.cli.units import TRUE_OR_FALSE, true_or_false

_IGNORED_FIRST_WORD: Final = "serve"
"""Allows ``docker run IMAGE serve ...``, as for former images with the entrypoint ``epp`` alone."""

_DEFAULT_IS_EMPTY: Final = frozenset({"--config-file", "--config-text"})
"""Options whose absence the Go EPP writes as an empty value, and click cannot."""


@dataclass(slots=True)
class CommandLine:
    """Parsed flags and words that are not passed to click."""

    reference: list[Given] = field(default_factory=list)
    """Flags of the Go EPP that are not options here, in the order of the command line."""
    stray: list[str] = field(default_factory=list)
    """Words that belong to no flag; the Go EPP ignores them, too."""


class GoFlagsCommand(GroupedCommand):
    """A command whose flags may use Go's syntax; ``ctx.obj`` is its :class:`CommandLine`."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - Typer's
        super().__init__(**attributes)
        unused = ", ".join(flag.name for flag in FLAGS.values() if not flag.is_withdrawn)
        self.epilog = f"Accepted for manifests of the Go EPP, without effect: {unused}"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer hides it
        options = [each for each in self.params if isinstance(each, TyperOption)]
        reader = _Reader(
            flags={name for each in options if each.is_flag for name in each.opts},
            booleans={n for each in options if each.metavar == TRUE_OR_FALSE for n in each.opts},
            valued={name for each in options if not each.is_flag for name in each.opts},
        )
        try:
            plain = reader.read(args)
        except ValueError as error:
            fail(str(error))
        except WithdrawnFlagError as error:
            fail(str(error), status=1)
        words = reader.line.stray
        if words and words[0] == args[0]:
            known = getattr(ctx.parent and ctx.parent.command, "commands", {})
            if words[0] == _IGNORED_FIRST_WORD:
                del words[0]
            elif words[0] in known:
                fail(
                    f"{words[0]} is a command of its own: run `epp {words[0]}`, or, in the"
                    f" container image, `docker run --entrypoint epp IMAGE {words[0]}`"
                )
        ctx.obj = reader.line
        return super().parse_args(ctx, plain)


class _Reader:
    """Parses one command line.

    Args:
        flags: Options without a value, for click.
        booleans: Options whose value, for click, is ``true`` or ``false``.
        valued: All options with a value, for click.
    """

    def __init__(self, *, flags: set[str], booleans: set[str], valued: set[str]) -> None:
        self.line = CommandLine()
        self._flags = flags
        self._booleans = booleans
        self._valued = valued - booleans
        self._set: dict[str, bool] = {}

    def read(self, args: Sequence[str]) -> list[str]:
        """Return the arguments for click.

        Raises:
            ValueError: A boolean is neither true nor false, or a flag lacks its value.
        """
        left = iter(args)
        plain = [text for each in left for text in self._read(each, left)]
        # The last occurrence counts; click only distinguishes present from absent.
        return plain + [name for name, is_set in self._set.items() if is_set]

    def _read(self, text: str, left: Iterator[str]) -> Iterator[str]:
        if text == "--":
            self.line.stray.extend(left)
            return
        if not text.startswith("-") or text == "-":
            self.line.stray.append(text)
            return
        name, equals, value = _split(text)
        given = value if equals else None
        if name in self._flags:
            self._set[name] = given is None or true_or_false(name, given)
        elif name in self._booleans:
            is_set = given is None or true_or_false(name, given)
            yield f"{name}={str(is_set).lower()}"
        elif name in self._valued:
            words = tuple(_with_value(name, given, left))
            if name not in _DEFAULT_IS_EMPTY or words != (f"{name}=",):
                yield from words
        elif (flag := FLAGS.get(name)) is not None:
            self.line.reference.append(_reference(flag, given, left))
        else:
            yield text


def _split(text: str) -> tuple[str, str, str]:
    """Split a flag into its name, ``=`` or "", and its value; ``-v4`` is split like ``-v=4``."""
    if text.startswith("--") or len(text) == len("-v"):
        return text.partition("=")
    name, value = text[:2], text[2:].removeprefix("=")
    return name, "=", value


def _with_value(name: str, given: str | None, left: Iterator[str]) -> Iterator[str]:
    """Join a value to its option, so that click does not parse ``-1s`` as an option."""
    if given is None:
        given = next(left, None)
    if given is None:
        yield name  # click reports the missing value
    elif name.startswith("--"):
        yield f"{name}={given}"
    else:
        yield from (name, given)


def _reference(flag: ReferenceFlag, given: str | None, left: Iterator[str]) -> Given:
    if given is None:
        given = "true" if flag.is_boolean else next(left, None)
    if given is None:
        raise ValueError(f"{flag.name} needs a value")
    return flag.given(given)


def stray_words(line: CommandLine) -> Mapping[str, object]:
    """Return the facts of a warning about words that were ignored; empty if there are none."""
    if not line.stray:
        return {}
    return {
        "words": line.stray,
        "hint": "a boolean has its value behind `=`: --secure-serving=false",
    }
