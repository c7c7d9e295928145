"""The chain of block hashes is published, so other programs and versions compute the same."""

import pytest

from epp_plugins.data_producers.prefix_hashes import hash_blocks, seed_of

TWO_AND_A_TAIL = bytes(range(256)) * 2 + b"tail"


@pytest.mark.parametrize(
    ("model", "salt", "want"),
    [
        # XXH3_64bits of nothing, as xxHash's own documentation gives it.
        pytest.param("", "", 0x2D06800538D394C2, id="no model"),
        pytest.param("llama", "", 0x1CD9E3046F25882F, id="a model"),
        pytest.param("llama-lora-a", "", 0x45D40DB725014089, id="an adapter"),
        pytest.param("llama", "tenant-1", 0xAE279BFA00FBF94E, id="a salt"),
    ],
)
def test_seeds(model: str, salt: str, want: int) -> None:
    assert seed_of(model, salt) == want


@pytest.mark.parametrize(
    ("data", "block_bytes", "want"),
    [
        pytest.param(
            TWO_AND_A_TAIL,
            256,
            [0xC4D8E76974EC7EB2, 0x492F64C7CA02B67F, 0xEBE9160147E05815],
            id="two blocks and a partial one",
        ),
        pytest.param(
            b'[{"role":"user","content":"hi"}]', 256, [0xE26FCA9F5DEE4349], id="a short chat"
        ),
    ],
)
def test_chains(data: bytes, block_bytes: int, want: list[int]) -> None:
    assert hash_blocks(data, block_bytes, seed_of("llama", "")) == want
