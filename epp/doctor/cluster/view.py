"""Records of an API server's responses."""

from dataclasses import dataclass
from enum import Enum


class Need(Enum):
    """The consequence of a missing right or kind."""

    SERVE = "serve"
    """No request is served."""
    FEATURE = "feature"
    """A feature is missing."""


@dataclass(frozen=True, slots=True)
class Access:
    """A call of the endpoint picker, and whether RBAC allows it."""

    group: str
    """API group; "" for the core group."""
    resource: str
    """Plural name with the subresource: ``pods``, ``inferenceobjectives/status``."""
    verb: str
    namespace: str
    """Namespace; "" for the whole cluster."""
    need: Need
    without: str
    """The consequence if the call is refused."""
    allowed: bool
    reason: str = ""
    """Why the call is refused, if the API server says so."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, and whether the API server serves it."""

    name: str
    """``PLURAL.GROUP (VERSION)``."""
    alternatives: str
    """Common name of the kinds of which one is needed, such as ``InferencePool``."""
    need: Need
    without: str
    is_served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster as its API server describes it."""

    server: str
    """URL of the API server."""
    account: str
    """Account whose rights were queried; "" for that of the doctor's own credentials."""
    version: str = ""
    """Version such as ``v1.34.1``; "" if unknown."""
    kinds: tuple[Kind, ...] = ()
    access: tuple[Access, ...] = ()
    fault: str = ""
    """Why the API server could not be queried; "" if it could."""
