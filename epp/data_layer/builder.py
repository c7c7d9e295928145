"""The graph builder with what plugins may ask for and what the configuration layer cannot name.

Also what the command line asks of it beside the configuration: discoveries of its own.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from epp.config import GraphBuilder, PluginRegistry
from epp.data_layer.http_client import page_opener
from epp.data_layer.plugins import DataSource, EndpointDiscovery, Extractor
from epp.data_layer.static import StaticDiscovery


def make_builder(seed: int | None = None, registry: PluginRegistry | None = None) -> GraphBuilder:
    """Return the builder of this process's plugin graphs.

    Args:
        seed: Makes every random choice repeatable.
        registry: Finds plugin classes; by default all that are installed.

    Raises:
        ConfigError: Two installed plugins have the same type.
    """
    open_page = page_opener(time.monotonic)
    services: dict[str, Callable[[str], Any]] = {
        "rng": lambda name: make_random(seed, name),
        "clock": lambda _: time.monotonic,
        "open_page": lambda _: open_page,
    }
    return GraphBuilder(
        registry or PluginRegistry.from_entry_points(),
        services=services,
        kinds={"discovery": EndpointDiscovery, "source": DataSource, "extractor": Extractor},
    )


def make_random(seed: int | None, name: str) -> random.Random:
    """Return the random generator of what has that name, so that each draws apart."""
    return random.Random(None if seed is None else f"{seed}/{name}")  # noqa: S311 - no secrets


def fixed_discoveries(
    builder: GraphBuilder, endpoints: Sequence[str], endpoints_file: str | None
) -> list[EndpointDiscovery]:
    """Return the discoveries that the command line asks for.

    Args:
        builder: Makes the plugin that follows a file.
        endpoints: Values of ``--endpoint``.
        endpoints_file: Value of ``--endpoints-file``.

    Raises:
        DiscoveryError: One of ``endpoints`` has the wrong form.
    """
    discoveries: list[EndpointDiscovery] = []
    if endpoints_file is not None:
        # Like --endpoint's, a name that no plugin of a configuration has: the store goes by it.
        made = builder.make("file-discovery", "--endpoints-file", {"path": endpoints_file})
        assert isinstance(made, EndpointDiscovery)  # noqa: S101 - it is installed with us
        discoveries.append(made)
    if endpoints:
        discoveries.append(StaticDiscovery(endpoints))
    return discoveries
