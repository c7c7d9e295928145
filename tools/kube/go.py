"""Compiles a program of a Go module, in a scratch folder that can be removed afterwards."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST_GO = (1, 25)
GO_FOLDER = "/usr/local/go/bin"
"""Folder of Go by its installation instructions; not every shell has it on the PATH."""

PROGRESS_SECONDS = 15.0
ERROR_LINES = 20


class BuildError(Exception):
    """A program is missing and cannot be built."""


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module with a program."""

    program: str
    path: str
    version: str
    package: str
    link_flags: str = "-s -w"
    """By default, without symbols, which would be a third of the file."""


def find_go(environment: Mapping[str, str], missing: str, otherwise: str) -> str:
    """Return the path of a Go that is new enough.

    Args:
        environment: Environment with the PATH to search.
        missing: Files that have to be made, for the message.
        otherwise: Alternative without Go, for the message.

    Raises:
        BuildError: There is none; the message says what to do.
    """
    oldest = ".".join(map(str, OLDEST_GO))
    needed = (
        f"{missing} have to be made, which needs Go {oldest} or newer: install it "
        f"(https://go.dev/dl), or {otherwise}"
    )
    go = shutil.which("go", path=f"{environment.get('PATH', '')}:{GO_FOLDER}")
    if go is None:
        raise BuildError(f"{needed}; go is neither on the PATH nor in {GO_FOLDER}")
    text = _output(go, "env", "GOVERSION", environment=environment).strip()
    version = re.match(r"go(\d+)\.(\d+)", text)
    if version is None or tuple(map(int, version.groups())) < OLDEST_GO:
        raise BuildError(f"{needed}; {go} is {text}")
    return go


def compile_program(
    go: str, module: Module, scratch: Path, result: Path, environment: Mapping[str, str]
) -> None:
    """Build the program of a module, into the folder ``result``.

    Raises:
        BuildError: ``go`` failed.
    """
    began = time.monotonic()
    say(f"{module.program} {module.version}: downloading its modules")
    folder = scratch / module.program
    folder.mkdir()
    flags = _output(go, "env", "GOFLAGS", environment=environment).strip()
    environment = {
        **environment,
        "CGO_ENABLED": "0",
        "GOCACHE": str(scratch / "packages"),
        "GOMODCACHE": str(scratch / "modules"),
        "GOWORK": "off",
        # -mod=mod completes go.mod; -modcacherw makes the modules removable.
        "GOFLAGS": f"{flags} -mod=mod -modcacherw".strip(),
    }
    _write_go_mod(go, module, folder, environment)
    packages = _output(go, "list", "-deps", module.package, folder=folder, environment=environment)
    count = len(packages.split())
    say(f"{module.program} {module.version}: compiling {count} packages; {_since(began)} so far")
    output = str(result / module.program)
    arguments = ("-v", "-trimpath", "-ldflags", module.link_flags, "-o", output, module.package)
    _build_with_progress([go, "build", *arguments], module, count, folder, environment)
    say(f"{module.program} {module.version}: built in {_since(began)}")


def download(go: str, name: str, scratch: Path, environment: Mapping[str, str]) -> Path:
    """Download a module, ``path@vX.Y.Z``, and return the folder with its files.

    Raises:
        BuildError: ``go`` failed.
    """
    say(f"{name}: downloading")
    settings = {**environment, "GOMODCACHE": str(scratch / "modules"), "GOFLAGS": "-modcacherw"}
    output = _output(go, "mod", "download", "-json", name, folder=scratch, environment=settings)
    return Path(json.loads(output)["Dir"])


def _write_go_mod(go: str, module: Module, folder: Path, environment: Mapping[str, str]) -> None:
    """Write a ``go.mod`` that requires the module.

    The ``replace`` lines of the required module do not apply: those of Kubernetes point to folders
    of its repository. Each of these is also published as a module, v0.X for Kubernetes v1.X.
    """
    name = f"{module.path}@v{module.version}"
    downloaded = _output(
        go, "mod", "download", "-json", name, folder=folder, environment=environment
    )
    source = json.loads(downloaded)["GoMod"]
    described = _output(go, "mod", "edit", "-json", source, folder=folder, environment=environment)
    published = "v0." + module.version.partition(".")[2]
    replaced = [
        f"replace {each['Old']['Path']} => {each['Old']['Path']} {published}\n"
        for each in json.loads(described).get("Replace") or ()
        if each["New"]["Path"].startswith("./staging/")
    ]
    head = f"module endpoint-picker.test/{module.program}\n\ngo {'.'.join(map(str, OLDEST_GO))}\n\n"
    text = head + f"require {module.path} v{module.version}\n\n" + "".join(replaced)
    (folder / "go.mod").write_text(text)


def _build_with_progress(
    arguments: Sequence[str],
    module: Module,
    packages: int,
    folder: Path,
    environment: Mapping[str, str],
) -> None:
    last_lines: deque[str] = deque(maxlen=ERROR_LINES)
    reported_at = began = time.monotonic()
    with subprocess.Popen(
        arguments,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None  # it is a PIPE
        for number, line in enumerate(process.stderr, 1):
            last_lines.append(line)
            if time.monotonic() - reported_at >= PROGRESS_SECONDS:
                reported_at = time.monotonic()
                done = min(number, packages)
                say(f"{module.program}: package {done} of {packages}, {_since(began)}")
    if process.returncode:
        raise BuildError(f"{' '.join(arguments)} failed:\n{''.join(last_lines)}")


def _output(*arguments: str, environment: Mapping[str, str], folder: Path | None = None) -> str:
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).splitlines()[-ERROR_LINES:]
        raise BuildError(f"{' '.join(arguments)} failed:\n" + "\n".join(lines))
    return done.stdout


def _since(moment: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - moment), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def say(text: str) -> None:
    """Write a message about progress, apart from the result on standard output."""
    print(f"» {text}", file=sys.stderr, flush=True)
