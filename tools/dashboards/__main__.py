"""Write the files: ``python -m tools.dashboards``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import yaml

from tools.dashboards import DASHBOARDS
from tools.dashboards.grafana import dashboard_json
from tools.dashboards.page import page

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "grafana"
PAGE: Final = ROOT / "docs" / "dashboards.md"

_HEAD: Final = """\
# Written by `make dashboards`. ConfigMaps that Grafana's sidecar finds by their label:
#   kubectl apply -n monitoring -k deploy/grafana
"""


def files() -> dict[str, str]:
    """Return the text of each file by its name in deploy/grafana."""
    made = {f"{each.name}.json": dashboard_json(each) for each in DASHBOARDS}
    return {**made, "kustomization.yaml": _kustomization(made)}


def _kustomization(names: Iterable[str]) -> str:
    generators = [
        {
            "name": f"endpoint-picker-dashboard-{Path(name).stem}",
            "files": [f"endpoint-picker-{name}={name}"],
        }
        for name in names
    ]
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "generatorOptions": {
            "disableNameSuffixHash": True,
            "labels": {"grafana_dashboard": "1"},
        },
        "configMapGenerator": generators,
    }
    return _HEAD + yaml.safe_dump(document, sort_keys=False)


def main() -> None:
    """Write the files, remove those of former dashboards, and write the page's tables."""
    made = files()
    for path in FOLDER.iterdir():
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), DASHBOARDS), encoding="utf-8")


if __name__ == "__main__":
    main()
