"""Checks of data sources that need their instances, because they depend on parameters."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from epp.config.instances import Instance
from epp.config.plan import Plan
from epp.scheduling import Plugin


@runtime_checkable
class ChecksExtractors(Protocol):
    """A source that accepts some plugins as extractors only."""

    def extractor_fault(self, extractor: Plugin) -> str:
        """Return why ``extractor``, which the configuration lists, cannot be one; "" if it can."""


@runtime_checkable
class NeedsObjects(Protocol):
    """A plugin that is of little use without Kubernetes objects."""

    needs_objects: bool
    object_kind: object
    """The kind; None if it reads no objects."""


def check_sources(plan: Plan, instances: Mapping[str, Instance]) -> None:
    """Report the extractors that their source does not accept."""
    for place, entry in enumerate(plan.sources):
        source = instances.get(entry.plugin_ref)
        if source is None or not isinstance(source.plugin, ChecksExtractors):
            continue
        for below, each in enumerate(entry.extractors):
            if each.plugin_ref not in instances:
                continue  # its fault has been reported
            text = source.plugin.extractor_fault(instances[each.plugin_ref].plugin)
            if text:
                path = f"dataLayer.sources[{place}].extractors[{below}].pluginRef"
                plan.report(path, f"`{each.plugin_ref}` cannot be an extractor here: {text}")


def warn_of_objects(plan: Plan, instances: Mapping[str, Instance]) -> None:
    """Warn of plugins that need Kubernetes objects where the API is not used."""
    discovery = plan.config.file.data_layer.discovery
    if discovery is None:
        return
    for name, blueprint in plan.blueprints.items():
        plugin = instances[name].plugin if name in instances else None
        if (
            blueprint.path
            and isinstance(plugin, NeedsObjects)
            and plugin.needs_objects
            and plugin.object_kind is not None
        ):
            text = (
                f"`{name}` gets no Kubernetes objects: with `dataLayer.discovery`"
                f" (`{discovery.plugin}`) the Kubernetes API is not used"
            )
            plan.warn(blueprint.path, text)
