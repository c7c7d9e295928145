"""Every dependency has a known and allowed licence, and docs/licences.md lists it."""

from email.message import Message
from importlib.metadata import Distribution, PackageMetadata, distribution
from typing import cast

import pytest

from tools.release.licences import (
    DECIDED,
    MARK,
    PAGE,
    installed_names,
    is_allowed,
    licence_of,
    licences,
    refused,
    table,
)
from tools.release.locks import LOCKS, locked_versions


def metadata(**fields: str | list[str]) -> PackageMetadata:
    message = Message()
    for name, given in fields.items():
        for value in [given] if isinstance(given, str) else given:
            message[name.replace("_", "-")] = value
    return cast("PackageMetadata", message)


def test_the_licence_of_every_dependency_is_allowed() -> None:
    found = licences(installed_names())
    assert len(found) > 60
    assert refused(found) == []


def test_the_page_lists_every_dependency() -> None:
    _, _, written = PAGE.read_text().partition(MARK)
    assert written.strip() == table(licences(installed_names())).strip(), "make licences"


def test_every_package_that_the_image_has_is_judged() -> None:
    # Packages for Windows, Pyodide and Python before 3.11.3 are in the lock, and not needed here.
    absent = {"async-timeout", "colorama", "httpx2-jsfetch"}
    assert set(locked_versions("runtime")) - installed_names() <= absent


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ({"License_Expression": "mit"}, "MIT"),
        ({"License_Expression": "0BSD OR ISC", "License": "MIT"}, "0BSD OR ISC"),
        ({"License": "BSD 2-Clause License"}, "BSD-2-Clause"),
        (
            {"License": "see LICENSE", "Classifier": ["License :: OSI Approved :: MIT License"]},
            "MIT",
        ),
        ({"Classifier": ["License :: OSI Approved :: BSD License"]}, None),
        ({"License": "Proprietary, ask us"}, None),
        ({}, None),
    ],
)
def test_the_licence_is_read_from_expression_text_and_classifiers(
    fields: dict[str, str | list[str]], expression: str | None
) -> None:
    assert licence_of("package", metadata(**fields)) == expression


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-or-later", False),
        ("LGPL-2.1-only", False),
        ("GPL-3.0-or-later OR MIT", True),
        ("GPL-3.0-or-later AND MIT", False),
        ("Apache-2.0 AND BSD-2-Clause OR AGPL-3.0-only", True),
        ("(MIT OR GPL-2.0-only) AND AGPL-3.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
    ],
)
def test_a_choice_needs_one_allowed_licence_and_a_sum_needs_all(
    expression: str, allowed: bool
) -> None:
    assert is_allowed(expression) == allowed


def test_a_refused_package_is_named_with_its_licence_and_what_to_do() -> None:
    copyleft, unknown = refused({"a": "AGPL-3.0-only", "b": "MIT", "c": None})
    assert copyleft.startswith("a: AGPL-3.0-only; read it, then extend ALLOWED")
    assert unknown.startswith("c: no licence that is known")


def test_a_package_that_is_not_installed_has_no_known_licence() -> None:
    assert licences(["not-there"], installed=[]) == {"not-there": None}
    found: list[Distribution] = [distribution("pytest")]
    assert licences(["pytest"], found) == {"pytest": "MIT"}


def test_decisions_are_about_packages_that_are_locked() -> None:
    locked = [locked_versions(name).keys() for name in LOCKS]
    assert DECIDED.keys() <= set().union(*locked)
