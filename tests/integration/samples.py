"""A gateway that runs a sample of deploy/config/, with the fleet that its comment requires."""

import shlex
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from epp.lab.fleet import EngineConfig, FleetConfig
from tools.harness.gateway import Gateway, Labels, running

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "config"
SECONDS_PER_SECOND = 0.01
"""The fleet's time scale: prompts of thousands of tokens are computed in milliseconds."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample and what the command line in its comment says."""

    text: str
    words: tuple[str, ...]
    """The whole command line."""
    config_file: str
    fleet_size: int
    busy: dict[int, int]
    labels: dict[int, dict[str, str]]
    objects: tuple[Path, ...]


def read_sample(name: str) -> Sample:
    """Read a sample and the ``epp up`` line in its comment."""
    text = (FOLDER / f"{name}.yaml").read_text()
    comment = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    _, _, command = " ".join(comment).replace("\\ ", "").partition("epp up ")
    words = tuple(shlex.split(command))
    up = ArgumentParser(exit_on_error=False)
    up.add_argument("--config-file")
    up.add_argument("--fleet-size", type=int)
    for option in ("--label", "--fleet-arg", "--objects"):
        up.add_argument(option, action="append", default=[])
    given = up.parse_args(words)
    fleet = ArgumentParser(exit_on_error=False)
    fleet.add_argument("--first-port", type=int)
    fleet.add_argument("--busy", action="append", default=[])
    asked = fleet.parse_args(given.fleet_arg)
    labels: dict[int, dict[str, str]] = {}
    for label in given.label:
        servers, _, rest = label.partition(":")
        key, _, value = rest.partition("=")
        first, _, last = servers.partition("-")
        for index in range(int(first), int(last or first) + 1):
            labels.setdefault(index, {})[key] = value
    return Sample(
        text=text,
        words=words,
        config_file=given.config_file,
        fleet_size=given.fleet_size,
        busy={int(index): int(count) for index, _, count in (b.partition("=") for b in asked.busy)},
        labels=labels,
        objects=tuple(ROOT / each for each in given.objects),
    )


@asynccontextmanager
async def running_sample(
    sample: Sample,
    *,
    ports: tuple[int, ...] = (),
    change: Callable[[str], str] = str,
    labels: Labels | None = None,
) -> AsyncIterator[Gateway]:
    """Run a sample.

    Args:
        sample: The sample.
        ports: Ports of the servers; any by default.
        change: Turns its text into one that a test can run: free ports instead of fixed ones.
        labels: Other labels than those in its comment.
    """
    fleet = FleetConfig(
        endpoints=sample.fleet_size,
        ports=ports,
        busy=sample.busy,
        engine=EngineConfig(num_blocks=4000, max_model_len=32_000, time_scale=SECONDS_PER_SECOND),
    )
    async with running(
        fleet=fleet,
        config=change(sample.text),
        labels=sample.labels if labels is None else labels,
        objects=sample.objects,
    ) as gateway:
        yield gateway
