"""Checks that the schema cannot express: unique names, references, unsupported features.

The checks read the plain values of a file, not the typed ones, so that they also cover the valid
parts of a file that fails the schema. They skip parts of the wrong type, which
:mod:`epp.config.structs` has already reported.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from epp.config.fault_texts import Fault, suggestion
from epp.config.schema import API_VERSION, API_VERSION_1, DEPRECATED_API_VERSION
from epp.config.structs import Reference
from epp.config.supported import (
    DEFAULT_DETECTOR,
    DEFAULT_EVICTION_POLICIES,
    DEFAULT_MEMBERS,
    DEFAULT_POLICIES,
    DEPRECATED_TYPES,
    FEATURE_GATES,
    OLD_TYPES,
)

Raw = Mapping[str, Any]

# What the Go EPP accepts as a boolean (strconv.ParseBool), in lower case.
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "true"), True),
    **dict.fromkeys(("0", "f", "false"), False),
}
_NO_PROFILES = frozenset({"default"})
_GATED = "is not in effect: the feature gate `flowControl` is off"


def faults(file: Raw, references: Iterable[Reference]) -> Iterator[Fault]:
    """Yield the faults of ``file`` that the schema does not cover.

    Args:
        file: The plain values of the whole file.
        references: The names in it that refer to something.
    """
    types: dict[str, str] = {}
    for path, entry in _entries(file, "plugins"):
        name = entry.get("name") or entry.get("type")
        if isinstance(name, str) and name in types:
            field = "name" if entry.get("name") else "type"
            yield Fault(f"{path}.{field}", f"another plugin is named `{name}`; names are unique")
        elif isinstance(name, str):
            types[name] = str(entry.get("type"))
    profiles: set[str] = set()
    for path, entry in _entries(file, "schedulingProfiles"):
        name = entry.get("name")
        if isinstance(name, str) and name in profiles:
            yield Fault(f"{path}.name", f"another profile is named `{name}`; names are unique")
        elif isinstance(name, str):
            profiles.add(name)
    yield from _unknown_names(references, types, profiles or _NO_PROFILES)
    yield from _gates(file)
    yield from _detectors(file, types)
    yield from _shadows(file, profiles or _NO_PROFILES)
    yield from _actions(file)
    yield from _discovery(file)
    syncer = _section(file, "dataLayer").get("crossReplicaSyncerPluginRef")
    if isinstance(syncer, str) and syncer in types:
        yield Fault(
            "dataLayer.crossReplicaSyncerPluginRef",
            "no plugin syncs replicas; remove it, and use --replica-state",
        )


def warnings(file: Raw) -> Iterator[Fault]:
    """Yield a warning for each field of a valid ``file`` that is deprecated or has no effect."""
    if file.get("apiVersion") == DEPRECATED_API_VERSION:
        yield Fault("apiVersion", f"is deprecated; write `{API_VERSION}`")
    for path, entry in _entries(file, "plugins"):
        if (new := OLD_TYPES.get(entry["type"])) is not None:
            yield Fault(f"{path}.type", f"type `{entry['type']}` is deprecated; use `{new}`")
        elif (advice := DEPRECATED_TYPES.get(entry["type"])) is not None:
            yield Fault(f"{path}.type", f"type `{entry['type']}` is deprecated; {advice}")
    if file.get("parser") is not None:
        yield Fault("parser", "is deprecated; use `requestHandler.parsers`", on_key=True)
    if _section(file, "dataLayer").get("peerDiscovery") is not None:
        yield Fault("dataLayer.peerDiscovery", "has no effect", on_key=True)
    if file.get("saturationDetector") is not None:
        text = "is deprecated; use `flowControl.saturationDetector`"
        yield Fault("saturationDetector", text, on_key=True)
    for band in ("defaultPriorityBand", "defaultNegativePriorityBand"):
        if _section(_section(file, "flowControl"), band).get("priority") is not None:
            yield Fault(f"flowControl.{band}.priority", "has no effect in a template", on_key=True)
    yield from _gated(file)


def _gated(file: Raw) -> Iterator[Fault]:
    """Yield the fields that have no effect because the feature gate `flowControl` is off."""
    if is_gate_on("flowControl", [text for _, text in _gate_texts(file)]):
        return
    for field, value in _section(file, "flowControl").items():
        if field != "saturationDetector" and value not in (None, [], "", False):
            yield Fault(f"flowControl.{field}", _GATED, on_key=True)
    if _section(file, "extensions").get("flowControl"):
        yield Fault("extensions.flowControl", _GATED, on_key=True)
    sessions = _section(_section(file, "extensions"), "sessions")
    if sessions.get("plugins") or sessions.get("actions") not in (None, ["allocate"]):
        yield Fault("extensions.sessions", _GATED, on_key=True)


def is_gate_on(name: str, texts: Iterable[str]) -> bool:
    """Return whether the feature gate ``name`` is on; the last of several entries wins."""
    is_on = FEATURE_GATES[name]
    for text in texts:
        key, _, value = text.partition("=")
        if key == name:
            is_on = bool(_boolean(value))
    return is_on


def _unknown_names(
    references: Iterable[Reference], plugins: Mapping[str, str], profiles: Iterable[str]
) -> Iterator[Fault]:
    known = {
        "plugin": frozenset(plugins),
        "eviction policy": frozenset(plugins) | DEFAULT_EVICTION_POLICIES,
        "member": frozenset(plugins) | DEFAULT_MEMBERS,
        "policy": frozenset(plugins) | DEFAULT_POLICIES,
        "profile": frozenset(profiles),
    }
    for each in references:
        if each.name not in known[each.kind]:
            kind = "plugin" if each.kind == "member" else each.kind
            hint = suggestion(each.name, known[kind], "defined")
            if kind == "policy":
                hint = _for_defaults(hint)
            yield Fault(each.path, f"no {kind} is named `{each.name}`; {hint}", on_key=each.on_key)


def _for_defaults(hint: str) -> str:
    """Add to ``hint`` that names other than the suggested ones need an entry in `plugins`."""
    is_question = hint.endswith("?")
    return f"{hint}{' Others' if is_question else '; others'} need an entry in `plugins`"


def _gates(file: Raw) -> Iterator[Fault]:
    for path, text in _gate_texts(file):
        name, given, value = text.partition("=")
        if name not in FEATURE_GATES:
            hint = suggestion(name, FEATURE_GATES)
            yield Fault(path, f"unknown feature gate `{name}`; {hint}")
        elif given and _boolean(value) is None:
            yield Fault(path, f"feature gate `{name}` is `{value}`; it must be true or false")


def _boolean(value: str) -> bool | None:
    """Return the value of a feature gate; None if it is not a boolean."""
    return _BOOLEANS.get(value.strip().lower()) if value else True


def _gate_texts(file: Raw) -> Iterator[tuple[str, str]]:
    texts = file.get("featureGates")
    for index, text in enumerate(texts if isinstance(texts, list) else ()):
        if isinstance(text, str):
            yield f"featureGates[{index}]", text


def _detectors(file: Raw, types: Mapping[str, str]) -> Iterator[Fault]:
    """Check that the saturation detector is defined; the default one needs no entry.

    The section at the top level is deprecated.
    """
    for path, section in (
        ("saturationDetector", _section(file, "saturationDetector")),
        (
            "flowControl.saturationDetector",
            _section(_section(file, "flowControl"), "saturationDetector"),
        ),
    ):
        ref = section.get("pluginRef")
        if isinstance(ref, str) and ref and ref not in types and ref != DEFAULT_DETECTOR:
            hint = _for_defaults(suggestion(ref, [*types, DEFAULT_DETECTOR], "defined"))
            yield Fault(f"{path}.pluginRef", f"no plugin is named `{ref}`; {hint}")


def _shadows(file: Raw, profiles: Iterable[str]) -> Iterator[Fault]:
    seen: set[str] = set()
    for path, entry in _entries(_section(file, "extensions"), "shadow", "extensions.shadow"):
        name = entry.get("profile")
        if not isinstance(name, str):
            continue
        if name in seen:
            yield Fault(f"{path}.profile", f"profile `{name}` is a shadow already")
        seen.add(name)
    if seen and seen.issuperset(profiles):
        yield Fault(
            "extensions.shadow",
            "every profile is a shadow; leave one that decides",
            on_key=True,
        )


def _actions(file: Raw) -> Iterator[Fault]:
    path = "extensions.sessions.actions"
    actions = _section(_section(file, "extensions"), "sessions").get("actions")
    if not isinstance(actions, list):
        return
    for place, name in enumerate(actions):
        if name in actions[:place]:
            yield Fault(f"{path}[{place}]", f"action `{name}` is listed twice; once is enough")
    if "allocate" not in actions:
        yield Fault(path, "`allocate` is missing; without it no queued request is ever dispatched")


def _discovery(file: Raw) -> Iterator[Fault]:
    section = _section(file, "dataLayer").get("discovery")
    if not isinstance(section, Mapping):
        return
    path = "dataLayer.discovery"
    if section.get("pluginRef") is None and section.get("endpoints") is None:
        yield Fault(path, "required field `pluginRef` is missing")
    elif section.get("endpoints") is None:
        return
    elif section.get("pluginRef") is not None:
        text = "`pluginRef` and `endpoints` name the plugin twice; leave one"
        yield Fault(f"{path}.endpoints", text, on_key=True)
    elif file.get("apiVersion") != API_VERSION_1:
        text = f"`endpoints` is of `apiVersion: {API_VERSION_1}`; give `pluginRef` here"
        yield Fault(f"{path}.endpoints", text, on_key=True)


def _section(file: Raw, name: str) -> Raw:
    section = file.get(name)
    return section if isinstance(section, Mapping) else {}


def _entries(file: Raw, name: str, path: str = "") -> Iterator[tuple[str, Raw]]:
    """Yield the mappings in a list, each with its path."""
    entries = file.get(name)
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, Mapping):
            yield f"{path or name}[{index}]", entry
