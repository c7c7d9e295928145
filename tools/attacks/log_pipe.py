"""Read end of the endpoint picker's log pipe: it measures the log, or stops reading for a while."""

import asyncio
import contextlib
import os

MAX_FAULTS = 10
SHOWN_CHARS = 300
_READ_BYTES = 1 << 20
_FAULTS = (b'"level":"error"', b'"level":"critical"', b'"level": "error"', b'"level": "critical"')


class LogPipe:
    """A pipe; reading begins with :meth:`read_on`."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        """Descriptor to which the process writes."""
        os.set_blocking(self._reader, False)
        self._rest = b""
        self._line_bytes = 0
        self.bytes = 0
        self.lines = 0
        self.longest_line_bytes = 0
        self.faults: list[str] = []
        """The first lines with a level above warning, truncated."""

    def close_writer(self) -> None:
        """Close this process's copy of the write end."""
        os.close(self.writer)

    def read_on(self) -> None:
        """Start or resume reading."""
        asyncio.get_running_loop().add_reader(self._reader, self._read)

    def pause(self) -> None:
        """Stop reading until :meth:`read_on`."""
        asyncio.get_running_loop().remove_reader(self._reader)

    def close(self) -> None:
        """Close the read end; writers get an error from then on."""
        self.pause()
        os.close(self._reader)

    def _read(self) -> None:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._reader, _READ_BYTES)
            if not data:
                self.pause()
        self.bytes += len(data)
        first, *more = data.split(b"\n")
        self._extend(first)
        for piece in more:
            self._end_line()
            self._extend(piece)

    def _extend(self, piece: bytes) -> None:
        self._line_bytes += len(piece)
        # Keep only the beginning of a line that is too long.
        if len(self._rest) < _READ_BYTES:
            self._rest += piece

    def _end_line(self) -> None:
        line = self._rest
        self.lines += 1
        self.longest_line_bytes = max(self.longest_line_bytes, self._line_bytes)
        self._rest, self._line_bytes = b"", 0
        if len(self.faults) < MAX_FAULTS and any(each in line for each in _FAULTS):
            self.faults.append(line[:SHOWN_CHARS].decode(errors="replace"))
