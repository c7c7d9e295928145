"""The ports and sockets of the workers, which the supervisor reserves."""

import socket

from epp.inputs import MAX_PORT
from epp.settings import ServeSettings
from epp.sockets import bind_shared
from epp.workers.errors import WorkerError


class ReservedPorts:
    """The ports of ext_proc, bound as long as the supervisor runs.

    A bound socket that does not listen gets no connections. It keeps the port while a worker is
    restarted, and makes the start fail if another program uses the port.

    Args:
        settings: Host and port, and whether the workers share it.

    Raises:
        WorkerError: A port is in use, or the host is not local.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.is_shared = settings.worker_ports == "shared" and settings.socket_file is None
        self._sockets: list[list[socket.socket]] = []
        if settings.socket_file is not None:
            self.numbers = [0] * settings.workers
            return
        count = 1 if self.is_shared else settings.workers
        first = settings.grpc_port
        if first and first + count - 1 > MAX_PORT:
            raise WorkerError(
                f"--workers {settings.workers}: ports from {first} on do not suffice; give a lower"
                " --grpc-port"
            )
        try:
            for index in range(count):
                self._sockets.append(bind_shared(settings.host, first and first + index))
        except OSError as error:
            self.close()
            port = first and first + len(self._sockets)
            raise WorkerError(
                f"cannot serve ext_proc on {settings.host} port {port}: {error.strerror}; stop the"
                " other process, or give another --grpc-port or --host"
            ) from error
        bound = [each[0].getsockname()[1] for each in self._sockets]
        self.numbers = bound * settings.workers if self.is_shared else bound
        """Port of each worker; 0 for socket files."""

    def close(self) -> None:
        """Release the ports."""
        for sockets in self._sockets:
            for each in sockets:
                each.close()
