"""Errors of the image tools when a requirement is missing."""

import os

import pytest

from tools.image import build
from tools.image.build import BuildError, check


def test_missing_programs_are_named_by_their_debian_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name in {"ip", "buildah"} else name)
    with pytest.raises(BuildError, match=r"missing: apt-get install buildah iproute2$"):
        check()


def test_a_user_who_is_not_root_gets_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", str)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BuildError, match="root is needed"):
        check()


def test_a_failed_step_is_reported_with_the_end_of_its_output() -> None:
    lines = "; ".join(f"echo line {number}" for number in range(40))
    with pytest.raises(BuildError) as raised:
        build._run("sh", "-c", f"{lines}; echo why >&2; exit 3")
    said = str(raised.value).splitlines()
    assert said[0].startswith("sh -c ")
    assert said[0].endswith(" failed:")
    assert (said[1], said[-1]) == ("line 11", "why")
