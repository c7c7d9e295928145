"""Write the pages that are made from the code: ``python -m tools.docs``."""

from pathlib import Path, PurePosixPath

from tools.docs import cli_page, metrics_page

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Write the pages of the command line and of metrics."""
    _write(cli_page.PAGE, cli_page.cli_page())
    metrics = ROOT / metrics_page.PAGE
    _write(metrics_page.PAGE, metrics_page.with_tables(metrics.read_text(encoding="utf-8")))


def _write(page: PurePosixPath, text: str) -> None:
    path = ROOT / page
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        print(f"written: {page}")


if __name__ == "__main__":
    main()
