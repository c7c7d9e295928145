"""Client headers that are removed before the endpoint picker is called."""

from collections.abc import Iterator

from epp.doctor.check import Check
from epp.doctor.clusters import reads_header
from epp.doctor.findings import Finding, Fix, error, set_to, warning
from epp.doctor.gateway import Gateway
from epp.doctor.names import DESTINATION, POLICY_HEADERS, STAGE_HEADERS
from epp.doctor.routes import Manager
from epp.doctor.tree import ConfigNode

_KNOWN = (DESTINATION, *STAGE_HEADERS, *POLICY_HEADERS)
_APPEND_ACTIONS = (
    "APPEND_IF_EXISTS_OR_ADD",
    "ADD_IF_ABSENT",
    "OVERWRITE_IF_EXISTS_OR_ADD",
    "OVERWRITE_IF_EXISTS",
)
_OVERWRITES = frozenset(_APPEND_ACTIONS[2:])
_EARLY = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
_MUTATION = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"


def removed_before(manager: Manager, last: ConfigNode | None) -> frozenset[str]:
    """Return the client headers that are removed before filter ``last`` runs; None for the router.

    Covers early_header_mutation_extensions and the header_mutation filter, but not Lua or Wasm.
    """
    removed: set[str] = set()
    for extension in manager.node.get("early_header_mutation_extensions").items():
        removed.update(_removed(extension.typed_config().unwrapped().get("mutations")))
    for item in manager.filters:
        if last is not None and item == last:
            break
        config = item.typed_config()
        if config.type_name() == _MUTATION and not item.get("disabled").flag():
            removed.update(_removed(config.unwrapped().get("mutations", "request_mutations")))
    return frozenset(removed)


def _removed(mutations: ConfigNode) -> Iterator[str]:
    for mutation in mutations.items():
        yield mutation.get("remove").text().lower()
        matcher = mutation.get("remove_on_match", "key_matcher")
        yield matcher.get("exact").text().lower()
        if prefix := matcher.get("prefix").text().lower():
            yield from (each for each in _KNOWN if each.startswith(prefix))
        written = mutation.get("append")
        if written.get("append_action").choice(*_APPEND_ACTIONS) in _OVERWRITES:
            yield written.get("header", "key").text().lower()


def _client_headers(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        removed = removed_before(use.manager, use.filter)
        place = use.manager.node.get("early_header_mutation_extensions").path
        pool = gateway.pool_of(use)
        if DESTINATION not in removed and (not pool or reads_header(pool)):
            level = error if use.fails_open else warning
            yield level(
                place,
                f"a client's own {DESTINATION} is not removed before ext_proc",
                "When the EPP fails, the client says where Envoy goes"
                if use.fails_open
                else "The EPP overwrites it, but where it is not asked the client steers Envoy",
                _removal(DESTINATION),
                _removing(use.manager, DESTINATION),
            )
        left = [each for each in STAGE_HEADERS if each not in removed]
        if use.fails_open and left:
            yield warning(
                place,
                f"a client's own {', '.join(left)} not removed before ext_proc",
                "When the EPP fails, which takes them off, the client names servers that a model"
                " server's sidecar calls",
                _removal(*left),
                _removing(use.manager, *left),
            )


def _removing(manager: Manager, *names: str) -> Fix:
    """Return the fix that removes headers, in an extension after the existing ones."""
    place = manager.node.get("early_header_mutation_extensions")
    config = {"@type": f"type.googleapis.com/{_EARLY}", "mutations": [{"remove": n} for n in names]}
    added = {"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": config}
    return set_to(place.path, [*(each.value for each in place.items()), added])


def _removal(*names: str) -> str:
    mutations = ", ".join(f"{{remove: {name}}}" for name in names)
    return (
        "Set early_header_mutation_extensions of the connection manager to"
        f" envoy.http.early_header_mutation.header_mutation with mutations: [{mutations}]"
        " (a route's request_headers_to_remove acts after ext_proc and takes the pick)"
    )


CHECKS = (
    Check(
        "client-headers", _client_headers, "a client cannot name the endpoint in the EPP's stead"
    ),
)
