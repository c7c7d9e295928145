"""Pages of results: one self-contained HTML file each, with plots, without scripts."""

from epp.lab.results.page.comparison_page import comparison_page
from epp.lab.results.page.run_page import run_page

__all__ = ["comparison_page", "run_page"]
