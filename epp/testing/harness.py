"""Runs one plugin on test data and checks the result against its extension point's contract."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    Picker,
    Plugin,
    SchedulerProfile,
    Scorer,
)
from epp.testing.builders import make_profile, make_request, make_scored

P = TypeVar("P", bound=Plugin)


def run_filter(
    plugin: Filter,
    request: LLMRequest,
    endpoints: Sequence[Endpoint],
    state: CycleState | None = None,
) -> list[str]:
    """Return the names of the endpoints that a filter keeps.

    Raises:
        AssertionError: The result is not a sublist of ``endpoints`` in the same order.
    """
    kept = plugin.filter(request, endpoints, CycleState() if state is None else state)
    if not isinstance(kept, list):
        raise AssertionError(  # noqa: TRY004 - a failed test, not a caller's mistake
            f"filter {plugin.name!r} returned {type(kept).__name__}, not a list"
        )
    if kept != [each for each in endpoints if each in kept]:
        raise AssertionError(
            f"filter {plugin.name!r} must return some of the endpoints it was given, in their"
            f" order; it returned {kept}"
        )
    return _names(kept)


def score_table(
    plugin: Scorer,
    request: LLMRequest,
    endpoints: Sequence[Endpoint],
    state: CycleState | None = None,
) -> dict[str, float]:
    """Return the score of each endpoint by name, in the order of ``endpoints``.

    A declared ``score_range`` or ``normalize`` has been applied.

    Raises:
        AssertionError: A score is NaN or outside its range.
        PluginContractError: The number of scores is not the number of endpoints.
    """
    result = make_profile(scorers=[plugin]).run(
        request, endpoints, CycleState() if state is None else state
    )
    if result.error is not None:
        raise result.error
    scores = {each.endpoint: each.score for each in result.endpoints}
    return {endpoint.name: scores[endpoint] for endpoint in endpoints}


def run_picker(
    plugin: Picker,
    scores: Mapping[str, float],
    request: LLMRequest | None = None,
    state: CycleState | None = None,
) -> list[str]:
    """Return the names of the endpoints that a picker picks, given total scores by name.

    Raises:
        AssertionError: It picked none, or one that it was not given.
    """
    scored = make_scored(scores)
    picked = plugin.pick(
        make_request() if request is None else request,
        scored,
        CycleState() if state is None else state,
    )
    if not picked or any(each not in scored for each in picked):
        raise AssertionError(
            f"picker {plugin.name!r} must return at least one of the endpoints it was given; it"
            f" returned {picked}"
        )
    return _names(each.endpoint for each in picked)


def run_profile(
    profile: SchedulerProfile,
    request: LLMRequest,
    endpoints: Sequence[Endpoint],
    state: CycleState | None = None,
) -> list[str]:
    """Return the names of the endpoints that a profile picks, best first.

    Raises:
        SchedulingError: The filters removed all endpoints; the text lists which filter removed
            which endpoints.
    """
    result = profile.run(request, endpoints, CycleState() if state is None else state)
    if result.error is not None:
        raise result.error
    return _names(each.endpoint for each in result.endpoints)


def check(plugin: type[Plugin]) -> None:
    """Check a plugin class as the endpoint picker does when it loads one.

    Raises:
        AssertionError: The class has errors; the text names each, its place and the fix.
    """
    # Late imports: epp.testing by itself imports only the standard library and epp.scheduling. The
    # check knows a layer's extension points once the layer is imported.
    import epp.data_layer.plugins  # noqa: PLC0415
    import epp.request_control.plugins  # noqa: F401, PLC0415
    from epp.config.plugin_checks import check_plugin_class  # noqa: PLC0415

    if faults := check_plugin_class(plugin):
        raise AssertionError("\n".join(faults))


def make_plugin(
    plugin: type[P],
    parameters: Mapping[str, Any] | None = None,
    *,
    name: str = "plugin-under-test",
    **services: Any,  # noqa: ANN401 - any further constructor arguments
) -> P:
    """Return a plugin instance as the endpoint picker makes it from a configuration.

    Parameters are read like those of a file (``1e3`` is a whole number, ``None`` the default). Only
    what a file may contain with a warning, such as a name in another case, is refused.

    Args:
        plugin: Class of the plugin.
        parameters: The content of ``parameters:`` in the configuration file.
        name: Name of the instance.
        services: Further arguments of the constructor, such as ``rng`` or ``clock``.

    Raises:
        ValueError: A parameter is unknown, missing or out of range.
    """
    import msgspec  # noqa: PLC0415 - late, as in check()

    from epp.config.plugin_checks import params_of  # noqa: PLC0415
    from epp.config.structs import read  # noqa: PLC0415

    given = dict(parameters or {})
    decoded = read(given, params_of(plugin))
    params = decoded.value
    if params is None:
        params = msgspec.convert(given, params_of(plugin))  # its error says the same
    # mypy: the base class declares no constructor, because services differ between plugins.
    return plugin(name, params, **services)  # type: ignore[call-arg]


def load_plugin(path: Path, class_name: str) -> type[Any]:
    """Return a class from a plugin file, loaded and checked as by the endpoint picker.

    Raises:
        ConfigError: The file cannot be loaded; the text names the reason and the line.
        AssertionError: The class has errors.
    """
    from epp.config.plugin_files import load_plugin_file  # noqa: PLC0415 - late, as in check()

    plugin = load_plugin_file(path, class_name).plugin
    check(plugin)
    return plugin


def _names(endpoints: Iterable[Endpoint]) -> list[str]:
    return [endpoint.name for endpoint in endpoints]
