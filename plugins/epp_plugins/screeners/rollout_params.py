"""Parameters of ``disaggregatedset-rollout-screener``."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from epp_plugins.label_selectors import matcher_of_text

_REVISION_LABEL: Final = "disaggregatedset.x-k8s.io/revision"
_ROLE_LABEL: Final = "disaggregatedset.x-k8s.io/role"

_HEADER_NAME: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")  # RFC 9110 §5.6.2

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Selects the pods that count."""

    label_selector: _Text
    """Label selector as in ``kubectl --selector``: ``a=b,c!=d,e in (f,g),!h``."""

    def __post_init__(self) -> None:
        matcher_of_text(self.label_selector)


class HeaderSelector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A header of requests and responses, and the corresponding label of endpoints."""

    name: _Text
    """Name of the selector in metrics."""
    header_name: _Text
    """The header; case-insensitive."""
    label_key: _Text
    """The label."""
    mode: Literal["strict", "prefer"]
    """``strict``: endpoints with another value are removed; ``prefer``: they are not."""

    def __post_init__(self) -> None:
        if not _HEADER_NAME.fullmatch(self.header_name):
            raise ValueError(f"headerName {self.header_name!r} is no name of a header")


class RequiredRoles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The roles of a complete revision."""

    values: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]
    """Values of the role label, without duplicates."""

    def __post_init__(self) -> None:
        _refuse_duplicates("values", self.values)


class RevisionGating(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How a revision is chosen."""

    mode: Literal["sum", "max-role", "disabled"]
    """Definition of a revision's weight; ``disabled`` to choose no revision."""
    revision_label_key: str = _REVISION_LABEL
    """Label with the revision of a pod; "" stands for the default."""
    role_label_key: str = _ROLE_LABEL
    """Label with the role of a pod; "" stands for the default."""
    require_roles: RequiredRoles | None = None
    """The roles of a complete revision; required unless disabled."""

    def __post_init__(self) -> None:
        if self.mode != "disabled" and self.require_roles is None:
            raise ValueError(
                f"mode {self.mode!r} needs requireRoles, such as {{values: [prefill, decode]}}"
            )

    @property
    def revision_label(self) -> str:
        """Label with the revision of a pod."""
        return self.revision_label_key or _REVISION_LABEL

    @property
    def role_label(self) -> str:
        """Label with the role of a pod."""
        return self.role_label_key or _ROLE_LABEL

    @property
    def roles(self) -> tuple[str, ...]:
        """The required roles; () if no revision is chosen."""
        if self.mode == "disabled" or self.require_roles is None:
            return ()
        return self.require_roles.values


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``disaggregatedset-rollout-screener``."""

    scope: Scope
    """Selects the pods that count."""
    revision_gating: RevisionGating
    """How a revision is chosen."""
    header_selectors: tuple[HeaderSelector, ...] = ()
    """Headers that choose endpoints by a label, and are set in the response."""

    def __post_init__(self) -> None:
        _refuse_duplicates("headerSelectors: name", (each.name for each in self.header_selectors))
        headers = (each.header_name.lower() for each in self.header_selectors)
        _refuse_duplicates("headerSelectors: headerName", headers)


def _refuse_duplicates(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{what} {name!r} is there twice; keep one")
