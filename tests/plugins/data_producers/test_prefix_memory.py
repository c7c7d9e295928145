"""The memory that the prefix index counts equals the memory that its process uses."""

import pytest

from tools.bench.prefix_memory import Case, measure

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(blocks=4, prompts=40_000, max_bytes=2**22), id="short prompts"),
        pytest.param(Case(blocks=64, prompts=15_000, max_bytes=2**22), id="long prompts"),
        pytest.param(Case(blocks=12, shared=8, prompts=30_000, max_bytes=2**22), id="shared heads"),
        pytest.param(
            # Large against the 0.5 MB that imports leave free, which depend on the installation.
            Case(blocks=12, shared=8, prompts=60_000, endpoints=200, holders=3, max_bytes=2**24),
            id="several holders among many endpoints",
        ),
    ],
)
def test_what_is_counted_is_what_is_resident(case: Case) -> None:
    """Each case enters five times what fits, so that the tables have their lasting sizes."""
    memory = measure(case)
    assert 0.9 * case.max_bytes < memory.counted_bytes <= case.max_bytes
    assert memory.most_bytes <= case.max_bytes
    assert 0.8 <= memory.resident_bytes / memory.counted_bytes <= 1.2
