"""The Deployments of this chart and the Go EPP's chart have exactly the listed differences."""

import pytest
from kube.charts import values_of

from tools.chart.deployments import differences, go_deployments
from tools.chart.helm import Helm, of_kind
from tools.chart.known_differences import faults, known

GO = go_deployments()


@pytest.mark.parametrize("name", GO)
def test_every_difference_is_listed_and_every_listed_one_occurs(helm: Helm, name: str) -> None:
    ours = of_kind(helm.render(values_of(name)), "Deployment")
    assert faults(differences(GO[name], ours), name, known()) == []
