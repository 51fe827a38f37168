"""Many faults stand in one dump, each in a vhost of its own, and rows of two engines are compared.

``python -m tests.planter.engines`` compares them over all kinds; that takes Spark some minutes.
"""

from tests.planter.composite import Composite
from tests.planter.engines import differences, in_arrays


def test_faults_in_one_dump_do_not_touch_each_other(sample, tmp_path, clean):
    made = Composite(sample.dump, tmp_path / "composite")
    made.plant(1, kinds=("skipped", "out_twice"))
    made.edit(3, seed=5)
    assert sorted(made.planted) == ["edit 0", "edit 1", "edit 2", "out_twice 0", "skipped 0"]
    rows = in_arrays(made.end())
    assert {vhost for vhost, _, _ in rows} == {"clean", *made.planted}
    assert {key[1:]: row[0] for key, row in rows.items() if key[0] == "clean"} == {
        key: said.verdict for key, said in clean.items()}
    violated = {(vhost, name) for (vhost, _, name), row in rows.items() if row[0] == "violated"}
    assert violated >= {("skipped 0", "fifo"), ("out_twice 0", "out_twice")}


def test_rows_that_differ_or_are_not_there_are_told():
    ours, theirs = {"a": (1,), "b": (2,), "c": (3,)}, {"a": (1,), "b": (4,), "d": (5,)}
    assert differences(ours, theirs) == [("b", (2,), (4,)), ("c", (3,), None), ("d", None, (5,))]
    assert differences(ours, ours) == []
