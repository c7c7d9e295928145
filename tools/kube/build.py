"""Finds the programs of Kubernetes that tests run, or builds them from their Go modules.

kube-apiserver and etcd are the servers, helm and kustomize the clients. A variable names a folder
with both programs: for the servers ``KUBEBUILDER_ASSETS``, as for controller-runtime's envtest.
Without it, ``go build`` compiles them into the user's cache, once per version. Modules and compiled
packages go to a scratch folder, which is removed: 3.2 GB during the build, 220 MB afterwards.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.kube.go import BuildError, Module, compile_program, find_go, say

KUBERNETES = "1.34.4"
ETCD = "3.6.14"
"""The newest release that Go 1.25 can build."""

HELM = "3.19.5"
KUSTOMIZE = "5.8.1"

_MAJOR, _MINOR, _ = KUBERNETES.split(".")


def _link_flags(variables: Mapping[str, str]) -> str:
    """Return flags of the linker that set variables, and leave out symbols."""
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in variables.items())])


@dataclass(frozen=True, slots=True)
class Kit:
    """Programs that lie in one folder."""

    folder: str
    """Its name in the cache."""
    modules: tuple[Module, ...]
    variable: str
    """Environment variable that names a folder with them."""
    remedy: str
    """How somebody without Go gets such a folder."""

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of the files."""
        return tuple(module.program for module in self.modules)

    def cached(self, environment: Mapping[str, str]) -> Path:
        """Return the folder into which they are built."""
        cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache).absolute() / "endpoint-picker" / "kube" / self.folder


SERVERS = Kit(
    f"kubernetes-{KUBERNETES}-etcd-{ETCD}",
    (
        Module(
            "kube-apiserver",
            "k8s.io/kubernetes",
            KUBERNETES,
            "k8s.io/kubernetes/cmd/kube-apiserver",
            _link_flags(
                {
                    # Without these, it reports version 0.0.0.
                    "k8s.io/component-base/version.gitVersion": f"v{KUBERNETES}",
                    "k8s.io/component-base/version.gitMajor": _MAJOR,
                    "k8s.io/component-base/version.gitMinor": _MINOR,
                }
            ),
        ),
        Module("etcd", "go.etcd.io/etcd/server/v3", ETCD, "go.etcd.io/etcd/server/v3"),
    ),
    "KUBEBUILDER_ASSETS",
    "setup-envtest use -p path",
)
CLIENTS = Kit(
    f"helm-{HELM}-kustomize-{KUSTOMIZE}",
    (
        Module(
            "helm",
            "helm.sh/helm/v3",
            HELM,
            "helm.sh/helm/v3/cmd/helm",
            _link_flags(
                {
                    "helm.sh/helm/v3/internal/version.version": f"v{HELM}",
                    # Of the cluster that `helm template` renders for.
                    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": _MAJOR,
                    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": _MINOR,
                    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": _MAJOR,
                    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": _MINOR,
                }
            ),
        ),
        Module(
            "kustomize",
            "sigs.k8s.io/kustomize/kustomize/v5",
            KUSTOMIZE,
            "sigs.k8s.io/kustomize/kustomize/v5",
        ),
    ),
    "CHART_TOOLS",
    f"helm {HELM} and kustomize {KUSTOMIZE} from their releases",
)
KITS = (SERVERS, CLIENTS)


def find(kit: Kit, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder with the programs, or None if they have to be built.

    Raises:
        BuildError: The kit's variable names a folder that lacks one of them.
    """
    if named := environment.get(kit.variable):
        missing = [name for name in kit.programs if not os.access(Path(named) / name, os.X_OK)]
        if missing:
            raise BuildError(
                f"{kit.variable}={named} contains no {' and no '.join(missing)}: "
                "name a folder with both, or unset it to build them with Go"
            )
        return Path(named).absolute()  # the programs run in another folder
    built = kit.cached(environment)
    return built if built.is_dir() else None


def build(kit: Kit, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with the programs; build them if they are not there.

    A second process that builds at the same time waits for the first.

    Raises:
        BuildError: There is neither the kit's variable nor a usable Go, or a build failed.
    """
    if found := find(kit, environment):
        return found
    go = _find_go(kit, environment)
    target = kit.cached(environment)
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
            for module in kit.modules:
                compile_program(go, module, partial, result, environment)
            result.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Do nothing if :func:`build` can work for each kit.

    Raises:
        BuildError: There is neither a kit's variable nor a usable Go.
    """
    for kit in KITS:
        if not find(kit, environment):
            _find_go(kit, environment)


def command(arguments: Sequence[str]) -> int:
    """Print the folder of each kit, built if need be; return the exit status.

    With ``--check``, only find out whether they are there or can be built.
    """
    try:
        if "--check" in arguments:
            check()
        else:
            for kit in KITS:
                print(build(kit))
    except BuildError as error:
        print(f"make test-kube: {error}", file=sys.stderr)
        return 1
    return 0


def _find_go(kit: Kit, environment: Mapping[str, str]) -> str:
    return find_go(
        environment,
        built=" and ".join(kit.programs),
        otherwise=f"set {kit.variable} to a folder with both programs ({kit.remedy})",
    )


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process builds into {path.parent}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
