"""docs/writing-a-plugin.md, followed literally: each code block is run, in order, in a folder.

A block under a line with only a file's name is written to that file. Of the others, `sh` is run,
`python` too, `toml` is the example package's own, and a `text` block tells lines that the command
above it, or the gateway it left running, has printed.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from epp.building import make_builder
from epp.cli import cli
from epp.config import load_text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "writing-a-plugin.md"
EXAMPLES = ROOT / "plugins" / "examples"
BLOCK = re.compile(
    r"(?:^`(?P<file>\S+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
HERE = ("epp plugins new", "epp plugins show", "epp config")
"""What is run in this process, which is a second faster each time."""
ANY_PORTS = "--port 0 --grpc-port 0 --grpc-health-port 0 --metrics-port 0"
DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Block:
    line: int
    file: str | None
    language: str
    text: str


def blocks() -> list[Block]:
    page = PAGE.read_text()
    return [
        Block(
            page[: found.start()].count("\n") + 1, found["file"], found["language"], found["text"]
        )
        for found in BLOCK.finditer(page)
    ]


def words(script: str) -> list[str]:
    """Split a command that may go over several lines."""
    return shlex.split(script.replace("\\\n", ""))


@dataclass
class Reader:
    """Somebody who does what the page says."""

    folder: Path
    said: str = ""
    """What the last command printed."""
    gateway: "subprocess.Popen[bytes] | None" = field(default=None)
    heard: int = 0
    """How much of the gateway's log was there before the last command."""

    @property
    def log(self) -> Path:
        return self.folder / "gateway.log"

    @property
    def environment(self) -> dict[str, str]:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {
            "PATH": programs,
            "COLUMNS": "200",  # so that the log's lines are not wrapped
            "PYTHONPATH": str(EXAMPLES),  # they count as installed
            # The tests of the page need no plugins, which take a second to load, five times.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }

    def follow(self, block: Block) -> None:
        if block.file is not None:
            (self.folder / block.file).write_text(block.text)
            if block.language == "yaml":
                config = load_text(block.text, block.file, self.folder)
                assert make_builder().build(config).warnings == ()
        elif block.language == "sh":
            self.run(block.text)
        elif block.language == "python":
            self.run(f"python - <<'END'\n{block.text}END\n")
        elif block.language == "toml":
            assert block.text == (EXAMPLES / "pyproject.toml").read_text()
        else:
            assert block.language == "text"
            self.expect(block.text.splitlines())

    def run(self, script: str) -> None:
        self.heard = self.log.stat().st_size if self.gateway is not None else 0
        if script.startswith("epp up "):
            self.start(script)
        elif script.startswith("curl "):
            self.said = self.get(words(script))
        elif script.startswith(HERE) and script.count("\n") == 1:
            with contextlib.chdir(self.folder):
                done_here = CliRunner().invoke(cli, words(script)[1:])
            self.said = done_here.output
            assert done_here.exit_code == 0, self.said
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=DEADLINE_SECONDS,
            )
            self.said = done.stdout + done.stderr
            assert done.returncode == 0, self.said

    def start(self, script: str) -> None:
        with self.log.open("wb") as log:
            self.gateway = subprocess.Popen(
                words(f"{script} {ANY_PORTS}"),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.expect(["metrics of the endpoint picker"])

    def get(self, command: list[str]) -> str:
        """Do what curl would, through the port that the gateway was given."""
        found = re.search(r"curl -i (http://\S+?)/v1", self.log.read_text())
        assert found is not None
        url = command[2].replace("http://127.0.0.1:8080", found[1])
        options = list(zip(command[3::2], command[4::2], strict=True))
        headers = dict(value.split(": ", 1) for option, value in options if option == "-H")
        response = httpx.post(url, headers=headers, content=dict(options)["-d"])
        assert response.status_code == 200, response.text
        return "\n".join(f"{name}: {value}" for name, value in response.headers.items())

    def expect(self, lines: list[str]) -> None:
        """Wait until all of ``lines`` have been printed."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            log = self.log.read_bytes()[self.heard :].decode() if self.gateway else ""
            missing = [line for line in lines if line not in self.said + log]
            if not missing:
                return
            gone = self.gateway is None or self.gateway.poll() is not None
            assert not gone, f"not printed: {missing}\n{self.said}{log}"
            assert time.monotonic() < deadline, f"not printed: {missing}\n{self.said}{log}"
            time.sleep(0.05)


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[Reader]:
    reader = Reader(folder)
    try:
        yield reader
    finally:
        if reader.gateway is not None:
            reader.gateway.send_signal(signal.SIGINT)
            reader.gateway.wait(DEADLINE_SECONDS)


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_a_reader_who_follows_the_page_sees_what_it_says(tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        for block in blocks():
            try:
                reader.follow(block)
            except (AssertionError, ValueError) as error:
                error.add_note(f"{PAGE.name}, block at line {block.line}")
                raise
    assert reader.gateway is not None
    assert reader.gateway.returncode == 0


def test_the_page_shows_the_example_package_as_it_is() -> None:
    shown = {block.file: block.text for block in blocks()}
    package = EXAMPLES / "epp_example_plugins"
    assert shown["max_prompt.py"] == (package / "max_prompt.py").read_text()
    listed = next(block.text for block in blocks() if block.text.startswith("from epp.scheduling"))
    init = (package / "__init__.py").read_text()
    assert all(line in init for line in listed.splitlines())


def test_every_block_of_the_page_is_one_that_is_run() -> None:
    fences = re.findall(r"^```(\w+)", PAGE.read_text(), re.M)
    assert [block.language for block in blocks()] == fences
    assert set(fences) <= {"python", "sh", "text", "toml", "yaml"}
