"""The page docs/predicted-time.md names every constant with its default."""

import re
from pathlib import Path

import msgspec

from epp_plugins.predicted_time import DEFAULTS

PAGE = Path(__file__).parents[3] / "docs" / "predicted-time.md"


def test_the_page_has_every_constant_with_its_default() -> None:
    text = PAGE.read_text().partition("## Constants")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \| \S.* \|$", text, re.MULTILINE))
    assert {name: float(value) for name, value in rows.items()} == msgspec.to_builtins(DEFAULTS)
