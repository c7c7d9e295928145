"""The unreleased entries of the changelog move under the version and date of a release."""

from datetime import date
from pathlib import Path

import pytest
import yaml

from tools.release.artefacts import CHART, command, prepare, version
from tools.release.changelog import ReleaseError, cut, notes, versions
from tools.release.locks import ROOT

DAY = date(2026, 3, 1)
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- A flag.

## [1.9.0] - 2026-01-31

### Fixed

- A bug.
"""
EMPTY = CHANGELOG.replace("- A flag.\n", "")


def test_the_entries_move_under_the_heading_of_the_version() -> None:
    released = cut(CHANGELOG, "1.10.0", DAY)
    assert released.count("- A flag.") == 1
    assert "## [Unreleased]\n\n## [1.10.0] - 2026-03-01\n\n### Added\n\n- A flag.\n" in released
    assert versions(released) == ["1.10.0", "1.9.0"]
    assert notes(released, "Unreleased") == ""
    assert notes(released, "1.10.0") == "### Added\n\n- A flag."
    assert notes(released, "1.9.0") == "### Fixed\n\n- A bug."


@pytest.mark.parametrize(
    ("changelog", "new", "complaint"),
    [
        (EMPTY, "2.0.0", "no entry under"),
        (CHANGELOG, "1.9.0", "1.9.0 is not newer than 1.9.0"),
        (CHANGELOG, "1.8.7", "1.8.7 is not newer than 1.9.0"),
        (CHANGELOG, "1.9", "'1.9' is no version such as 1.2.3"),
        (CHANGELOG, "v2.0.0", "'v2.0.0' is no version"),
        (CHANGELOG, "2.0.01", "'2.0.01' is no version"),
        (CHANGELOG.replace("[Unreleased]", "Next"), "2.0.0", r"no heading '## \[Unreleased\]'"),
    ],
)
def test_a_release_without_change_or_with_an_old_version_is_refused(
    changelog: str, new: str, complaint: str
) -> None:
    with pytest.raises(ReleaseError, match=complaint):
        cut(changelog, new, DAY)


def test_the_version_is_written_into_pyproject_the_chart_and_the_changelog(tmp_path: Path) -> None:
    project = '[project]\nname = "x"\nversion = "1.9.0"\n\n[tool.x]\nversion = "7"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    chart = tmp_path / CHART
    chart.parent.mkdir(parents=True)
    chart.write_text(
        'apiVersion: v2\nversion: 1.9.0\nappVersion: 1.9.0\nkubeVersion: ">=1.29.0-0"\n'
    )
    prepare("2.0.0", DAY, tmp_path)
    assert chart.read_text() == (
        'apiVersion: v2\nversion: 2.0.0\nappVersion: 2.0.0\nkubeVersion: ">=1.29.0-0"\n'
    )
    assert version(tmp_path) == "2.0.0"
    changed = (tmp_path / "pyproject.toml").read_text()
    assert changed == project.replace("1.9.0", "2.0.0")
    assert versions((tmp_path / "CHANGELOG.md").read_text()) == ["2.0.0", "1.9.0"]


def test_a_refused_release_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('version = "1.9.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    with pytest.raises(ReleaseError):
        prepare("1.9.0", DAY, tmp_path)
    assert (tmp_path / "pyproject.toml").read_text() == 'version = "1.9.0"\n'
    assert (tmp_path / "CHANGELOG.md").read_text() == CHANGELOG


def test_make_release_says_why_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["v1.0"]) == 1
    assert capsys.readouterr().err == "make release: 'v1.0' is no version such as 1.2.3\n"


def test_the_changelog_of_the_project_can_be_cut() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert versions(cut(changelog, "99.0.0", DAY))[0] == "99.0.0"


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((ROOT / CHART).read_text())
    assert (chart["version"], chart["appVersion"]) == (version(), version())


def test_no_module_has_a_version_of_its_own() -> None:
    assert 'version("endpoint-picker")' in (ROOT / "epp" / "cli" / "__init__.py").read_text()
    for package in ("epp", "plugins/epp_plugins"):
        for path in (ROOT / package).rglob("*.py"):
            assert "__version__ =" not in path.read_text(), path
