"""What gcov says, put together; the build that counts takes a minute, and is made by .ci/coverage."""

import pytest
from tests.fuzz import reached


@pytest.mark.parametrize(("name", "plain"), [
    ("__pyx_f_7brokerd_5plane_6_plane_drop_octets", "drop_octets"),
    ("__pyx_f_7brokerd_5plane_6_plane_4Core_turn", "Core.turn"),
    ("__pyx_pf_7brokerd_5plane_6_plane_5Queue_8find_own_ttl", "Queue.find_own_ttl"),
    ("__pyx_pf_7brokerd_5plane_6_plane_4find_own_ttl", "find_own_ttl"),
    ("__pyx_pf_7brokerd_5plane_6_plane_5Queue_5ready___get__", "Queue.ready.__get__"),
    ("__pyx_pf_7brokerd_5plane_6_plane_6Routes_2__dealloc__", "Routes.__dealloc__"),
    ("hash_with_key", "hash_with_key")])
def test_a_function_has_the_name_of_its_source(name, plain):
    assert reached.plain_name(name) == plain


def test_lines_and_functions_of_several_parts_of_a_file_are_added_up():
    lines, functions = {}, {}
    name = "__pyx_f_7brokerd_5plane_6_plane_"
    reached.add_file(lines, functions, {
        "lines": [{"line_number": 3, "count": 0}, {"line_number": 4, "count": 2}, {"line_number": 3, "count": 0}],
        "functions": [{"name": f"{name}idle", "start_line": 2, "execution_count": 0},
                      {"name": f"{name}used", "start_line": 4, "execution_count": 2},
                      {"name": "__pyx_pw_used", "start_line": 9, "execution_count": 0}]})
    reached.add_file(lines, functions, {"lines": [{"line_number": 4, "count": 1}], "functions": []})
    assert lines == {3: 0, 4: 3}
    assert reached.table({"a.pxi": (lines, functions), "none.pxi": ({}, {})}) == [("a.pxi", 2, 1, ["idle"])]


def test_a_tree_that_nothing_was_counted_in_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no counts"):
        reached.counted(tmp_path)
