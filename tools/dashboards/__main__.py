"""Write the files: ``python -m tools.dashboards``."""

from pathlib import Path
from typing import Final

from tools.dashboards import DASHBOARDS
from tools.dashboards.grafana import dashboard_json
from tools.dashboards.page import page

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "grafana"
PAGE: Final = ROOT / "docs" / "dashboards.md"


def files() -> dict[str, str]:
    """Return the text of each file by its name in deploy/grafana."""
    return {f"{each.name}.json": dashboard_json(each) for each in DASHBOARDS}


def main() -> None:
    """Write the dashboards, remove those that are none any more, and write the page's tables."""
    made = files()
    for path in FOLDER.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), DASHBOARDS), encoding="utf-8")


if __name__ == "__main__":
    main()
