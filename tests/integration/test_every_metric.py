"""The table of metrics in docs/metrics.md agrees with pages of running endpoint pickers."""

from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from epp.observability.deprecated_metrics import FORMER_NAMES
from tools.docs.metric_declarations import declared_metrics

from .metric_runs import RUNS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

DECLARED = declared_metrics()
FORMER = {each.name for each in FORMER_NAMES.values()}


@dataclass(frozen=True, slots=True)
class Live:
    """What the pages of all runs have."""

    kinds: dict[str, str] = field(default_factory=dict)
    labels: dict[str, set[str]] = field(default_factory=dict)
    """Of the samples; a metric without a sample is not among them."""

    def add(self, page: str) -> None:
        for family in text_string_to_metric_families(page):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self.kinds[name] = family.type
            for sample in family.samples:
                self.labels.setdefault(name, set()).update(sample.labels.keys() - {"le"})


@pytest.mark.timeout(180)  # these are nine runs
async def test_every_metric_of_the_table_is_live_and_every_live_one_is_in_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    live = Live()
    with capture_logs():  # to print the tracebacks of failing plugins would block the loop
        for run in RUNS:
            for page in await run(tmp_path_factory.mktemp(run.__name__)):
                live.add(page)
    own = {name: kind for name, kind in live.kinds.items() if name not in FORMER}
    assert own == {name: each.kind for name, each in DECLARED.items()}
    assert {name: live.labels.get(name, "no sample") for name in own} == {
        name: set(each.labels) for name, each in DECLARED.items()
    }
    assert len(live.kinds) - len(own) > 20
