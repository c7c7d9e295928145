"""Documents that repeat what the code says."""

import re
from pathlib import Path

from epp.transport import TransportSettings

DOCS = Path(__file__).parents[1] / "docs"


def test_every_transport_setting_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (DOCS / "transport.md").read_text(), re.M)
    assert dict(rows) == {name: str(value) for name, value in TransportSettings.names().items()}
