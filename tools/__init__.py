"""Programs that test and measure the endpoint picker at length; not part of the wheel.

Each folder is one program, ``python -m tools.NAME``, from the repository root; ``harness`` is what
they share with the tests. Small runs of them are tests: ``tests/tool_runs``.
"""

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
"""Working directory of the processes that run modules of this package."""
