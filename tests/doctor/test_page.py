"""docs/doctor.md has every check once."""

import re
from pathlib import Path

from epp.doctor import deployment_checks, envoy_checks

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()


def listed(heading: str) -> list[str]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w-]+)` \|", section, re.M)


def test_the_page_lists_the_checks_of_envoy() -> None:
    assert sorted(listed("Checks of Envoy")) == sorted(each.name for each in envoy_checks.CHECKS)


def test_the_page_lists_the_checks_of_the_deployment() -> None:
    names = [each.name for each in deployment_checks.CHECKS]
    assert listed("Checks of the deployment") == names
    assert len(set(names)) == len(names)
