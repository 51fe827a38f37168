from brokerd.links.state import LinkKey, LinkState


def test_a_state_survives_its_way_as_a_row_and_unknown_keys_are_left_out():
    state = LinkState("queue", "/", "q", "up", messages=3, reason="no route to host")
    assert LinkState.from_row({**state.as_row(), "later": 1}) == state
    assert state.key == LinkKey("queue", "/", "q", "up")
