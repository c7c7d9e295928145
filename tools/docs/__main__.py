"""Write the pages that are made from the code: ``python -m tools.docs``."""

from pathlib import Path

from tools.docs.cli_page import PAGE, cli_page

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Write the reference of the command line if it is not that of the code."""
    page, text = ROOT / PAGE, cli_page()
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")
        print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
