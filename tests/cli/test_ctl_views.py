"""Which answers have a form of their own."""

from brokerd.cli import ctl_tables
from brokerd.cli.ctl_views import VIEWS, view_of
from brokerd.operations import table


def test_every_view_is_of_an_operation():
    assert {f"{noun} {verb}" for noun, verb in VIEWS} <= table.by_name().keys()


def test_an_operation_without_a_view_is_shown_as_names_and_values():
    view = view_of("none", "such")
    assert view.text is ctl_tables.things
    assert view.progress({"number": 1, "of": 2}) == "number 1, of 2"
    assert view.remarks({}) == []
    assert view.offline is None
