"""Finds kube-apiserver and etcd, or builds them from their Go modules.

``KUBEBUILDER_ASSETS`` names a folder with both, as for controller-runtime's envtest. Without it,
``go build`` compiles them into the user's cache, once per version. Modules and compiled packages go
to a scratch folder, which is removed: 3.2 GB during the build, 130 MB afterwards.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.kube.go import BuildError, Module, compile_program, find_go, say

KUBERNETES = "1.34.4"
ETCD = "3.6.14"
"""The newest release that Go 1.25 can build."""

PROGRAMS = ("kube-apiserver", "etcd")

_VERSION_VARIABLES = {
    "gitVersion": f"v{KUBERNETES}",
    "gitMajor": KUBERNETES.split(".", maxsplit=1)[0],
    "gitMinor": KUBERNETES.split(".")[1],
}
"""Without these, kube-apiserver reports version 0.0.0."""

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
        return Path(named).absolute()  # the programs run in another folder
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
    go = find_go(environment)
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
                compile_program(go, module, partial, result, environment)
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
        find_go(environment)


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
    folder = Path(cache).absolute() / "endpoint-picker" / "kube"
    return folder / f"kubernetes-{KUBERNETES}-etcd-{ETCD}"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process builds into {path.parent}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
