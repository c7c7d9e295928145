"""CHANGELOG.md: the entries of the next release and, under dated headings, of each release.

The format is Keep a Changelog's: ``## [Unreleased]``, then ``## [1.2.3] - 2026-01-31`` and so on.
"""

import re
from datetime import date

UNRELEASED = "## [Unreleased]\n"
_HEADING = re.compile(r"(?m)^## \[([^\]]+)\].*\n")


class ReleaseError(Exception):
    """A release cannot be made as requested; the message says why, and what to do."""


def versions(changelog: str) -> list[str]:
    """Return the released versions, in the order of their headings."""
    return [name for name in _HEADING.findall(changelog) if name != "Unreleased"]


def notes(changelog: str, version: str) -> str:
    """Return the entries of a version, or of ``Unreleased``, without its heading.

    Raises:
        ReleaseError: The version has no heading.
    """
    pieces = _HEADING.split(changelog)
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if name == version:
            return text.strip()
    raise ReleaseError(f"CHANGELOG.md has no heading '## [{version}]'")


def cut(changelog: str, version: str, day: date) -> str:
    """Return the changelog with the unreleased entries under the heading of a new version.

    Raises:
        ReleaseError: There are no entries, or the version is invalid or not newer than all others.
    """
    number = _number(version)
    if not re.search(r"(?m)^- ", notes(changelog, "Unreleased")):
        raise ReleaseError("CHANGELOG.md has no entry under '## [Unreleased]': there is no change")
    for released in versions(changelog):
        if number <= _number(released):
            raise ReleaseError(f"{version} is not newer than {released}, which CHANGELOG.md has")
    heading = f"{UNRELEASED}\n## [{version}] - {day.isoformat()}\n"
    return changelog.replace(UNRELEASED, heading, 1)


def _number(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise ReleaseError(f"{version!r} is no version such as 1.2.3")
    return tuple(map(int, version.split(".")))
