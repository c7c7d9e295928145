"""systemd's own check of the units; nothing is started."""

import re
import sys
from pathlib import Path

import pytest
from system.tools import output

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
BOTH = pytest.mark.parametrize(
    "name", ["endpoint-picker.service", "endpoint-picker-gateway.service"]
)
MAX_EXPOSURE = 2.0


async def exposure(unit: Path) -> float:
    text = await output("systemd-analyze", "security", "--offline=yes", "--no-pager", unit)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", text)
    assert found, text
    return float(found[1])


@BOTH
async def test_a_unit_is_exposed_little_and_only_because_it_is_confined(
    name: str, tmp_path: Path
) -> None:
    assert await exposure(UNITS / name) <= MAX_EXPOSURE
    open_unit = tmp_path / name
    text = (UNITS / name).read_text()
    confined = r"^(Protect|Private|Restrict|SystemCall|Capability|DynamicUser|NoNew).*\n"
    open_unit.write_text(re.sub(confined, "", text, flags=re.M))
    assert await exposure(open_unit) > MAX_EXPOSURE


def installed(name: str, folder: Path) -> Path:
    """Write a unit whose programs are here."""
    text = (UNITS / name).read_text()
    text = text.replace("/opt/endpoint-picker/bin", str(Path(sys.executable).parent))
    (folder / name).write_text(text)
    return folder / name


@BOTH
async def test_systemd_understands_a_unit(name: str, tmp_path: Path) -> None:
    for each in UNITS.glob("*.service"):
        installed(each.name, tmp_path)
    assert await output("systemd-analyze", "verify", "--man=no", tmp_path / name) == ""


async def test_systemd_names_what_it_does_not_understand(tmp_path: Path) -> None:
    unit = installed("endpoint-picker.service", tmp_path)
    unit.write_text(unit.read_text().replace("ProtectClock=yes", "ProtectClocks=yes"))
    report = await output("systemd-analyze", "verify", "--man=no", unit)
    assert "'ProtectClocks'" in report
    assert "Unknown key" in report
