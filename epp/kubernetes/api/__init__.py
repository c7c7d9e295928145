"""A client for the Kubernetes API, and reflectors: copies of objects that watches keep current.

This package knows nothing of endpoint pickers. :func:`load_connection` finds the API server and the
credentials, an :class:`ApiClient` reads and writes single objects, and each :class:`Reflector`
follows all objects of one resource. Objects are msgspec Structs that declare only the fields in
use; everything else is dropped while it is decoded.

Raises:
    ImportError: The extra ``kubernetes`` is not installed; the text says how to install it.
"""

try:
    import httpx2 as _httpx2  # noqa: F401
    import lightkube as _lightkube  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        f"Kubernetes needs the Python package {error.name}, which is not installed: "
        "pip install 'endpoint-picker[kubernetes]'",
        name=error.name,
    ) from error

from epp.kubernetes.api.client import ApiClient
from epp.kubernetes.api.connection import Connection, load_connection
from epp.kubernetes.api.errors import (
    ApiError,
    ConfigurationError,
    ConnectionFailedError,
    KubernetesApiError,
    UnreachableError,
)
from epp.kubernetes.api.events import Identified, ObjectDecoder, Undecodable
from epp.kubernetes.api.reflector import Reflector, ReflectorStatus
from epp.kubernetes.api.resource import HasMetadata, ObjectMeta, Resource, ServedResource

__all__ = [
    "ApiClient",
    "ApiError",
    "ConfigurationError",
    "Connection",
    "ConnectionFailedError",
    "HasMetadata",
    "Identified",
    "KubernetesApiError",
    "ObjectDecoder",
    "ObjectMeta",
    "Reflector",
    "ReflectorStatus",
    "Resource",
    "ServedResource",
    "Undecodable",
    "UnreachableError",
    "load_connection",
]
