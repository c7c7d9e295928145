import base64
import json
import tracemalloc
from itertools import repeat
from random import Random
from struct import pack, unpack
from time import thread_time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from epp.scheduling import CycleState
from epp.testing import make_request
from epp_plugins.data_producers.media_parts import (
    MAX_MEDIA,
    MAX_MEDIA_TOKENS,
    MAX_VALUES,
    MAX_WALKED,
)
from epp_plugins.data_producers.raw_lists import MAX_ELEMENTS
from epp_plugins.data_producers.token import Params, TokenProducer
from epp_plugins.state_keys import TOKENIZED_PROMPT, MultiModalFeature, TokenizedPrompt

URL = "https://example.com/a.png"
MIB = 1024 * 1024


def produce(
    prompt: object, params: object = None, *, tools: bytes = b"", **fields: Any
) -> TokenizedPrompt | None:
    """Return the tokens of ``prompt``, raw JSON or a value to be encoded."""
    raw = prompt if isinstance(prompt, bytes) else msgspec.json.encode(prompt)
    request, state = make_request(prompt=raw, **fields), CycleState()
    request.tools = tools
    TokenProducer("token", msgspec.convert(params or {}, Params)).prepare(request, state)
    return state.read(TOKENIZED_PROMPT)


def part(kind: str, **content: str) -> dict[str, object]:
    return {"type": kind, kind: content}


def user(*parts: object) -> list[object]:
    return [{"role": "user", "content": list(parts)}]


def media(prompt: object, params: object = None, **fields: Any) -> tuple[MultiModalFeature, ...]:
    found = produce(prompt, params, **fields)
    assert found is not None
    return found.features


@pytest.mark.parametrize(
    ("prompt", "tools", "want"),
    [
        pytest.param(b'"ab"', b"", 1, id="four bytes are a token"),
        pytest.param(b'"abc"', b"", 2, id="a fifth byte begins another"),  # ceil(5/4)
        pytest.param(b'[{"role":"user"}]', b"", 5, id="roles count"),  # ceil(17/4)
        pytest.param(b'"ab"', b'[{"a":1}]', 4, id="tools count"),  # ceil((9+4)/4)
        pytest.param(b'["ab", "cd"]', b"", 3, id="several texts are text"),  # ceil(12/4)
        pytest.param(b"[]", b"", 1, id="an empty list is text"),
        pytest.param(b"[[]]", b"", 1, id="an empty list of ids is text"),
        pytest.param(b'[1, "a"]', b"", 2, id="a list with a word is text"),  # ceil(8/4)
        pytest.param(b"[-1]", b"", 1, id="a negative id is text"),
        pytest.param(b"[4294967296]", b"", 3, id="an id of 33 bits is text"),  # ceil(12/4)
        pytest.param(b"[1.5]", b"", 2, id="a fraction is text"),  # ceil(5/4)
        pytest.param(
            b"[" + b"[7]," * 10_000 + b"[8]]", b"", 10_002, id="more lists than that are text"
        ),  # ceil((1 + 40000 + 4)/4)
        pytest.param(
            b"[" + b"7," * MIB + b"8]", b"", MIB // 2 + 1, id="more ids than a million are text"
        ),  # ceil((2 + 2 * MIB + 1)/4)
    ],
)
def test_text_is_counted_by_its_bytes(prompt: bytes, tools: bytes, want: int) -> None:
    assert produce(prompt, tools=tools) == TokenizedPrompt(tools + prompt, want)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        pytest.param(b"[7]", [7], id="one"),
        pytest.param(b"[0, 4294967295 ,\n 128000]", [0, 2**32 - 1, 128000], id="the range"),
        pytest.param(b"[ [1,2], [3], [] ]", [1, 2, 3], id="lists follow each other"),
        pytest.param(b"[" + b"[7]," * 9999 + b"[8]]", [7] * 9999 + [8], id="the most lists"),
        pytest.param(b"[" + b"7," * (MIB - 1) + b"8]", [7] * (MIB - 1) + [8], id="the most ids"),
    ],
)
def test_token_ids_stay_what_they_are(prompt: bytes, ids: list[int]) -> None:
    want = TokenizedPrompt(pack(f"<{len(ids)}I", *ids), len(ids))
    assert produce(prompt, tools=b'[{"a":1}]') == want


