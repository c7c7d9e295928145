"""Names of resources in the API, and the metadata that every object has."""

from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

import msgspec


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object in one version of its API group."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    """Name in paths and in RBAC rules, such as ``pods``; "" if only the kind is known."""
    kind: str

    @property
    def api_version(self) -> str:
        """``GROUP/VERSION``, or ``VERSION`` in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """``PLURAL.GROUP``, or ``PLURAL`` in the core group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def group_document(self) -> "Resource":
        """The document that lists the kinds of this version of the group (discovery)."""
        return Resource(self.group, self.version, "", "")

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Return the path of an object, or without ``name`` of the collection.

        Args:
            namespace: None for all namespaces and for resources without a namespace.
            name: The object.
            subresource: Such as ``status``; only with ``name``.
        """
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        if self.plural:
            parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


class _VersionDocument(Resource):
    """The document with the version of the API server, which is in no group."""

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        return "/version"


VERSION_DOCUMENT: Final = _VersionDocument("", "", "version", "")


@dataclass(frozen=True, slots=True)
class ServedResource:
    """A kind of object as an API server has it."""

    resource: Resource
    is_namespaced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """A call, in the terms of errors and RBAC rules."""

    verb: str
    """``get``, ``list``, ``watch``, ``create``, ``update``, ``patch`` or ``delete``."""
    resource: Resource
    namespace: str | None
    name: str | None = None
    subresource: str | None = None

    @property
    def path(self) -> str:
        """Path of the object or of the collection."""
        return self.resource.path(self.namespace, self.name, self.subresource)


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """The metadata that the client and the reflector use; extend it as needed.

    Subclasses that hold trees of strings, such as labels, may inherit ``gc=False``.
    """

    name: str = ""
    namespace: str = ""
    """Empty for resources without a namespace."""
    uid: str = ""
    resource_version: str = ""


class HasMetadata(Protocol):
    """A decoded object: a Struct with the field ``metadata``."""

    @property
    def metadata(self) -> ObjectMeta:
        """The metadata; a subclass may have more fields."""
