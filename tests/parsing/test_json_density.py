"""The number of values in a body, estimated from samples."""

from collections.abc import Callable
from random import Random

import pytest

from epp.parsing import TooManyValuesError
from epp.parsing.json_density import check_values, count_values
from epp.request_control import RequestError
from tools.harness.request_control import Epp, make_pool

MIB = 1 << 20


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"", 0),
        (b"0", 0),
        (b"[1,2,3]", 3),
        (b'{"a":[],"b":{}}', 6),
        (b'"a,b"', 1),
        (b'"\\n\\u00e9"', 2),
        (b"[" + b" " * 15 + b"0]", 1),
        (b"[[1,2],[3]]", 5),
    ],
)
def test_signs_of_values_are_counted(body: bytes, values: int) -> None:
    assert count_values(body) == values
    assert sum(count_values(body, at, at + 1) for at in range(len(body))) == values


def test_half_the_bytes_of_a_long_run_of_blanks_are_counted() -> None:
    assert count_values(b"0," + b" \n\t\r" * 100 + b"0") == 1 + 200


def places(seed: int) -> Callable[[], float]:
    return Random(seed).random


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" + b"0," * 2 * MIB + b"0]", id="numbers"),
        pytest.param(b"[" + b"{}," * MIB + b"0]", id="objects"),
        pytest.param((b"[" * 400 + b"]" * 400 + b",") * 4000, id="lists in lists"),
        pytest.param(rb'"' + rb"\n" * 2 * MIB + rb'"', id="escapes"),
        pytest.param(b"[" + b" " * 4 * MIB + b"0]", id="blanks"),
        pytest.param(b"{" + b'"k":0,' * MIB + b"}", id="keys"),
        pytest.param(b"x" * 7 * MIB + b"0," * 2 * MIB, id="after a long text"),
        pytest.param((b"x" * 60_000 + b"0," * 40_000) * 70, id="between texts"),
    ],
)
def test_a_body_of_too_many_values_is_refused_wherever_they_are(body: bytes, seed: int) -> None:
    with pytest.raises(TooManyValuesError, match="more than 1000000 values"):
        check_values(body, 1_000_000, places(seed))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"Hello, this is prose, with a few commas. " * 300_000, id="prose"),
        pytest.param(b"x" * 12 * MIB, id="text"),
        pytest.param(rb"iVBORw0KGgo=" * 2 + rb"\/" + b"A" * 40 * MIB, id="a picture"),
        pytest.param((b"A" * 62 + rb"\/") * 700_000, id="base64 with escaped slashes"),
        pytest.param(b"def f(self):\\n" + b"    return 1\\n" * 300_000, id="source code"),
        pytest.param(b"128001," * 700_000, id="token ids"),
        pytest.param(b"0," * 700_000 + b"x" * MIB, id="fewer values, all at the start"),
    ],
)
def test_a_body_of_fewer_values_passes(body: bytes, seed: int) -> None:
    check_values(body, 1_000_000, places(seed))


def test_a_body_without_room_for_so_many_values_is_not_looked_at() -> None:
    def unasked() -> float:
        raise AssertionError

    check_values(b"0," * 1_000_000, 1_000_000, unasked)


def test_little_is_looked_at() -> None:
    class Watched(bytes):
        looked_at = 0

        def count(self, sub: object, start: object = 0, end: object = 0) -> int:
            assert isinstance(start, int)
            assert isinstance(end, int)
            Watched.looked_at += end - start
            return 0

    check_values(Watched(32 * MIB), 1000, places(0))
    # 1 KiB for each 128, five signs.
    assert Watched.looked_at == 5 * 32 * MIB // 128


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/chat/completions", b'{"model":"m","messages":[%b0]}', id="a prompt"),
        pytest.param(
            "/v1/completions", b'{"model":"m","prompt":"x","y":[%b0]}', id="another field"
        ),
        pytest.param("/v1/completions", b"{%b", id="no JSON"),
    ],
)
def test_a_request_of_too_many_values_is_the_clients_fault(path: str, body: bytes) -> None:
    epp = Epp(make_pool())
    with pytest.raises(RequestError, match="more than 4194304 values") as raised:
        epp.handle(body % (b"0," * 6 * MIB), headers={":path": path})
    assert raised.value.status == 400
    assert epp.value("request_limit_exceeded_total", limit="json-values") == 1
    assert epp.total("internal_faults_total") == 0


def test_what_no_parser_reads_may_be_anything() -> None:
    epp = Epp(make_pool())
    headers = {":path": "/v1/completions", "content-encoding": "br"}
    assert epp.handle(b"0," * 6 * MIB, headers=headers).endpoint is not None
