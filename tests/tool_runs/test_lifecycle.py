"""The endpoint picker stopped, killed, replaced and reconfigured: small runs, in one mode each.

All modes, with 2,000 requests each: ``python -m tools.faults.lifecycle_command``.
"""

import pytest

from epp.lab.envoy import Mode
from tools.faults import changes, files, frozen, lifecycle, waiting, workers
from tools.faults.processes import Setting
from tools.faults.traffic import Kind, Response, Verdict
from tools.faults.trial import Pace, Scenario, TrialOutcome

FULL_DUPLEX, LEAN = Setting(Mode.FULL_DUPLEX), Setting(Mode.LEAN)
FAIL_OPEN = Setting(Mode.ADAPTIVE, fail_open=True)
CHECKED = Setting(Mode.LEAN, health_check=True)
EACH_MODE = Setting(Mode.LEAN, others=(Mode.ADAPTIVE, Mode.FULL_DUPLEX))
# Long responses take 3 s, which a picker with so short a drain is sure to end within.
SMALL = Pace(requests=60, rate=40.0, long_tokens=60, drain="0.2s", changes=4)


@pytest.mark.integration
@pytest.mark.timeout(180)  # up to three processes start, each in seconds on a busy machine
@pytest.mark.parametrize(
    ("scenario", "setting"),
    [
        (lifecycle.stopped, LEAN),
        (lifecycle.handed_over, LEAN),
        (lifecycle.rolled, EACH_MODE),
        (lifecycle.killed, FAIL_OPEN),
        (lifecycle.one_of_two_stopped, LEAN),
        (frozen.one_of_two_unready, CHECKED),
        (waiting.stopped_while_undecided, FULL_DUPLEX),
        (changes.endpoints_emptied, FULL_DUPLEX),
        (files.reloaded_often, LEAN),
        (files.endpoints_torn, FULL_DUPLEX),
        (files.files_bombed, LEAN),
        (workers.each_worker_killed, FAIL_OPEN),
        (workers.supervisor_killed, LEAN),
    ],
    ids=lambda value: value.name if isinstance(value, Setting) else value.__name__,
)
async def test_every_promise_is_kept_while_requests_are_under_way(
    scenario: Scenario, setting: Setting
) -> None:
    outcome: TrialOutcome = await scenario(setting, SMALL)
    assert outcome.broken == []
    assert sum(outcome.verdicts.values()) > 0


DONE = "data: [DONE]\n\n"
STREAM, WHOLE = Kind("stream", 2, stream=True), Kind("whole", 2, stream=False)


@pytest.mark.parametrize(
    ("kind", "status", "body", "is_complete", "verdict"),
    [
        (WHOLE, 200, '{"choices": [{"text": "abcdefgh"}]}', True, Verdict.WHOLE),
        (WHOLE, 200, '{"choices": [{"text": "abcd"}]}', True, Verdict.TRUNCATED),
        (WHOLE, 200, '{"choices": [{"te', True, Verdict.TRUNCATED),
        (WHOLE, 200, "", False, Verdict.TRUNCATED),
        (WHOLE, 200, '{"choices": [{"text": "abcdefghijkl"}]}', True, Verdict.WRONG),
        (WHOLE, 500, "", True, Verdict.REFUSED),
        (WHOLE, 500, "", False, Verdict.WRONG),
        (WHOLE, 404, "", True, Verdict.WRONG),
        (WHOLE, 0, "", False, Verdict.WRONG),
        (
            STREAM,
            200,
            'data: {"choices":[{"text":"abcd"}]}\n\ndata: {"choices":[{"text":"efgh"}]}\n\n' + DONE,
            True,
            Verdict.WHOLE,
        ),
        (
            STREAM,
            200,
            'data: {"choices": [{"text": "efgh"}]}\n\ndata: [DONE]\n\n',
            True,
            Verdict.TRUNCATED,
        ),
        (STREAM, 200, 'data: {"choices": [{"text": "abcdefgh"}]}\n\n', True, Verdict.TRUNCATED),
        (STREAM, 200, "", True, Verdict.TRUNCATED),
    ],
    ids=[
        "whole",
        "text too short",
        "document cut off",
        "message cut off",
        "text too long",
        "refused",
        "refusal cut off",
        "another status",
        "no response",
        "stream",
        "stream without its first event",
        "stream without its end",
        "stream of nothing",
    ],
)
def test_a_response_is_judged_by_what_is_in_it(
    kind: Kind, status: int, body: str, is_complete: bool, verdict: Verdict
) -> None:
    response = Response()
    response.on_headers(status, {})
    response.on_body(body.encode())
    assert response.verdict(kind, is_complete=is_complete) is verdict
