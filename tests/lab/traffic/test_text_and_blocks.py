"""Texts and block keys agree on the shared prefixes of prompts."""

from hypothesis import given
from hypothesis import strategies as st

from epp.lab.traffic import BYTES_PER_TOKEN, Segment, block_keys, prompt_text

segments = st.lists(
    st.builds(Segment, st.integers(0, 2), st.integers(1, 9), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(segments, segments, st.integers(1, 5))
def test_equal_keys_are_equal_text(first: list[Segment], second: list[Segment], size: int) -> None:
    texts = prompt_text(first), prompt_text(second)
    for text, prompt in zip(texts, (first, second), strict=True):
        assert len(text) == BYTES_PER_TOKEN * sum(segment.tokens for segment in prompt)
    keys = block_keys(first, size), block_keys(second, size)
    for place, (a, b) in enumerate(zip(*keys, strict=False)):
        end = (place + 1) * size * BYTES_PER_TOKEN
        if a == b:
            assert texts[0][:end] == texts[1][:end]


@given(segments, st.integers(1, 5))
def test_keys_cover_all_full_blocks(prompt: list[Segment], size: int) -> None:
    tokens = sum(segment.tokens for segment in prompt)
    assert len(block_keys(prompt, size)) == tokens // size
    assert len(block_keys(prompt, size, with_partial=True)) == -(-tokens // size)
    assert block_keys(prompt, size, root=1)[:1] != block_keys(prompt, size)[:1] or tokens < size


def test_a_shorter_segment_is_a_prefix_of_a_longer_one() -> None:
    short, long = [Segment(7, 20)], [Segment(7, 50)]
    assert prompt_text(long).startswith(prompt_text(short))
    assert block_keys(long, 10)[:2] == block_keys(short, 10)


def test_texts_of_different_contents_differ() -> None:
    texts = [prompt_text([Segment(content, 16)]) for content in range(1000)]
    assert len(set(texts)) == 1000
    assert all(text.isascii() and b'"' not in text and b"\\" not in text for text in texts)


def test_known_outputs_stand_in_the_prompt_as_they_were() -> None:
    prompt = [Segment(3, 2), Segment(0, 5, is_output=True), Segment(4, 1)]
    text = prompt_text(prompt, {0: b"Hello, I am a model."})
    assert text == prompt_text(prompt[:1]) + b"Hello, I am a model." + prompt_text(prompt[2:])
    assert len(prompt_text(prompt)) == 8 * BYTES_PER_TOKEN  # nothing is known of it
    assert prompt_text([Segment(0, 5, is_output=True)]) != prompt_text([Segment(0, 5)])
