import pytest

from epp.scheduling import CycleState, Endpoint
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.deciders.always_disagg_multimodal import AlwaysDisaggMultimodalDecider
from epp_plugins.state_keys import TOKENIZED_PROMPT, MultiModalFeature, TokenizedPrompt

PICTURE = MultiModalFeature("image", "a1", 4, 576)
SOUND = MultiModalFeature("audio", "b2", 900, 80)


def tokenized(*features: MultiModalFeature) -> CycleState:
    return make_state({TOKENIZED_PROMPT: TokenizedPrompt(b"", 1000, features)})


@pytest.mark.parametrize("endpoint", [make_endpoint("a"), None], ids=["chosen", "not chosen yet"])
@pytest.mark.parametrize(
    ("state", "want"),
    [
        pytest.param(tokenized(PICTURE), True, id="a picture"),
        pytest.param(tokenized(PICTURE, SOUND), True, id="a picture and a sound"),
        pytest.param(tokenized(), False, id="text alone"),
        pytest.param(make_state(), False, id="not tokenized"),
    ],
)
def test_media_want_the_stage(state: CycleState, endpoint: Endpoint | None, want: bool) -> None:
    decider = make_plugin(AlwaysDisaggMultimodalDecider)
    assert decider.wants_stage(make_request(), endpoint, state) is want


def test_it_reads_the_prompt_alone() -> None:
    check(AlwaysDisaggMultimodalDecider)
    assert make_plugin(AlwaysDisaggMultimodalDecider).reads == (TOKENIZED_PROMPT,)


def test_it_has_no_parameters() -> None:
    with pytest.raises(ValueError, match="unknown field `modality`"):
        make_plugin(AlwaysDisaggMultimodalDecider, {"modality": "image"})
