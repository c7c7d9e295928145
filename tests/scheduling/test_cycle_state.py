"""The cycle state of a request, and its typed keys."""

import gc
from concurrent.futures import ThreadPoolExecutor

from epp.scheduling import AttributeKey, CycleState, StateKey
from epp.testing import make_endpoint

COUNT = StateKey[int]("count")


def test_a_value_is_read_back_and_a_missing_one_is_none() -> None:
    state = CycleState()
    assert state.read(COUNT) is None
    state.write(COUNT, 1)
    state.write(COUNT, 2)
    assert state.read(COUNT) == 2


def test_a_forgotten_value_is_gone_and_one_that_never_was_may_be_forgotten() -> None:
    state = CycleState()
    state.write(COUNT, 1)
    state.forget(COUNT)
    assert state.read(COUNT) is None
    state.forget(COUNT)


def test_what_is_kept_until_the_request_is_sent_is_gone_then() -> None:
    state = CycleState()
    other = StateKey[int]("other count")
    state.write(COUNT, 1, until_sent=True)
    state.write(other, 2)
    copy = state.copy()
    state.sent()
    assert (state.read(COUNT), state.read(other)) == (None, 2)
    assert copy.read(COUNT) == 1
    copy.sent()
    assert copy.read(COUNT) is None
    state.write(COUNT, 3)
    state.sent()
    assert state.read(COUNT) == 3


def test_a_key_ties_the_type_of_its_value() -> None:
    """Without the check mypy fails: the ignore below would be unused."""
    state = CycleState()
    state.write(COUNT, "one")  # type: ignore[misc] # no int
    count: int | None = CycleState().read(COUNT)
    assert count is None


def test_writes_to_a_copy_do_not_show_in_the_original_nor_the_other_way() -> None:
    state = CycleState()
    state.write(COUNT, 1)
    copy = state.copy()
    assert copy.read(COUNT) == 1
    copy.write(COUNT, 2)
    assert state.read(COUNT) == 1
    state.write(COUNT, 3)
    assert copy.read(COUNT) == 2


def test_keys_of_one_kind_and_name_are_one_key() -> None:
    """Two plugin files, or one file before and after a reload, share the value."""
    state = CycleState()
    state.write(StateKey[int]("count"), 1)
    assert state.read(StateKey[int]("count")) == 1
    assert StateKey[int]("count") is COUNT
    assert repr(COUNT) == "StateKey('count')"


def test_keys_of_different_kinds_are_different_keys() -> None:
    one: object = StateKey[int]("shared name")
    two: object = AttributeKey[int]("shared name")
    assert one is not two
    assert StateKey[int]("another name") is not StateKey[int]("shared name")


def test_a_key_lives_as_long_as_something_is_written_under_it() -> None:
    key = StateKey[object]("short-lived")
    known = id(key)
    state = CycleState()
    state.write(key, "kept")
    del key
    gc.collect()
    assert id(StateKey[object]("short-lived")) == known  # the state holds it
    assert state.read(StateKey[object]("short-lived")) == "kept"


def test_threads_that_make_a_key_at_once_get_the_same() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda n: StateKey[int](f"raced {n // 8}"), range(800)))
    assert len({id(key) for key in made}) == 100


def test_an_attribute_of_an_endpoint_is_none_until_it_is_written() -> None:
    endpoint = make_endpoint()
    key = AttributeKey[list[str]]("Models/models-data-extractor")
    assert endpoint.attribute(key) is None
    endpoint.attributes[key] = ["llama"]
    assert endpoint.attribute(key) == ["llama"]
