"""Names from the pool and the configuration, which metrics accept as label values."""

from collections.abc import Iterable, Iterator, Sequence

from epp.config import LoadedConfig
from epp.data_layer.plugins import SERVED_MODELS
from epp.observability import OperatorNames
from epp.scheduling import Endpoint


def served_names(endpoints: Sequence[Endpoint]) -> OperatorNames:
    """Return the models and adapters that the endpoints report."""
    served = [endpoint.attributes.get(SERVED_MODELS, ()) for endpoint in endpoints]
    for endpoint in endpoints:
        served += (endpoint.metrics.active_adapters, endpoint.metrics.waiting_adapters)
    return OperatorNames(models=set[str]().union(*served))


def configured_names(config: LoadedConfig) -> OperatorNames:
    """Return all strings in plugin parameters, such as models and tenants, and all priorities."""
    file = config.file
    parameters = [plugin.parameters for plugin in file.plugins]
    arguments = [plugin.arguments for plugin in file.extensions.sessions.plugins.values()]
    texts = set(_texts([*parameters, *arguments]))
    bands = file.flow_control.priority_bands if file.flow_control else ()
    return OperatorNames(
        models=texts, fairness_ids=texts, priorities=[band.priority for band in bands]
    )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts_in((*value, *value.values()))
    elif isinstance(value, list | tuple):
        yield from _texts_in(value)


def _texts_in(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        yield from _texts(value)
