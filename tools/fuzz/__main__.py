"""Coverage-guided fuzzing of a target: ``python -m tools.fuzz TARGET [libFuzzer options]``.

``make fuzz TARGET=parsers ARGS=-max_total_time=60`` calls it; with the file of a finding in ARGS it
runs that input again. Its findings and corpus are under ``fuzz-results/TARGET``.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import atheris
import structlog
from structlog.typing import EventDict

from tools.fuzz import seeds

RESULTS = Path("fuzz-results")


class Target(NamedTuple):
    """Instrumented modules, and initial inputs."""

    code: tuple[str, ...]
    """Modules and packages whose branch coverage guides the fuzzer."""
    most_bytes: int
    """Maximum length of an input."""
    seeds: Callable[[], Iterable[bytes]] = tuple


TARGETS = {
    "connection": Target(("epp.transport", "hpack"), 2048),
    "parsers": Target(
        ("epp.parsing", "epp.ext_proc", "epp_plugins.parsers", "epp_plugins.data_producers"),
        4096,
        seeds.of_parsers,
    ),
    "plugins": Target(("epp.request_control", "epp.scheduling", "epp.flow_control"), 64),
    "stream": Target(("epp.ext_proc", "epp.request_control"), 2048, seeds.of_stream),
}


class _Module(Protocol):
    """Interface of a target's module."""

    WORDS: Iterable[bytes]

    def one_input(self, data: bytes) -> None:
        """Run one input; any exception is a finding."""


def main(name: str, *options: str) -> None:
    """Fuzz the target until libFuzzer ends the process."""
    target = TARGETS[name]
    with atheris.instrument_imports(include=list(target.code)):
        module: _Module = importlib.import_module(f"tools.fuzz.{name}")
    # Drop lines instead of setting a level: the judge of streams captures all levels.
    structlog.configure(processors=[_drop])
    folder = RESULTS / name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed[: target.most_bytes])
    words = folder / "words"
    words.write_text(
        "# libFuzzer refuses an empty file\n"
        + "".join(f'"{_quoted(word)}"\n' for word in module.WORDS if word)
    )
    finding = any(not option.startswith("-") for option in options)
    # An input that takes seconds is a finding: work must be in proportion to the input.
    defaults = (f"-max_len={target.most_bytes}", "-len_control=0", "-timeout=5")
    where = (f"-artifact_prefix={folder}/", f"-dict={words}", *(() if finding else (str(corpus),)))
    atheris.Setup([sys.argv[0], *defaults, *where, *options], module.one_input)
    atheris.Fuzz()


def _drop(_logger: object, _method: str, _line: EventDict) -> EventDict:
    raise structlog.DropEvent


def _quoted(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    if sys.argv[1:2] == ["growth"]:
        importlib.import_module("tools.fuzz.growth").main()
        sys.exit()
    if sys.argv[1:2] == ["cost"]:
        importlib.import_module("tools.fuzz.cost").main(sys.argv[2:])
        sys.exit()
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        names = ", ".join((*TARGETS, "growth"))
        sys.exit(f"make fuzz: TARGET is one of {names} or cost, not {sys.argv[1:2]}")
    main(*sys.argv[1:])
