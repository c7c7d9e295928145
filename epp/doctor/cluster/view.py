"""The answers of an API server."""

from dataclasses import dataclass
from enum import Enum


class Need(Enum):
    """What happens without a right or a kind."""

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
    """In the plural, with its subresource: ``pods``, ``inferenceobjectives/status``."""
    verb: str
    namespace: str
    """"" for the whole cluster."""
    need: Need
    without: str
    """What comes of it if the call is refused."""
    allowed: bool
    reason: str = ""
    """Why it is refused, if the API server says so."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, and whether the API server has it."""

    name: str
    """``PLURAL.GROUP (VERSION)``."""
    alternatives: str
    """What the kinds of which one is needed have in common, such as ``InferencePool``."""
    need: Need
    without: str
    is_served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster."""

    server: str
    """URL of the API server."""
    account: str
    """Whose rights were asked for; "" for those of the doctor's own credentials."""
    version: str = ""
    """Such as ``v1.34.1``; "" if unknown."""
    kinds: tuple[Kind, ...] = ()
    access: tuple[Access, ...] = ()
    fault: str = ""
    """Why it could not be asked; "" if it could."""
