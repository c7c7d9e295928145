"""Programs that test and measure the endpoint picker at length; not part of the wheel.

Each folder is one program, ``python -m tools.NAME``, run from the repository root; ``harness`` has
the parts that they share with the tests. Small runs of the programs are tests: ``tests/tool_runs``.
"""

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
"""Working directory of the processes that run modules of this package."""
