"""Fuzzes the connection and the session, led by coverage.

``make fuzz``, or this file with libFuzzer's options: ``-max_total_time=60``, the file of a finding.
"""

import sys
from logging import CRITICAL
from pathlib import Path

import atheris
import structlog

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.remove(str(Path(__file__).parent))

with atheris.instrument_imports(include=["epp.transport", "hpack"]):
    from fuzz.target import one_input

if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    # A step that takes seconds is a finding: whatever the input, its work is in proportion to it.
    atheris.Setup(
        [sys.argv[0], "-timeout=5", "-max_len=2048", "-len_control=0", *sys.argv[1:]], one_input
    )
    atheris.Fuzz()
