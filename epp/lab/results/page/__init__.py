"""Pages of results: one self-contained HTML file each, with plots, without scripts."""

from epp.lab.results.page.comparison_page import comparison_page, comparison_sections
from epp.lab.results.page.document import document
from epp.lab.results.page.markup import Markup, element, name_text
from epp.lab.results.page.run_page import definitions, run_page
from epp.lab.results.page.sweep_page import sweep_page
from epp.lab.results.page.tables import section, table

__all__ = [
    "Markup",
    "comparison_page",
    "comparison_sections",
    "definitions",
    "document",
    "element",
    "name_text",
    "run_page",
    "section",
    "sweep_page",
    "table",
]
