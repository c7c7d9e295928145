"""Checks of the model servers of a pool against each other and against the prefix plugins."""

from collections.abc import Hashable, Iterator, Mapping
from math import ceil
from typing import Final

from epp.config import PluginGraph
from epp.doctor.check import Check
from epp.doctor.deployment import Deployment, parameters_of, place_of
from epp.doctor.deployment_checks import give
from epp.doctor.findings import Finding, note, set_to, warning

_BLOCK_SIZE: Final = "blockSizeTokens"
_AUTO_TUNE: Final = "autoTune"
_LEAST_TOKENS: Final = 64
"""Smaller block sizes count as this, because they would make the prefix index large."""


def _models(deployment: Deployment) -> Iterator[Finding]:
    lists = {server.name: server.models for server in deployment.responding_servers}
    known = {name: models for name, models in lists.items() if models is not None}
    for name in lists.keys() - known.keys():
        yield warning(
            name,
            "/v1/models is no list of models",
            "It is not known whether it serves what the others do",
            "See that it is a server of the OpenAI API",
        )
    everything = frozenset().union(*known.values())
    lacking = {name: everything - models for name, models in known.items() if everything - models}
    for name, models in sorted(lacking.items()):
        yield warning(
            name,
            f"does not serve {', '.join(sorted(models))}, which others of the pool do",
            "A request for it may be sent there, and fails with 404",
            "Serve the same models and adapters on all servers; adapters that are loaded on"
            " demand need lora-affinity-scorer and an endpoint filter",
        )
    if everything and not lacking:
        yield note("", f"all serve {', '.join(sorted(everything))}")


def _prefix_caching(deployment: Deployment) -> Iterator[Finding]:
    plugins = _prefix_plugins(deployment.graph)
    for server in deployment.responding_servers:
        if server.caches_prefixes is False and plugins:
            yield warning(
                f"{server.name} {server.address}",
                f"prefix caching is off, and {', '.join(plugins)} predicts hits in its cache",
                "Requests are sent to it for a prefix that it has not kept",
                "Start vLLM with --enable-prefix-caching, or remove the prefix scorer",
            )
        elif server.caches_prefixes is False:
            yield note(f"{server.name} {server.address}", "prefix caching is off")


def _block_size(deployment: Deployment) -> Iterator[Finding]:
    sizes = {server.name: server.block_size for server in deployment.responding_servers}
    known = {name: size for name, size in sizes.items() if size}
    if len(set(known.values())) > 1:
        yield warning(
            "",
            f"block sizes differ: {_listed(known)}",
            "A prompt is hashed once for each size, and matches count in the smallest",
            "Start all servers of the pool with the same --block-size",
        )
    if deployment.graph is None:
        return
    for name, parameters in _prefix_plugins(deployment.graph).items():
        configured = parameters[_BLOCK_SIZE]
        if parameters.get(_AUTO_TUNE) or not isinstance(configured, int):
            continue
        odd = sorted({size for size in known.values() if configured % size})
        if odd:
            yield from _mismatch(deployment.graph, name, configured, odd)


def _mismatch(
    graph: PluginGraph, name: str, configured: int, sizes: list[int]
) -> Iterator[Finding]:
    place = place_of(graph, name)
    fix, mend = None, f"Set {_BLOCK_SIZE} to a multiple of the servers' block size"
    if _AUTO_TUNE in parameters_of(graph)[name]:
        mend = f"Set {_AUTO_TUNE}: true, which takes the servers' block size"
        fix = set_to(f"{place}.parameters.{_AUTO_TUNE}", True, is_of_config=True)
    elif len(sizes) == 1:
        better = sizes[0] * max(1, ceil(_LEAST_TOKENS / sizes[0]))
        mend = f"Set {_BLOCK_SIZE}: {better}"
        fix = set_to(f"{place}.parameters.{_BLOCK_SIZE}", better, is_of_config=True)
    yield warning(
        f"{place or name}.parameters.{_BLOCK_SIZE}",
        f"{configured}, and the servers cache blocks of {', '.join(map(str, sizes))} tokens",
        "A part of a block counts as a hit, though a server keeps whole blocks only",
        mend,
        fix if place else None,
    )


def _cache_size(deployment: Deployment) -> Iterator[Finding]:
    blocks = {server.name: server.blocks for server in deployment.responding_servers}
    known = {name: count for name, count in blocks.items() if count}
    if len(set(known.values())) > 1:
        yield note(
            "",
            f"the KV caches have different sizes, in blocks: {_listed(known)}. Usage is compared"
            " as a fraction: a small cache fills up with fewer requests",
        )


def _prefix_plugins(graph: PluginGraph | None) -> Mapping[str, Mapping[str, object]]:
    """Return the parameters of the plugins that hash prompts in blocks, by name."""
    if graph is None:
        return {}
    return {name: each for name, each in parameters_of(graph).items() if _BLOCK_SIZE in each}


def _listed(values: Mapping[str, Hashable]) -> str:
    kinds = sorted({str(value) for value in values.values()}, key=lambda text: (len(text), text))
    parts = []
    for kind in kinds:
        names = sorted(name for name, value in values.items() if str(value) == kind)
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004
        parts.append(f"{kind} of {shown}")
    return "; ".join(parts)


def _has_servers(deployment: Deployment) -> bool:
    return deployment.servers is not None


CHECKS = (
    Check("server-models", _models, "all serve the same models", _has_servers, give.ENDPOINTS),
    Check("prefix-caching", _prefix_caching, "prefix caches are on", _has_servers, give.ENDPOINTS),
    Check(
        "block-size",
        _block_size,
        "blocks of prefix plugins are those of the servers",
        _has_servers,
        give.ENDPOINTS,
    ),
    Check("cache-size", _cache_size, "caches have one size", _has_servers, give.ENDPOINTS),
)