def test_the_prompt_is_not_copied() -> None:
    request, state = make_request(prompt=b'"a long_prompt"'), CycleState()
    TokenProducer("token", Params()).prepare(request, state)
    written = state.read(TOKENIZED_PROMPT)
    assert written is not None
    assert written.data is request.prompt


def test_a_request_without_a_prompt_gets_nothing() -> None:
    assert produce(b"", tools=b"[1]") is None


def test_a_picture_stands_among_the_text_as_tokens_of_its_hash() -> None:
    system = {"role": "system", "content": "Be brief."}
    hello = {"role": "user", "content": "hi"}
    shown = user({"type": "text", "text": "What?"}, part("image_url", url=URL))[0]
    before, after = json.dumps([system])[:-1] + " , ", " ," + json.dumps(hello) + "]"
    raw = f"{before}{json.dumps(shown)}{after}".encode()
    found = produce(raw, {"estimate": {"image": {"dynamic": {"factor": 50_000}}}}, tools=b"[1]")
    text = b'[1]%b"user"{"type": "text", "text": "What?"}' % before.encode()
    text += bytes(-len(text) % 4)
    digest = xxh64_intdigest(URL.encode())
    # 640 * 360 / 50000 = 4.6
    want = text + (digest & 0xFFFFFFFF).to_bytes(4, "little") * 4 + after.encode()
    feature = MultiModalFeature("image", f"{digest:x}", len(text) // 4, 4)
    assert found == TokenizedPrompt(want, (len(want) + 3) // 4, (feature,))


def test_text_before_the_first_picture_has_the_tokens_of_the_same_text_without() -> None:
    begin: list[object] = [{"role": "system", "content": "s" * 300}]
    plain = produce([*begin, {"role": "user", "content": "more"}])
    shown = produce(begin + user(part("image_url", url=URL)))
    assert plain is not None
    assert shown is not None
    assert plain.data[:300] == shown.data[:300]


def test_features_stand_in_their_order_without_overlap() -> None:
    kinds = ("image_url", "video_url", "audio_url")
    random = Random(6)
    prompt = [
        message
        for number in range(20)
        for message in user(
            "text", part(random.choice(kinds), url=f"u{number % 7}"), {"text": "t" * number}
        )
    ]
    found = produce(prompt)
    assert found is not None
    assert len(found.features) == 20
    end = 0
    for feature in found.features:
        assert feature.offset >= end
        end = feature.offset + feature.length
        tokens = unpack(f"<{feature.length}I", found.data[feature.offset * 4 : end * 4])
        assert set(tokens) == {int(feature.hash, 16) & 0xFFFFFFFF}
    assert len({feature.hash for feature in found.features}) == 7
    assert end <= found.count


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + pack(">II", width, height) + b"\x08\x02\0\0\0" * 9


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + pack("<HH", width, height) + bytes(20)


def jpeg(width: int, height: int, *, frame: int = 0xC0, profile: int = 5000) -> bytes:
    """A JPEG with a segment of ``profile`` bytes before its frame."""
    segment = b"\xff\xe1" + pack(">H", profile + 2) + b"\xff" * profile
    head = pack(">BBHBHH", 0xFF, frame, 17, 8, height, width)
    return b"\xff\xd8" + segment + b"\xff\xd0\xff" + head + bytes(30)


def marks(count: int) -> bytes:
    """The head of a JPEG with so many segments of nothing."""
    return b"\xff\xd8" + b"\xff\xd0" * count


FRAME = pack(">BBHBHH", 0xFF, 0xC0, 17, 8, 30, 2048) + bytes(30)
"""That of a JPEG: 2048 x 30."""


def uri(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize(
    ("url", "want"),
    [
        pytest.param(URL, 225, id="an address has the default size"),  # 640*360/1024
        pytest.param(uri(png(1024, 512)), 512, id="PNG"),  # 1024*512/1024
        pytest.param(uri(gif(320, 64)), 20, id="GIF"),  # 320*64/1024
        pytest.param(uri(jpeg(2048, 30)), 60, id="JPEG"),  # 2048*30/1024
        pytest.param(uri(jpeg(2048, 30, frame=0xC2, profile=65001)), 60, id="progressive JPEG"),
        pytest.param(uri(marks(99) + FRAME), 60, id="a JPEG of the most segments"),
        pytest.param(uri(marks(100) + FRAME), 225, id="a JPEG of more segments than that"),
        pytest.param(uri(jpeg(64, 64, frame=0xC3)), 225, id="a lossless JPEG has the default"),
        pytest.param(uri(png(3, 3)), 1, id="a small one takes a token"),
        pytest.param(uri(png(0, 9)), 225, id="no width"),
        pytest.param(uri(png(64, 64)[:15]), 225, id="cut off"),
        pytest.param(uri(b"\xff\xd8\xff\xe1\xff"), 225, id="JPEG cut off"),
        pytest.param(uri(b"\xff\xd8\xff\xe1\0\0\0" + bytes(99)), 225, id="JPEG of nothing"),
        pytest.param(uri(b"BM" + bytes(60)), 225, id="another format"),
        pytest.param("data:image/png;base64,%%%%", 225, id="no base64"),
        pytest.param("data:image/png;base64,\u00e9", 225, id="not ASCII"),
        pytest.param("data:image/png,abc", 225, id="no base64 marker"),
        pytest.param(uri(png(64, 64), "text/plain"), 225, id="not declared as a picture"),
        pytest.param(
            uri(png(2**31 - 1, 2**31 - 1)), MAX_MEDIA_TOKENS, id="a forged size is limited"
        ),
    ],
)
def test_a_picture_costs_its_pixels(url: str, want: int) -> None:
    assert [each.length for each in media(user(part("image_url", url=url)))] == [want]


@pytest.mark.parametrize(
    ("image", "want"),
    [
        pytest.param({"mode": "static"}, 1, id="static without a number"),
        pytest.param({"mode": "static", "static": {"staticToken": 256}}, 256, id="static"),
        pytest.param({"mode": "static", "static": {"staticToken": -5}}, 1, id="a negative number"),
        pytest.param({"mode": ""}, 225, id="an empty mode is dynamic"),
        pytest.param({"dynamic": {"factor": 784}}, 293, id="factor"),  # 230400/784 = 293.9
        pytest.param({"dynamic": {"factor": 0}}, 225, id="factor 0 is the default"),
        pytest.param(
            {"defaultResolution": {"width": 1280, "height": 720}}, 900, id="default size"
        ),  # 921600/1024
        pytest.param(
            {"defaultResolution": {"width": 1280}}, 450, id="default height"
        ),  # 1280*360/1024
    ],
)
def test_parameters_of_pictures(image: dict[str, object], want: int) -> None:
    params = {"estimate": {"image": image}}
    assert media(user(part("image_url", url=URL)), params)[0].length == want


STRIDED = {"mode": "strided"}


@pytest.mark.parametrize(
    ("video", "headers", "want"),
    [
        pytest.param({}, {}, 4500, id="defaults"),  # 10 s * 2 fps * 225
        pytest.param({"defaultDuration": 3}, {}, 1350, id="default seconds"),  # 3*2*225
        pytest.param({}, {"duration-seconds": "2.75"}, 1125, id="seconds"),  # int(5.5)*225
        pytest.param({}, {"resolution": "1280x720"}, 18000, id="resolution"),  # 20*900
        pytest.param({}, {"resolution": " 1280 X 720 "}, 18000, id="resolution with spaces"),
        pytest.param({}, {"resolution": "1280"}, 4500, id="half a resolution"),
        pytest.param({}, {"resolution": "0x720"}, 4500, id="no width"),
        pytest.param({}, {"duration-seconds": "-3"}, 4500, id="negative seconds"),
        pytest.param({}, {"duration-seconds": "nan"}, 4500, id="seconds that are no number"),
        pytest.param({}, {"duration-seconds": "soon"}, 4500, id="seconds that are a word"),
        pytest.param({}, {"fps": "60"}, 4500, id="the film's rate is not the model's"),
        pytest.param({}, {"duration-seconds": "1e999"}, 4500, id="seconds beyond all numbers"),
        pytest.param({}, {"duration-seconds": "\u0663"}, 4500, id="digits of another script"),
        pytest.param(
            {}, {"duration-seconds": "1e99"}, MAX_MEDIA_TOKENS, id="endless films are limited"
        ),
        pytest.param({"maxVideoTokens": 1000}, {}, 1000, id="most tokens"),
        pytest.param({"frames": {"sampled": {"sampleFPS": 1}}}, {}, 2250, id="sample rate"),
        pytest.param(
            {"frames": {"sampled": {"temporalPatchSize": 3}}}, {}, 1350, id="merged frames"
        ),  # 20//3 * 225
        pytest.param(
            {"frames": {"maxFrames": 9, "sampled": {"temporalPatchSize": 2}}},
            {},
            900,
            id="most frames, then merged",
        ),  # 9//2 * 225
        pytest.param({"frames": {"minFrames": 32}}, {}, 7200, id="fewest frames"),  # 32*225
        pytest.param({"frames": STRIDED}, {}, 54000, id="strided"),  # 240*225
        pytest.param({"frames": STRIDED}, {"fps": "30"}, 67500, id="the film's rate"),  # 300*225
        pytest.param(
            {"frames": STRIDED | {"strided": {"defaultSourceFPS": 10, "frameStride": 7}}},
            {},
            3150,
            id="stride",
        ),  # 100//7 * 225
        pytest.param(
            {"frames": STRIDED | {"minFrames": 4, "strided": {"frameStride": 999}}},
            {},
            900,
            id="fewest strided frames",
        ),  # 4*225
        pytest.param({"tokensPerFrame": {"mode": "static"}}, {}, 20, id="static frames"),
        pytest.param(
            {"tokensPerFrame": {"mode": "static", "static": {"numTokensPerFrame": 70}}},
            {},
            1400,
            id="tokens of a frame",
        ),  # 20*70
        pytest.param(
            {"tokensPerFrame": {"dynamic": {"factor": 2048}}}, {}, 2240, id="frame factor"
        ),  # 20 * 112
        pytest.param({"defaultDuration": 0.1}, {}, 1, id="no frame at all takes a token"),
    ],
)
def test_a_film_costs_its_frames(
    video: dict[str, object], headers: dict[str, str], want: int
) -> None:
    named = {f"x-llm-d-video-{name}": value for name, value in headers.items()}
    params = {"estimate": {"video": video}}
    (film,) = media(user(part("video_url", url="v")), params, headers=named)
    assert (film.modality, film.length) == ("video", want)


@pytest.mark.parametrize(
    ("sound", "content", "want"),
    [
        pytest.param(part("input_audio", data="abcdefghi", format="wav"), "abcdefghiwav", 3),
        pytest.param(part("input_audio", data="abc"), "abc", 1),
        pytest.param(part("audio_url", url="http://a/b"), "http://a/b", 3),
    ],
    ids=["data and format", "no format", "an address"],
)
def test_a_sound_costs_its_characters(sound: object, content: str, want: int) -> None:
    (found,) = media(user(sound))
    # ceil(9/4), ceil(3/4), ceil(10/4)
    assert found == MultiModalFeature("audio", f"{xxh64_intdigest(content.encode()):x}", 2, want)


def test_the_limit_holds_for_all_media_of_a_request_and_leaves_each_a_token() -> None:
    params = {"estimate": {"image": {"mode": "static", "static": {"staticToken": 2**17 + 1}}}}
    lengths = [each.length for each in media(user(*repeat(part("image_url", url=URL), 4)), params)]
    assert lengths == [2**17 + 1, 2**17 - 1, 1, 1]


def test_what_comes_after_the_most_media_is_text() -> None:
    picture = part("image_url", url=URL)
    found = produce(user(*[picture] * (MAX_MEDIA + 2)))
    assert found is not None
    assert len(found.features) == MAX_MEDIA
    raw = msgspec.json.encode(picture)
    assert found.data.endswith(raw * 2 + b"]")
    messages = produce(user(picture) * (MAX_MEDIA + 2))
    assert messages is not None
    assert len(messages.features) == MAX_MEDIA
    assert messages.data.endswith(msgspec.json.encode(user(picture) * 2)[1:])


def test_malformed_media_count_towards_the_most() -> None:
    bad = {"type": "image_url", "image_url": {"url": ""}, "x": "y" * 20}
    found = produce(user(*[bad] * MAX_MEDIA, part("image_url", url=URL)))
    assert found is not None
    assert found.features == ()


def test_a_picture_after_the_most_messages_is_text() -> None:
    shown = user(part("image_url", url=URL))
    text: list[object] = [{"role": "user", "content": ""}]
    assert len(media(text * (MAX_ELEMENTS - 1) + shown)) == 1
    found = produce(raw := msgspec.json.encode(text * MAX_ELEMENTS + shown))
    assert found == TokenizedPrompt(raw, -(-len(raw) // 4))


def test_a_message_of_too_many_parts_is_text() -> None:
    picture = part("image_url", url=URL)
    assert len(media(user(*[0] * (MAX_ELEMENTS - 2), picture))) == 1
    found = produce(raw := msgspec.json.encode(user(picture, *[0] * MAX_ELEMENTS)))
    assert found == TokenizedPrompt(raw, -(-len(raw) // 4))


@pytest.mark.parametrize(
    "unit", [rb"\/", rb"\n", b"{},", b"0:"], ids=["slashes", "newlines", "objects", "keys"]
)
def test_a_prompt_of_too_many_values_is_text(unit: bytes) -> None:
    def prompt(units: int) -> bytes:
        text = unit * units + b"x" * 2 * MAX_VALUES
        picture = msgspec.json.encode(user(part("image_url", url=URL)))
        return picture[:-1] + b',{"role":"user","content":"' + text + b'"}]'

    found = produce(prompt(MAX_VALUES // 4))
    assert found is not None
    assert len(found.features) == 1
    raw = prompt(2 * MAX_VALUES)
    assert produce(raw) == TokenizedPrompt(raw, -(-len(raw) // 4))


def test_what_comes_after_the_most_messages_and_parts_is_text() -> None:
    shown = user(part("image_url", url=URL), *[0] * 2000)
    found = produce(shown * 6)
    assert found is not None
    # A message and its parts are 2002: four of them are 8008.
    assert len(found.features) == MAX_WALKED // 2002
    assert found.data.endswith(msgspec.json.encode(shown * 2)[1:])


@pytest.mark.parametrize(
    "prompt",
    [
        b"[%b]"
        % b",".join([b"{}"] * 200_000 + [msgspec.json.encode(user(part("image_url", url="a"))[0])]),
        msgspec.json.encode(user(part("image_url", url="a"), *[0] * 200_000)),
    ],
    ids=["messages", "parts"],
)
def test_nothing_is_made_of_elements_beyond_the_most(prompt: bytes) -> None:
    tracemalloc.start()
    try:
        assert produce(prompt) is not None
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A raw element takes 64 bytes and more; the request itself has the prompt twice.
    assert most_bytes < 4 * len(prompt)


def test_forged_pictures_share_their_segments() -> None:
    forged = part("image_url", url=uri(marks(99) + FRAME))  # 2048*30/1024
    found = media(user(*[forged] * 30))
    # 100 segments each, of 2000 together; the others have the default size.
    assert [each.length for each in found] == [60] * 20 + [225] * 10


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        pytest.param(r"http:\/\/a\/b", "http://a/b", id="slashes"),
        pytest.param(r"a\u00e9\n", "a\u00e9\n", id="others"),
        pytest.param(r"a\/" * 40_000, "a/" * 40_000, id="slashes of a long one"),
    ],
)
def test_escapes_in_an_address_do_not_change_its_hash(written: str, meant: str) -> None:
    raw = b'[{"content":[{"type":"image_url","image_url":{"url":"%b"}}]}]' % written.encode()
    (found,) = media(raw)
    assert found.hash == f"{xxh64_intdigest(meant.encode()):x}"


def test_a_long_address_with_other_escapes_is_text() -> None:
    url = rb"\ud83d\ude00" + b"a" * 70_000
    raw = b'[{"content":[{"type":"image_url","image_url":{"url":"%b"}}]}]' % url
    assert produce(raw) == TokenizedPrompt(raw, -(-len(raw) // 4))


def test_messages_that_cannot_be_read_are_copied_once() -> None:
    text = "a" * 16_000_000
    prompt = msgspec.json.encode([text, *["image_url"] * MAX_MEDIA])
    began = thread_time()
    assert produce(prompt) == TokenizedPrompt(prompt, -(-len(prompt) // 4))
    # 20 ms; copied anew for each of them 1.4 s.
    assert thread_time() - began < 0.5


def test_messages_that_cannot_be_read_stay_beside_those_that_can() -> None:
    before = msgspec.json.encode(["image_url", {"image_url": 1}])[:-1]
    picture = msgspec.json.encode(user(part("image_url", url=URL)))[1:-1]
    found = produce(before + b" , " + picture + b', "image_url"]')
    assert found is not None
    assert found.data.startswith(before + b' , "user"')
    assert found.data.endswith(b', "image_url"]')
    assert len(found.features) == 1


MALFORMED = [
    part("image_url"),
    part("image_url", url=""),
    {"type": "image_url", "image_url": "a"},
    {"type": "image_url"},
    {"type": "video_url", "video_url": {"url": 5}},
    {"type": "input_audio", "input_audio": {"format": "wav"}},
    {"type": 7, "image_url": {"url": "a"}},
    {"image_url": {"url": "a"}},
    ["image_url"],
    "image_url",
    None,
]


@pytest.mark.parametrize("bad", MALFORMED, ids=repr)
def test_a_malformed_part_is_text(bad: object) -> None:
    raw = msgspec.json.encode(user(bad))
    assert produce(raw) == TokenizedPrompt(raw, -(-len(raw) // 4))
    beside = produce(user(bad, part("image_url", url=URL)))
    assert beside is not None
    assert msgspec.json.encode(bad) in beside.data
    assert len(beside.features) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b'[{"role":"user","content":"\\"image_url\\""}]',
        b'[{"role":"user","content":{"image_url":1}}]',
        b'[{"image_url":1}]',
        b'["image_url"]',
        b'[[["image_url"]]]',
        b'[{"role":"u","content":[' + b"[" * 100_000 + b'"image_url"' + b"]" * 100_000 + b"]}]",
    ],
    ids=["quoted", "an object", "no content", "a word", "lists", "deeply nested"],
)
def test_a_prompt_that_only_looks_like_media_is_text(raw: bytes) -> None:
    assert produce(raw) == TokenizedPrompt(raw, -(-len(raw) // 4))


WORDS = st.sampled_from(
    ["type", "role", "content", "url", "data", "image_url", "video_url", "input_audio", "text"]
)
ANYTHING = st.recursive(
    st.none() | st.integers(-1, 2**33) | st.floats(allow_nan=False) | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
)
PARTS = st.sampled_from(MALFORMED) | st.builds(part, WORDS, url=WORDS, data=WORDS) | ANYTHING
MESSAGES = st.fixed_dictionaries({"content": st.lists(PARTS) | ANYTHING, "role": ANYTHING})


@given(st.lists(MESSAGES | ANYTHING) | ANYTHING)
def test_any_json_has_tokens_and_features_within_them(prompt: object) -> None:
    found = produce(prompt)
    assert found is not None
    assert found.count == -(-len(found.data) // 4)
    end = 0
    for feature in found.features:
        assert feature.offset >= end
        end = feature.offset + feature.length
    assert end <= found.count


def test_a_lone_surrogate_in_an_address_has_a_hash() -> None:
    raw = b'[{"content":[{"type":"image_url","image_url":{"url":"a\\ud800"}}]}]'
    assert produce(raw) is not None


@pytest.mark.parametrize(
    "parameters",
    [{}, {"estimate": {}}, {"estimate": {}, "modelName": "llama"}],
    ids=["nothing", "estimate mode", "a model name"],
)
def test_estimate_mode_is_accepted(parameters: dict[str, object]) -> None:
    assert isinstance(msgspec.convert(parameters, Params), Params)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param(
            {"estimate": {"image": {"mode": "fixed"}}},
            r"'fixed' - at `\$.estimate.image.mode`",
            id="image mode",
        ),
        pytest.param(
            {"estimate": {"video": {"frames": {"mode": "all"}}}},
            r"'all' - at `\$.estimate.video.frames.mode`",
            id="frames mode",
        ),
        pytest.param(
            {"estimate": {"video": {"tokensPerFrame": {"mode": "x"}}}},
            r"'x' - at `\$.estimate.video.tokensPerFrame.mode`",
            id="frame mode",
        ),
        pytest.param({"estimate": {"audio": {}}}, "unknown field `audio`", id="audio"),
        pytest.param({"mode": "estimate"}, "unknown field `mode`", id="unknown field"),
    ],
)
def test_what_cannot_be_honoured_is_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(parameters, Params)
