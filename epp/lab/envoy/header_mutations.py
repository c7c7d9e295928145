"""Changes to the headers of a request before it reaches the endpoint picker.

Headers are removed before the first filter and before the route is chosen. They are set by a
header_mutation filter directly before ext_proc, so that format strings can use the results of
earlier filters, such as JWT claims in the dynamic metadata of jwt_authn. The fields
headers_to_remove and headers_to_add of a route would take effect only after ext_proc.
"""

from epp.lab.envoy._data_plane import (
    core,
    early_header_mutation,
    extension,
    header_mutation,
    mutation_rules,
)
from epp.lab.envoy.client_headers import HeaderRules


def early_removal(rules: HeaderRules) -> core.TypedExtensionConfig:
    """Return the extension that removes client headers before the first filter."""
    mutations = [mutation_rules.HeaderMutation(remove=name) for name in rules.removed]
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        early_header_mutation.HeaderMutation(mutations=mutations),
    )


def set_headers(rules: HeaderRules) -> header_mutation.HeaderMutation:
    """Return the filter that sets headers."""
    overwrite = core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    mutations = [
        mutation_rules.HeaderMutation(
            append=core.HeaderValueOption(
                header=core.HeaderValue(key=each.name, value=each.value), append_action=overwrite
            )
        )
        for each in rules.to_set
    ]
    return header_mutation.HeaderMutation(
        mutations=header_mutation.Mutations(request_mutations=mutations)
    )
