"""Every case of the reference's tests, run twice over a real gRPC channel.

With ``--compat=reference`` status, drop reason and body of an error must be the reference's. With
our defaults, and in all else, what is other must be what a row of docs/differences.md tells of.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from epp.ext_proc.settings import Compat
from parity.case import Case
from parity.cases import CASES
from parity.worlds import Worlds

COMPATS: tuple[Compat, ...] = ("reference", "none")
TABLE = Path(__file__).parents[2] / "docs" / "differences.md"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worlds(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worlds]:
    """All that cases run in; those who share a world share its EPP."""
    async with asyncio.TaskGroup() as tasks:
        made = Worlds(tasks, tmp_path_factory.mktemp("worlds"))
        try:
            yield made
        finally:
            made.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("compat", COMPATS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_case_comes_out_as_in_the_reference_but_for_stated_differences(
    case: Case, compat: Compat, worlds: Worlds
) -> None:
    running = await worlds.get(case.world, compat)
    with capture_logs():
        facts = await case.play(running)
    assert {fact: facts[fact] for fact in case.reference} == case.wanted(compat)


@pytest.fixture(scope="module")
def rows() -> frozenset[str]:
    """The cases that docs/differences.md has a row of."""
    found = re.findall(r"^\| (.+?) \| .* \| .* \| .*\|$", TABLE.read_text(), re.M)
    return frozenset(found) - {"case"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_other_has_a_row_and_is_other(case: Case, rows: frozenset[str]) -> None:
    for compat in COMPATS:
        for fact, ours in case.deviations(compat).items():
            assert ours.row in rows, f"{fact}: docs/differences.md has no row {ours.row!r}"
            assert ours.value != case.reference[fact], f"{fact}: this is what the reference does"
