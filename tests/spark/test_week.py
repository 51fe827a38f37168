"""The page on a week of events is run as it stands: its blocks one after the other, in the session of these tests."""

import re

from tests.broker import ROOT

PAGE = (ROOT / "docs" / "stream-week.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_week_of_events_goes_as_the_page_says(spark):
    """The page asserts each thing that it says."""
    page = {"__name__": "page"}
    try:
        for number, block in enumerate(BLOCKS):
            exec(compile(block, f"block {number} of stream-week.md", "exec"), page)
    finally:
        if "broker" in page:
            page["broker"].stop()
    assert page["spark"].sparkContext is spark.sparkContext
