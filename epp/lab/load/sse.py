"""Server-sent events out of body chunks cut anywhere (WHATWG HTML §9.2, the part OpenAI uses)."""


class EventDecoder:
    """Joins chunks into events.

    Lines end in LF or CR LF; a lone CR, which the standard also allows, is not a line end here (no
    model server sends it, and it would hold back every event until the next byte).
    """

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Data of the events that `chunk` completes, in order."""
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
            # Comments (keep-alives), `event:`, `id:` and `retry:` say nothing about tokens.
        return events
