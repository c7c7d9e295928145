"""deploy/kustomize, rendered from the Helm chart.

The base is a release of the chart as it is rendered by default. A component has the differences of
another rendering: it adds the objects that the base lacks, and patches those that differ. Each
overlay is the base with one component; a user's overlay can have several.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tools.chart.helm import Document, Helm
from tools.chart.paths import KUSTOMIZE

RELEASE: Final = "llm"
NAMESPACE: Final = "default"

BASE: Final[dict[str, Any]] = {"router": {"modelServers": {"matchLabels": {"app": "llm"}}}}
"""Values of the base; a component's are merged over them."""

COMPONENTS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "standalone": ("An Envoy in the Pod, in front of the endpoint picker.", {"mode": "standalone"}),
    "istio": (
        "Behind a Gateway of Istio.",
        {
            # A short name, which Istio completes: Kustomize would not change the namespace in it.
            "provider": {"name": "istio", "istio": {"destinationRule": {"host": f"{RELEASE}-epp"}}},
            "httpRoute": {"create": True},
        },
    ),
    "gke": (
        "Behind a Gateway of GKE.",
        {"provider": {"name": "gke"}, "httpRoute": {"create": True}},
    ),
    "envoy-gateway": (
        "Behind a Gateway of Envoy Gateway.",
        {"provider": {"name": "envoy-gateway"}, "httpRoute": {"create": True}},
    ),
    "kgateway": (
        "Behind a Gateway of kgateway.",
        {"provider": {"name": "kgateway"}, "httpRoute": {"create": True}},
    ),
    "leader-election": (
        "Two replicas, of which one leads and serves.",
        {"router": {"epp": {"replicas": 2}}},
    ),
    "all-serve": (
        "Two replicas that both serve.",
        {"router": {"epp": {"replicas": 2, "flags": {"ha-enable-leader-election": False}}}},
    ),
    "monitoring": (
        "A ServiceMonitor and alerts for the Prometheus operator.",
        {"router": {"monitoring": {"prometheus": {"enabled": True, "rules": {"enabled": True}}}}},
    ),
    "network-policy": ("A NetworkPolicy.", {"networkPolicy": {"enabled": True}}),
}
"""Description and values of each component by name."""

WRITTEN: Final = (
    "# Written by `make kustomize` from the Helm chart; make changes in an overlay of your own.\n"
)


def files(helm: Helm) -> dict[str, str]:
    """Return the text of each file by its path in deploy/kustomize."""
    base = rendered(helm, BASE)
    made = {
        "base/kustomization.yaml": WRITTEN + _dump(_kustomization(resources=["objects.yaml"])),
        "base/objects.yaml": WRITTEN + _dump_all(base),
    }
    for name, (sentence, values) in COMPONENTS.items():
        added, patches = difference(base, rendered(helm, merged(BASE, values)))
        fields: Document = {}
        if added:
            fields["resources"] = ["objects.yaml"]
            made[f"components/{name}/objects.yaml"] = WRITTEN + _dump_all(added)
        if patches:
            fields["patches"] = patches
        head = f"# {sentence}\n{WRITTEN}"
        component = _kustomization("Component", **fields)
        overlay = _kustomization(resources=["../../base"], components=[f"../../components/{name}"])
        made[f"components/{name}/kustomization.yaml"] = head + _dump(component)
        made[f"overlays/{name}/kustomization.yaml"] = head + _dump(overlay)
    return made


def write(helm: Helm) -> None:
    """Write the files, and remove all others."""
    texts = files(helm)
    for folder in ("base", "components", "overlays"):
        shutil.rmtree(KUSTOMIZE / folder, ignore_errors=True)
    for path, text in texts.items():
        target = KUSTOMIZE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def rendered(helm: Helm, values: Mapping[str, Any]) -> list[Document]:
    """Return the objects of a rendering, without Helm's labels and without a namespace."""
    objects = helm.render(values, release=RELEASE, namespace=NAMESPACE)
    for each in objects:
        for rule in each["spec"]["groups"][0]["rules"] if each["kind"] == "PrometheusRule" else ():
            rule["expr"] = rule["expr"].replace(f',namespace="{NAMESPACE}"', "")
        if each["metadata"].get("namespace") == NAMESPACE:
            del each["metadata"]["namespace"]
        for metadata in (each["metadata"], _template(each).get("metadata", {})):
            metadata.get("labels", {}).pop("app.kubernetes.io/managed-by", None)
    return objects


def _template(of: Document) -> Document:
    found: Document = of.get("spec", {}).get("template", {})
    return found


def difference(
    base: Sequence[Document], other: Sequence[Document]
) -> tuple[list[Document], list[Document]]:
    """Return the objects that the base lacks, and the patches of Kustomize for those that differ.

    Raises:
        ValueError: The base has an object that the other lacks.
    """
    old = {_key(each): each for each in base}
    new = {_key(each): each for each in other}
    if missing := old.keys() - new.keys():
        raise ValueError(f"a component cannot remove {missing}")
    added = [each for key, each in new.items() if key not in old]
    patches = [
        {
            "target": {"kind": kind, "name": name},
            "patch": _dump(operations),
        }
        for (kind, name), each in new.items()
        if (kind, name) in old and (operations := list(_operations(old[kind, name], each, "")))
    ]
    return added, patches


def _operations(old: Any, new: Any, path: str) -> Iterator[dict[str, Any]]:
    """Yield the operations of RFC 6902 that make one document the other."""
    if old == new:
        return
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and _named(old):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _operations(before, after, f"{path}/{index}")
        return
    if not (isinstance(old, dict) and isinstance(new, dict)):
        yield {"op": "replace", "path": path, "value": new}
        return
    for name in [*old, *(name for name in new if name not in old)]:
        at = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in new:
            yield {"op": "remove", "path": at}
        elif name not in old:
            yield {"op": "add", "path": at, "value": new[name]}
        else:
            yield from _operations(old[name], new[name], at)


def _named(items: Sequence[Any]) -> bool:
    """Whether the items have names, as containers do, so that fields can be patched one by one."""
    return all(isinstance(each, dict) and "name" in each for each in items)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return values merged as helm merges them: maps by key, all else replaced."""
    result = dict(base)
    for name, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(name), Mapping):
            result[name] = merged(result[name], value)
        else:
            result[name] = value
    return result


def _kustomization(kind: str = "Kustomization", **fields: Any) -> Document:
    version = "v1beta1" if kind == "Kustomization" else "v1alpha1"
    return {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **fields}


def _key(of: Document) -> tuple[str, str]:
    return of["kind"], of["metadata"]["name"]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _dump(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def _dump_all(objects: Sequence[Document]) -> str:
    return "---\n".join(_dump(each) for each in objects)


def read(folder: Path = KUSTOMIZE) -> dict[str, str]:
    """Return the text of each existing file, by its path in the folder."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in found}
