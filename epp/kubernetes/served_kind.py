"""Follow a kind of object while the API server has it: its CRD may be installed later."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import structlog

from epp.kubernetes.api import (
    ApiClient,
    ApiError,
    HasMetadata,
    Identified,
    KubernetesApiError,
    ObjectDecoder,
    Reflector,
    Resource,
    Undecodable,
)

_log = structlog.get_logger(__name__)

T = TypeVar("T", bound=HasMetadata)

LOOK_SECONDS: Final = 30.0
"""Mean time between two requests for the kinds that the API server has."""
_RETRY_SECONDS: Final = 2.0
"""The same before the first success."""
_NOT_FOUND: Final = 404

_NO_OBJECTS: Final[Mapping[Any, Any]] = MappingProxyType({})


class ServedKind(Generic[T]):
    """All objects of a kind in a namespace, none while the API server does not have the kind.

    Args:
        client: The API server.
        resource: The kind; its plural comes from the API server.
        type_: Struct to decode objects into.
        changed: Called after changes of ``objects``, ``undecodable`` and ``is_known``.
        fallback: Less strict Struct, for objects that cannot be decoded into ``type_``.
        namespace: The namespace; ignored for a kind whose objects have none.
        field_selector: Such as ``metadata.name=x``; empty for all.
        remedy: What to do if the API server does not have the kind, which is then a warning; empty
            if the kind is optional.
        sleep: Waits between two looks.
        rng: Source of jitter.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: Resource,
        type_: type[T],
        *,
        changed: Callable[[], None],
        fallback: type[HasMetadata] = Identified,
        namespace: str,
        field_selector: str = "",
        remedy: str = "",
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.resource = resource
        """The kind, as the API server has it once it has been found."""
        self.is_served: bool | None = None
        """Whether the API server has the kind; None if it has not answered yet."""
        self.reflector: Reflector[T] | None = None
        """Follows the objects while the kind is served."""
        self._client = client
        self._type = type_
        self._changed = changed
        self._fallback = fallback
        self._namespace: str | None = namespace
        self._field_selector = field_selector
        self._remedy = remedy
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._fault: str = ""

    @property
    def objects(self) -> Mapping[tuple[str, str], T]:
        """The objects by namespace and name."""
        return _NO_OBJECTS if self.reflector is None else self.reflector.objects

    @property
    def undecodable(self) -> Mapping[tuple[str, str], Undecodable]:
        """The objects that do not have the declared form, by namespace and name."""
        return _NO_OBJECTS if self.reflector is None else self.reflector.undecodable

    @property
    def is_known(self) -> bool:
        """Whether ``objects`` is a copy of those of the API server, perhaps an outdated one."""
        if self.reflector is None:
            return self.is_served is False
        return self.reflector.status.is_synced

    async def run(self) -> None:
        """Follow the kind until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            following: asyncio.Task[None] | None = None
            while True:
                is_served = await self._look()
                if is_served and following is None:
                    self.reflector = self._make_reflector()
                    following = tasks.create_task(self.reflector.run())
                elif not is_served and following is not None:
                    following.cancel()
                    following = self.reflector = None
                if is_served is not self.is_served:
                    self.is_served = is_served
                    self._changed()
                mean = _RETRY_SECONDS if is_served is None else LOOK_SECONDS
                await self._sleep(mean * self._rng.uniform(0.5, 1.5))

    def _make_reflector(self) -> Reflector[T]:
        return Reflector(
            self._client,
            self.resource,
            ObjectDecoder(self._type, self._fallback),
            changed=self._changed,
            namespace=self._namespace,
            field_selector=self._field_selector,
            sleep=self._sleep,
            rng=self._rng,
        )

    async def _look(self) -> bool | None:
        """Return whether the kind is served; the last known state if that cannot be found out."""
        try:
            found = await self._client.find(self.resource)
        except KubernetesApiError as error:
            if not self._fault:
                self._fault = str(error)
                _log.warning("kinds of the API server unknown", error=self._fault)
            return self.is_served
        self._fault = ""
        if found is not None:
            self.resource = found.resource
            if not found.is_namespaced:
                self._namespace = None
            return True
        if self.reflector is not None and not _is_unreadable(self.reflector):
            return True
        if self.is_served is not False:
            write, remedy = _log.info, {}
            if self._remedy:
                write, remedy = _log.warning, {"remedy": self._remedy}
            write(
                "the API server does not have a kind; it is used as soon as it is installed",
                kind=self.resource.kind,
                api_version=self.resource.api_version,
                **remedy,
            )
        return False


def _is_unreadable(reflector: Reflector[T]) -> bool:
    """Whether the objects of a kind that is not listed cannot be read either.

    A kind may be missing from the list for a moment, if one of several API servers has just
    started.
    """
    fault = reflector.status.fault
    return isinstance(fault, ApiError) and fault.status == _NOT_FOUND
