"""The place of a worker among the others, which its supervisor passes to it at its start."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "EPP_WORKER"
"""Environment variable with the place as JSON; only the supervisor sets it."""

RELAY_SOCKET: Final = "watches"
"""Name of the socket file where the supervisor answers lists and watches."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a worker, and its resources shared with the supervisor and other workers."""

    index: int
    """From 0."""
    count: int
    """Number of workers."""
    memory: int
    """Descriptor of the shared memory (:mod:`.flight_rows`)."""
    control: int
    """Descriptor of the stream to the supervisor (:mod:`.control`)."""
    folder: str
    """Directory of the sockets, which only this user can open."""
    grpc_port: int
    """Port of ext_proc."""
    is_port_shared: bool
    """Whether all workers listen on that port."""
    name: str
    """Name of the endpoint picker among replicas; the names of the workers begin with it."""
    has_relay: bool = False
    """Whether the supervisor watches the Kubernetes API for all workers."""

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> "Place | None":
        """Return the place that the supervisor gave, and remove it; None if there is none.

        Raises:
            ValueError: The variable is malformed.
        """
        text = environment.pop(VARIABLE, None)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(
                f"{VARIABLE} is set by `epp serve --workers` only; remove it: {error}"
            ) from error

    def at(self, control: int) -> "Place":
        """Return the same place with another stream to the supervisor."""
        return msgspec.structs.replace(self, control=control)

    def text(self) -> str:
        """Return the value of the variable."""
        return msgspec.json.encode(self).decode()

    def replica_name(self, index: int) -> str:
        """Return the name of a worker among replicas."""
        return f"{self.name}/{index}"

    @property
    def siblings(self) -> frozenset[str]:
        """Names of all workers among replicas."""
        return frozenset(map(self.replica_name, range(self.count)))

    @property
    def replica_folder(self) -> Path:
        """Where workers exchange the state of plugins, unless they do so with other replicas."""
        return Path(self.folder) / "replicas"

    @property
    def metrics_socket(self) -> Path:
        """Where the worker serves its pages."""
        return Path(self.folder) / f"pages-{self.index}"

    @property
    def health_socket(self) -> Path:
        """Where the worker serves its health."""
        return Path(self.folder) / f"health-{self.index}"

    @property
    def watch_relay(self) -> Path | None:
        """Socket file where the supervisor answers lists and watches; None if it does not."""
        return self.folder_path / RELAY_SOCKET if self.has_relay else None

    @property
    def folder_path(self) -> Path:
        """The directory of the sockets."""
        return Path(self.folder)
