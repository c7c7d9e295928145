from epp.scheduling import CycleState, StateKey


def test_a_value_is_read_under_the_key_it_was_written_with() -> None:
    key, state = StateKey[int]("count"), CycleState()
    assert state.read(key) is None
    state.write(key, 1)
    state.write(key, 2)
    assert state.read(key) == 2


def test_keys_of_the_same_name_are_different_keys() -> None:
    state = CycleState()
    state.write(StateKey[int]("count"), 1)
    assert state.read(StateKey[int]("count")) is None
