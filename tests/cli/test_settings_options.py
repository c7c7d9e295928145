"""Options that are derived from the fields of settings."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from epp.cli.settings_options import read_options, with_options_of
from epp.cli.units import duration, duration_text, size, size_text
from epp.inputs import Form, Option, Panel


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One field of each form, and one that is no option."""

    plain: Annotated[int, Option("A number.", panel=Panel.LIMITS, min=1, metavar="N")] = 7
    ratio: Annotated[float, Option("A ratio.", panel=Panel.LIMITS, min=0.0)] = 0.5
    length: Annotated[int, Option("A length.", panel=Panel.LIMITS, form=Form.SIZE)] = 64 << 20
    pause: Annotated[
        float, Option("A pause.", panel=Panel.LOGS, form=Form.DURATION, flag="--rest")
    ] = 0.05
    is_on: Annotated[bool, Option("A boolean.", panel=Panel.LOGS, form=Form.BOOLEAN)] = True
    loud: Annotated[bool, Option("A switch.", panel=Panel.LOGS, form=Form.SWITCH)] = False
    inner: int = 3


def run(*arguments: str) -> tuple[dict[str, Any], str]:
    """Return the fields that a command line sets, and the output."""
    app, found = typer.Typer(), dict[str, Any]()

    @app.command()
    @with_options_of(Settings)
    def command(name: str = "x", **values: object) -> None:
        found.update(read_options(Settings, values), name=name)

    output = CliRunner(env={"COLUMNS": "120"}).invoke(app, arguments)
    if isinstance(output.exception, ValueError):
        raise output.exception
    return found, output.output


def test_defaults_are_those_of_the_fields() -> None:
    found, _ = run("--name", "y")
    assert found.pop("name") == "y"
    assert Settings(**found) == Settings()
    assert "inner" not in found


def test_values_are_read_in_their_form() -> None:
    found, _ = run(
        *("--plain", "9", "--ratio", "1.5", "--length", "1KiB", "--rest", "2s"),
        *("--is-on", "f", "--loud"),
    )
    del found["name"]
    expected = Settings(plain=9, ratio=1.5, length=1024, pause=2.0, is_on=False, loud=True)
    assert Settings(**found) == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--length", "0"), "^--length: '0' must be positive"),
        (("--length", "much"), "^--length: 'much' is not a size"),
        (("--rest", "soon"), "^--rest: 'soon' is not a duration"),
        (("--is-on", "perhaps"), "^--is-on must be true or false"),
    ],
)
def test_error_of_a_value_names_the_flag(arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        run(*arguments)


@pytest.mark.parametrize("arguments", [("--plain", "0"), ("--ratio", "nan"), ("--ratio", "inf")])
def test_numbers_outside_their_range_are_usage_errors(arguments: tuple[str, ...]) -> None:
    found, output = run(*arguments)
    assert not found
    assert arguments[0] in output


def test_help_has_panels_value_names_and_defaults() -> None:
    _, output = run("--help")
    for text in ("Limits on requests", "Logs", "SIZE", "[default: 64MiB]", "[default: 50ms]"):
        assert text in output


@pytest.mark.parametrize("text", ["64MiB", "8MB", "1KiB", "3kB", "1500MiB", "1001"])
def test_sizes_are_written_as_they_are_read(text: str) -> None:
    assert size_text(size(text)) == text


@pytest.mark.parametrize("text", ["50ms", "200ms", "2s", "90s", "1.5s", "0s"])
def test_durations_are_written_as_they_are_read(text: str) -> None:
    assert duration_text(duration(text)) == text
