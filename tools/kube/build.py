"""Finds the files for the tests of ``make test-kube``, or makes them from Go modules.

Four kits: the servers (kube-apiserver and etcd), the clients (helm and kustomize), Docker Compose,
and the custom resource definitions of the projects whose objects are created. A variable names a
folder with the whole kit: for the servers ``KUBEBUILDER_ASSETS``, as for controller-runtime's
envtest. Without it, Go makes the kit in the user's cache, once per version. Modules and compiled
packages go to a scratch folder, which is removed: 3.2 GB during the build, 220 MB afterwards.
"""

import os
import shutil
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.kube.cache import cache, make_once
from tools.kube.go import BuildError, Module, compile_program, download, find_go

KUBERNETES = "1.34.4"
ETCD = "3.6.14"
"""The newest release that Go 1.25 can build."""

HELM = "3.19.5"
KUSTOMIZE = "5.8.1"
COMPOSE = "2.40.3"

_MAJOR, _MINOR, _ = KUBERNETES.split(".")


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """A file that is copied from a Go module."""

    name: str
    """Name in the kit."""
    module: str
    """Path and version of the module."""
    path: str
    """Path in the module."""


@dataclass(frozen=True, slots=True)
class Kit:
    """The files of one folder."""

    title: str
    folder: str
    """Its name in the cache."""
    parts: tuple[Module | ModuleFile, ...]
    variable: str
    """Environment variable that names a folder with the files."""
    remedy: str
    """How to get such a folder without Go."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files."""
        return tuple(part.program if isinstance(part, Module) else part.name for part in self.parts)

    def cached(self, environment: Mapping[str, str]) -> Path:
        """Return the folder in which the files are made."""
        return cache(environment) / self.folder


def _link_flags(variables: Mapping[str, str]) -> str:
    """Return flags of the linker that set variables and leave out symbols."""
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in variables.items())])


SERVERS = Kit(
    "kube-apiserver and etcd",
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
    "helm and kustomize",
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
                    # Version of the cluster for which `helm template` renders.
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
COMPOSER = Kit(
    "docker-compose",
    f"compose-{COMPOSE}",
    (
        Module(
            "docker-compose",
            "github.com/docker/compose/v2",
            COMPOSE,
            "github.com/docker/compose/v2/cmd",
            _link_flags({"github.com/docker/compose/v2/internal.Version": f"v{COMPOSE}"}),
        ),
    ),
    "COMPOSE_TOOLS",
    f"docker-compose {COMPOSE} from its releases",
)

_ENVOY_GATEWAY = "github.com/envoyproxy/gateway@v1.9.1"
_PROMETHEUS = "github.com/prometheus-operator/prometheus-operator@v0.85.0"


def _envoy_gateway(plural: str) -> ModuleFile:
    name = f"gateway.envoyproxy.io_{plural}.yaml"
    return ModuleFile(
        name, _ENVOY_GATEWAY, f"charts/gateway-helm/charts/crds/crds/generated/{name}"
    )


def _gateway_api(plural: str) -> ModuleFile:
    path = f"config/crd/standard/gateway.networking.k8s.io_{plural}.yaml"
    return ModuleFile(f"{plural}.yaml", "sigs.k8s.io/gateway-api@v1.5.1", path)


def _prometheus(plural: str) -> ModuleFile:
    name = f"monitoring.coreos.com_{plural}.yaml"
    return ModuleFile(name, _PROMETHEUS, f"example/prometheus-operator-crd/{name}")


_FILES = (
    *(
        _envoy_gateway(plural)
        for plural in (
            "backendtrafficpolicies",
            "clienttrafficpolicies",
            "envoyextensionpolicies",
            "envoypatchpolicies",
            "envoyproxies",
        )
    ),
    *(_prometheus(plural) for plural in ("servicemonitors", "podmonitors", "prometheusrules")),
    *(_gateway_api(plural) for plural in ("gateways", "httproutes")),
    ModuleFile(
        "istio.yaml",
        "istio.io/api@v1.31.4",
        "kubernetes/customresourcedefinitions.gen.yaml",
    ),
    ModuleFile(
        "scaledobjects.yaml",
        "github.com/kedacore/keda/v2@v2.21.0",
        "config/crd/bases/keda.sh_scaledobjects.yaml",
    ),
)
DEFINITIONS = Kit(
    "custom resource definitions",
    f"definitions-{zlib.crc32(repr(_FILES).encode()):08x}",
    _FILES,
    "CHART_DEFINITIONS",
    "the files that tools/kube/build.py lists, from the repositories of their projects",
)
KITS = (SERVERS, CLIENTS, COMPOSER, DEFINITIONS)


def find(kit: Kit, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of the kit, or None if it has to be made.

    Raises:
        BuildError: The kit's variable names a folder that lacks a part.
    """
    if named := environment.get(kit.variable):
        mode = os.X_OK if isinstance(kit.parts[0], Module) else os.R_OK
        missing = [name for name in kit.names if not os.access(Path(named) / name, mode)]
        if missing:
            raise BuildError(
                f"{kit.variable}={named} contains no {' and no '.join(missing)}: "
                "name a folder with all of them, or unset it to make them with Go"
            )
        return Path(named).absolute()  # the programs run in another folder
    made = kit.cached(environment)
    return made if made.is_dir() else None


def build(kit: Kit, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the kit; make it if it does not exist.

    Raises:
        BuildError: There is neither the kit's variable nor a usable Go, or Go failed.
    """
    if found := find(kit, environment):
        return found
    go = _find_go(kit, environment)

    def fill(scratch: Path, result: Path) -> None:
        downloaded: dict[str, Path] = {}
        for part in kit.parts:
            if isinstance(part, Module):
                compile_program(go, part, scratch, result, environment)
                continue
            if part.module not in downloaded:
                downloaded[part.module] = download(go, part.module, scratch, environment)
            shutil.copyfile(downloaded[part.module] / part.path, result / part.name)

    return make_once(kit.cached(environment), fill)


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Check that :func:`build` can work for each kit.

    Raises:
        BuildError: There is neither a kit's variable nor a usable Go.
    """
    for kit in KITS:
        if not find(kit, environment):
            _find_go(kit, environment)


def command(arguments: Sequence[str]) -> int:
    """Print the folder of each kit, made if need be; return the exit status.

    With ``--check``, only check whether the kits exist or can be made.
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
        missing=kit.title,
        otherwise=f"set {kit.variable} to a folder with them ({kit.remedy})",
    )
