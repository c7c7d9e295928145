"""What the gateway does to a request's headers before the endpoint picker sees them.

Headers are removed early, before any filter and before a route is chosen. They are set by a filter
of their own right before ext_proc, so that a format can use what filters before it have found, such
as the claims of a token in the dynamic metadata of jwt_authn. A route's own headers_to_remove and
headers_to_add act after ext_proc.
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
    """Return the early removal of a client's headers."""
    mutations = [mutation_rules.HeaderMutation(remove=name) for name in rules.removed]
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        early_header_mutation.HeaderMutation(mutations=mutations),
    )


def set_headers(rules: HeaderRules) -> header_mutation.HeaderMutation:
    """Return the filter that writes the gateway's own headers."""
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
