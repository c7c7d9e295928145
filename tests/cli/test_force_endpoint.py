"""``epp force-endpoint``: the header that it prints, and its errors."""

import shlex
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epp.cli import cli
from epp.request_control.force_header import FORCE_HEADER, verified

FIRST, SECOND = b"1" * 32, b"2" * 32


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(FIRST + b"\n" + SECOND + b"\n")
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return exit status, output and errors."""
    result = CliRunner().invoke(cli, ["force-endpoint", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def left_of(value: str) -> float:
    """Return for how many seconds a header is valid, which the first key has signed."""
    assert verified(value, [FIRST], time.time()) == "default/vllm-0"
    return int(value.split(";exp=")[1].partition(";")[0]) - time.time()


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        pytest.param((), 60, id="default"),
        pytest.param(("--for", "10m"), 600, id="longest"),
        pytest.param(("--for", "2s"), 2, id="short"),
    ],
)
def test_the_header_is_printed(key_file: Path, options: tuple[str, ...], seconds: int) -> None:
    status, output, _ = run("default/vllm-0", "--key-file", key_file, *options)
    name, value = output.rstrip("\n").split(": ")
    assert (status, name) == (0, FORCE_HEADER)
    assert seconds - 2 < left_of(value) <= seconds


def test_a_curl_command_is_printed(key_file: Path) -> None:
    url = "http://gateway:8080/v1/models?a=1&b=2"
    status, output, _ = run("default/vllm-0", "--key-file", key_file, "--curl", url)
    curl, option, header, address = shlex.split(output)
    assert (status, curl, option, address) == (0, "curl", "-H", url)
    assert left_of(header.removeprefix(f"{FORCE_HEADER}: ")) > 0


@pytest.mark.parametrize(
    ("endpoint", "content", "options", "why"),
    [
        pytest.param("a;b", FIRST, (), "'a;b' is no name or address", id="endpoint"),
        pytest.param("a", b"short", (), "key: line 1: the key has 5 bytes", id="short key"),
        pytest.param("a", b"", (), "key: has no key; make one with `openssl", id="no key"),
        pytest.param("a", None, (), "cannot be read: no such file", id="no file"),
        pytest.param("a", FIRST, ("--for", "11m"), "--for: '11m' must be from 1s to 10m", id="for"),
        pytest.param("a", FIRST, ("--for", "0.5s"), "must be from 1s to 10m", id="too short"),
        pytest.param("a", FIRST, ("--for", "60"), "--for: '60'", id="without a unit"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, endpoint: str, content: bytes | None, options: tuple[str, ...], why: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    status, output, errors = run(endpoint, "--key-file", path, *options)
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("epp: ")
    assert why in errors
