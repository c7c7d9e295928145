"""Every case of the catalogue is in the table, tested elsewhere, pending, or not applicable."""

import re
from collections import Counter
from pathlib import Path

import pytest

from epp.config.supported import NOT_SUPPORTED_YET
from parity.cases import CASES
from parity.catalogue import NAMES
from parity.elsewhere import SHOWN_BY, WAITING, WITHOUT

ROOT = Path(__file__).parents[2]


def test_every_case_is_accounted_for_once() -> None:
    in_table = [name for case in CASES for name in (case.name, *case.also)]
    accounted = Counter([*in_table, *SHOWN_BY, *WAITING, *WITHOUT])
    assert accounted == Counter(NAMES)


@pytest.mark.parametrize("test", sorted(set(SHOWN_BY.values())))
def test_a_test_that_shows_a_case_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.M)


@pytest.mark.parametrize("name", WAITING)
def test_what_a_case_waits_for_is_not_there_yet(name: str) -> None:
    need = WAITING[name]
    assert need.what
    assert need.plugin_type == "" or need.plugin_type in NOT_SUPPORTED_YET, (
        f"{need.what} is there now: move the case to the table"
    )
