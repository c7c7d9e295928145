"""Finds kube-apiserver and etcd, or builds them from their Go modules.

``KUBEBUILDER_ASSETS`` names a folder with both, as for controller-runtime's envtest. Without it,
``go build`` compiles them into the user's cache, once per version. Modules and compiled packages go
to a scratch folder, which is removed: 4 GB during the build, 150 MB afterwards.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "1.34.4"
ETCD = "3.6.14"
"""The newest release that Go 1.25 can build."""

PROGRAMS = ("kube-apiserver", "etcd")
OLDEST_GO = (1, 25)
GO_FOLDER = "/usr/local/go/bin"
"""Where Go's installation instructions put it; not every shell has it on the PATH."""
PROGRESS_SECONDS = 15.0
ERROR_LINES = 20

_VERSION_VARIABLES = {
    "gitVersion": f"v{KUBERNETES}",
    "gitMajor": KUBERNETES.split(".", maxsplit=1)[0],
    "gitMinor": KUBERNETES.split(".")[1],
}
"""Without these, kube-apiserver reports version 0.0.0 and enables features accordingly."""


class BuildError(Exception):
    """There are no programs to run, and none can be built."""


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module with a program."""

    program: str
    path: str
    version: str
    package: str
    link_flags: str = "-s -w"
    """By default, without symbols, which would be a third of the file."""


MODULES = (
    Module(
        "kube-apiserver",
        "k8s.io/kubernetes",
        KUBERNETES,
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "-s -w "
        + " ".join(
            f"-X k8s.io/component-base/version.{name}={value}"
            for name, value in _VERSION_VARIABLES.items()
        ),
    ),
    Module("etcd", "go.etcd.io/etcd/server/v3", ETCD, "go.etcd.io/etcd/server/v3"),
)


def find(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder with both programs, or None if they have to be built.

    Raises:
        BuildError: ``KUBEBUILDER_ASSETS`` names a folder that lacks one of them.
    """
    if named := environment.get("KUBEBUILDER_ASSETS"):
        missing = [name for name in PROGRAMS if not os.access(Path(named) / name, os.X_OK)]
        if missing:
            raise BuildError(
                f"KUBEBUILDER_ASSETS={named} contains no {' and no '.join(missing)}: "
                "name a folder with both, or unset it to build them with Go"
            )
        return Path(named)
    built = _cached(environment)
    return built if built.is_dir() else None


def build(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with both programs; build them if they are not there.

    A second process that builds at the same time waits for the first.

    Raises:
        BuildError: There is neither ``KUBEBUILDER_ASSETS`` nor a usable Go, or a build failed.
    """
    if found := find(environment):
        return found
    go = _find_go(environment)
    target = _cached(environment)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"{error}: set XDG_CACHE_HOME to a folder that can be written") from error
    with _lock(target.with_name(target.name + ".lock")):
        if target.is_dir():
            return target
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)  # left by a build that was killed
        try:
            result = partial / "bin"
            result.mkdir(parents=True)
            for module in MODULES:
                _compile(go, module, partial, result, environment)
            result.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Do nothing if :func:`build` can work.

    Raises:
        BuildError: There is neither ``KUBEBUILDER_ASSETS`` nor a usable Go.
    """
    if not find(environment):
        _find_go(environment)


def command(arguments: Sequence[str]) -> int:
    """Print the folder with both programs, built if need be; return the exit status.

    With ``--check``, only find out whether they are there or can be built.
    """
    try:
        if "--check" in arguments:
            check()
        else:
            print(build())
    except BuildError as error:
        print(f"make test-kube: {error}", file=sys.stderr)
        return 1
    return 0


def _cached(environment: Mapping[str, str]) -> Path:
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "endpoint-picker" / "kube" / f"kubernetes-{KUBERNETES}-etcd-{ETCD}"


def _find_go(environment: Mapping[str, str]) -> str:
    oldest = ".".join(map(str, OLDEST_GO))
    needed = (
        f"kube-apiserver {KUBERNETES} and etcd {ETCD} have to be built, which needs Go {oldest} or "
        "newer: install it (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a folder with both "
        "programs (setup-envtest use -p path)"
    )
    go = shutil.which("go", path=f"{environment.get('PATH', '')}:{GO_FOLDER}")
    if go is None:
        raise BuildError(f"{needed}; go is neither on the PATH nor in {GO_FOLDER}")
    text = _output(go, "env", "GOVERSION", environment=environment).strip()
    version = re.match(r"go(\d+)\.(\d+)", text)
    if version is None or tuple(map(int, version.groups())) < OLDEST_GO:
        raise BuildError(f"{needed}; {go} is {text}")
    return go


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another process builds into {path.parent}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(
    go: str, module: Module, scratch: Path, result: Path, environment: Mapping[str, str]
) -> None:
    """Build one program.

    Raises:
        BuildError: ``go`` failed.
    """
    began = time.monotonic()
    _say(f"{module.program} {module.version}: downloading its modules")
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
    _say(f"{module.program} {module.version}: compiling {count} packages; {_since(began)} so far")
    output = str(result / module.program)
    arguments = ("-v", "-trimpath", "-ldflags", module.link_flags, "-o", output, module.package)
    _build_with_progress([go, "build", *arguments], module, count, folder, environment)
    _say(f"{module.program} {module.version}: built in {_since(began)}")


def _write_go_mod(go: str, module: Module, folder: Path, environment: Mapping[str, str]) -> None:
    """Write a ``go.mod`` that requires the module.

    The module's own ``replace`` lines do not count there: those of Kubernetes point to folders of
    its repository. Each of these is also published as a module, v0.X for Kubernetes v1.X.
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
    told = began = time.monotonic()
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
            if time.monotonic() - told >= PROGRESS_SECONDS:
                told = time.monotonic()
                done = min(number, packages)
                _say(f"{module.program}: package {done} of {packages}, {_since(began)}")
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


def _say(text: str) -> None:
    print(f"» {text}", file=sys.stderr, flush=True)
