"""Settings of the record of decisions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from epp.inputs import Form, Option, Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainSettings:
    """Which decisions are kept for `epp explain`, and for how long."""

    explain_decisions: Annotated[
        int,
        Option(
            "Decisions of a pool that are kept in memory for `epp explain`; 0 for none.",
            panel=Panel.EXPLAIN,
            metavar="N",
            min=0,
            max=1_000_000,
        ),
    ] = 2000
    explain_rate: Annotated[
        float,
        Option(
            "Decisions per second that are recorded; of more, a sample is. 0 for all.",
            panel=Panel.EXPLAIN,
            metavar="PER_SECOND",
            min=0.0,
        ),
    ] = 100.0
    explain_bytes: Annotated[
        int,
        Option(
            "Memory for the decisions of a pool; the oldest ones give way.",
            panel=Panel.EXPLAIN,
            form=Form.SIZE,
        ),
    ] = 64 << 20
    explain_file: Annotated[
        Path | None,
        Option(
            "Write the recorded decisions to this file, one JSON document a line, once their"
            " requests have ended.",
            panel=Panel.EXPLAIN,
            metavar="PATH",
        ),
    ] = None
    explain_file_bytes: Annotated[
        int,
        Option(
            "Length at which the file of decisions is renamed to PATH.1, and PATH.1 to PATH.2.",
            panel=Panel.EXPLAIN,
            form=Form.SIZE,
        ),
    ] = 64 << 20
    explain_files: Annotated[
        int,
        Option(
            "Number of files of decisions that are kept, PATH included.",
            panel=Panel.EXPLAIN,
            metavar="N",
            min=1,
            max=1000,
        ),
    ] = 5
