"""The requests of a workload as bodies and headers of an OpenAI API."""

from collections.abc import Iterator
from itertools import groupby

import msgspec

from epp.lab.load.outgoing import OutgoingRequest
from epp.lab.load.plan import Api, LoadPlan
from epp.lab.load.request_headers import label_headers
from epp.lab.traffic import Segment, TrafficRequest, prompt_text
from epp.lab.traffic.workload import labels_of

_SALT_SHIFT = 64  # above the bits of a content


class WorkloadSource:
    """Makes bodies and headers of the requests that were put in, and remembers their responses.

    Args:
        plan: The run; its seed changes all texts, but not which prefixes they share.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._salt = plan.seed << _SALT_SHIFT
        self._requests: dict[int, tuple[TrafficRequest, bool]] = {}
        self._responses: dict[int, bytes] = {}

    def put(self, request: TrafficRequest, *, keeps_text: bool) -> None:
        """Make the request available; `keeps_text` if a later prompt contains its response."""
        self._requests[request.index] = (request, keeps_text)

    def forget(self, index: int) -> None:
        """Drop the response to a request whose conversation has ended."""
        self._responses.pop(index, None)

    def answered(self, index: int, text: str) -> None:
        """Keep the response for the prompts that contain it."""
        self._responses[index] = text.encode("utf-8", "replace")

    def outgoing(self, index: int) -> OutgoingRequest:
        """Return a request that was put in, once."""
        request, keeps_text = self._requests.pop(index)
        return OutgoingRequest(
            body=self.body(request),
            headers=label_headers(labels_of(request)),
            keeps_text=keeps_text,
            tenant=request.tenant,
            objective=request.objective,
            adapter=request.adapter,
            session=request.session,
        )

    def body(self, request: TrafficRequest) -> bytes:
        """Return the JSON body of a request."""
        plan = self._plan
        body: dict[str, object] = {
            "model": request.adapter or plan.model,
            "max_tokens": request.output_tokens,
        }
        if plan.ignore_eos:
            body["ignore_eos"] = True
        if plan.api is Api.CHAT:
            body["messages"] = list(self._messages(request))
        else:
            body["prompt"] = self._text(request.segments)
        if plan.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(body)

    def _messages(self, request: TrafficRequest) -> Iterator[dict[str, str]]:
        for is_output, segments in groupby(request.segments, lambda each: each.is_output):
            role = "assistant" if is_output else "user"
            yield {"role": role, "content": self._text(tuple(segments))}

    def _text(self, segments: tuple[Segment, ...]) -> str:
        if self._salt:
            segments = tuple(
                each if each.is_output else Segment(each.content | self._salt, each.tokens)
                for each in segments
            )
        return prompt_text(segments, self._responses).decode("utf-8", "replace")
