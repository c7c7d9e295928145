"""docs/tour.md: every command on the page runs and prints what the page says."""

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from tools.harness.ports import free_ports

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text()
PORTS = {"port": 8080, "grpc-port": 9002, "grpc-health-port": 9003, "metrics-port": 9090}
"""Options of ``epp up`` and their defaults."""
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "COLUMNS": "120",
}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),  # needs 6 s of CPU time
    pytest.mark.skipif(shutil.which("curl") is None, reason="the page's commands need curl"),
]


@dataclass(frozen=True, slots=True)
class Step:
    """Commands of the page, and what they print."""

    commands: str
    printed: str
    gateway: str
    """The ``epp up`` line that runs meanwhile; "" if none does."""


def steps_of(section: str) -> list[Step]:
    steps: list[Step] = []
    gateway = commands = ""
    for kind, text in re.findall(r"^```(sh|text)\n(.*?)^```$", section, re.M | re.S):
        if kind == "text":
            steps.append(Step(commands, text, gateway))
            commands = ""
        elif text.startswith("epp up "):
            gateway = text
        else:
            commands = text
    assert not commands, f"the page does not say what this prints: {commands}"
    return steps


SECTIONS = {
    title: steps_of(section)
    for title, section in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TOUR, re.M | re.S)
}


def on_ports(commands: str, ports: dict[str, int]) -> str:
    for name, port in ports.items():
        commands = commands.replace(f"127.0.0.1:{PORTS[name]}/", f"127.0.0.1:{port}/")
    return commands


@asynccontextmanager
async def running(command: str) -> AsyncIterator[dict[str, int]]:
    """Run an ``epp up`` line on free ports, until it says that the gateway is ready."""
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    options = " ".join(f"--{name}={port}" for name, port in ports.items())
    up = await asyncio.create_subprocess_shell(
        f"exec {command.strip()} {options}",
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert up.stdout is not None
    try:
        line = ""
        while "curl -i http://" not in line:
            line = (await up.stdout.readline()).decode()
            assert line, "it ended before the gateway was ready"
        yield ports
    finally:
        up.send_signal(signal.SIGINT)
        await up.communicate()
    assert up.returncode == 0


async def printed_by(commands: str) -> str:
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"set -e -o pipefail\n{commands}"),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await shell.communicate()
    assert shell.returncode == 0, out.decode()
    return "".join(f"{line.rstrip()}\n" for line in out.decode().splitlines())


def test_the_page_has_an_example_of_each_kind() -> None:
    assert [*SECTIONS] == [
        "One filter in two profiles",
        "A decision tree with `drop`",
        "A shadow profile",
        "The scheduler as a library",
        "Sessions",
    ]
    assert all(SECTIONS.values())


@pytest.mark.parametrize("section", SECTIONS)
async def test_the_steps_of_a_section_print_what_the_page_says(section: str) -> None:
    for gateway, steps in groupby(SECTIONS[section], lambda step: step.gateway):
        async with AsyncExitStack() as stack:
            ports = await stack.enter_async_context(running(gateway)) if gateway else {}
            for step in steps:
                assert await printed_by(on_ports(step.commands, ports)) == step.printed


def test_the_links_of_the_page_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)", TOUR):
        assert (ROOT / "docs" / link).exists(), link
