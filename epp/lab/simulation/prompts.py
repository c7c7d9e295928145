"""A request of a workload as the parts of a simulation see it: text, block keys, headers."""

from collections import OrderedDict
from collections.abc import Mapping
from zlib import crc32

from epp.lab.traffic import BlockCutter, Segment, TrafficRequest, prompt_text

MODEL = "tiny"
"""Name of the base model."""

_KEPT_PROMPTS = 4096
"""How many recent prompts keep their blocks."""
_STREAM = b',"stream":true,"stream_options":{"include_usage":true}}'


class PromptBlocks:
    """Cuts prompts into blocks, and remembers the recent ones, because prompts share beginnings."""

    def __init__(self) -> None:
        self._recent: OrderedDict[object, BlockCutter] = OrderedDict()

    def cutter(
        self, segments: tuple[Segment, ...], block_size: int, adapter: str = ""
    ) -> BlockCutter:
        """Return the blocks of these segments."""
        count, recent = len(segments), self._recent
        # The last turn of a chat was shorter by its output and the question; a system prompt is
        # the first segment.
        for length in dict.fromkeys((count - 1, count - 2, 1)):
            known = recent.get((segments[:length], block_size, adapter))
            if known is not None:
                cutter = known.copy()
                break
        else:
            length = 0
            cutter = BlockCutter(block_size, crc32(adapter.encode()))
        for place in range(length, count):
            cutter.add(segments[place])
            if place == 0:
                self._keep((segments[:1], block_size, adapter), cutter.copy())
        self._keep((segments, block_size, adapter), cutter)
        return cutter

    def _keep(self, name: object, cutter: BlockCutter) -> None:
        self._recent[name] = cutter
        if len(self._recent) > _KEPT_PROMPTS:
            self._recent.popitem(last=False)


class SimulatedRequest:
    """One request of the workload."""

    __slots__ = ("_blocks", "_keys", "headers", "id", "traffic")

    def __init__(
        self, traffic: TrafficRequest, session_headers: Mapping[str, str], blocks: PromptBlocks
    ) -> None:
        self.traffic = traffic
        self._blocks = blocks
        self.id = f"sim-{traffic.index}"
        """Id of the HTTP request."""
        self.headers: Mapping[str, str] = {**_headers(traffic, self.id), **session_headers}
        """Headers of the HTTP request, pseudo headers included."""
        self._keys: dict[int, list[int]] = {}

    @property
    def prompt(self) -> bytes:
        """The text of the prompt."""
        return prompt_text(self.traffic.segments)

    def body(self) -> bytes:
        """Return the JSON body; the text of a prompt needs no escapes."""
        traffic = self.traffic
        model = (traffic.adapter or MODEL).encode()
        return b'{"model":"%s","prompt":"%s","max_tokens":%d%s' % (
            model,
            self.prompt,
            traffic.output_tokens,
            _STREAM,
        )

    def keys(self, block_size: int) -> list[int]:
        """Return the keys of the full blocks of prompt and output."""
        keys = self._keys.get(block_size)
        if keys is None:
            traffic = self.traffic
            output = Segment(traffic.index, traffic.output_tokens, is_output=True)
            cutter = self._blocks.cutter((*traffic.segments, output), block_size, traffic.adapter)
            keys = self._keys[block_size] = cutter.keys
        return keys


def _headers(traffic: TrafficRequest, request_id: str) -> dict[str, str]:
    headers = {
        ":method": "POST",
        ":path": "/v1/completions",
        ":authority": "simulation",
        "content-type": "application/json",
        "x-request-id": request_id,
    }
    if traffic.tenant:
        headers["x-llm-d-inference-fairness-id"] = traffic.tenant
    if traffic.objective:
        headers["x-llm-d-inference-objective"] = traffic.objective
    if traffic.session:
        headers["x-session-id"] = traffic.session
    if traffic.ttft_slo_seconds is not None:
        headers["x-llm-d-slo-ttft-ms"] = f"{traffic.ttft_slo_seconds * 1000:g}"
    if traffic.tpot_slo_seconds is not None:
        headers["x-llm-d-slo-tpot-ms"] = f"{traffic.tpot_slo_seconds * 1000:g}"
    return headers
