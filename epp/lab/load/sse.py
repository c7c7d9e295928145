"""Decode server-sent events from body chunks (WHATWG HTML §9.2, the part that OpenAI uses)."""


class EventDecoder:
    """Decodes events from chunks with arbitrary boundaries.

    Lines end in LF or CR LF. A lone CR, which the standard also allows, does not end a line: no
    model server sends it, and supporting it would delay every event until the next byte.
    """

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that `chunk` completes, in order."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        events: list[bytes] = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data.clear()
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            # Ignore comments (keep-alives), `event:`, `id:` and `retry:`: they contain no tokens.
        return events
