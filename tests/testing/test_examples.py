"""The examples of docs/testing.md, as users would have them: each in a file of its own, run by pytest."""

import re
from importlib.util import find_spec

import pytest
from tests.test_docs import ROOT, text_of
from tests.testing.test_plugin import run

from brokerd.testing import Broker
from brokerd.testing.broker import Clock
from brokerd.testing.order import Order

SECTION = re.compile(r"^## ([\w-]+)\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = SECTION.findall(text_of(ROOT / "docs" / "testing.md"))
NEEDS = {"pika": "pika", "aio-pika": "aio_pika", "Celery": "celery", "FastStream": "faststream", "Dramatiq": "dramatiq",
         "taskiq": "taskiq_aio_pika"}
INNER = {"ask", "fill_disk"}    # of use to the package alone


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_example_of_the_manual_passes(name, text, tmp_path):
    if find_spec(NEEDS[name]) is None:
        pytest.skip(f"{name} is not installed")
    (tmp_path / "test_example.py").write_text(text)
    status, output = run(tmp_path, "-W", "error")
    assert status == 0, output
    assert "1 passed" in output


@pytest.mark.parametrize(("prefix", "of"), [("broker.", Broker), ("broker.clock.", Clock), ("broker.order.", Order)])
def test_what_tests_may_do_to_a_broker_is_in_the_manual(prefix, of):
    manual = text_of(ROOT / "docs" / "testing.md")
    for name in vars(of):
        if not name.startswith("_") and name not in INNER:
            assert f"{prefix}{name}" in manual or f"`.{name}" in manual, name


def test_there_is_an_example_for_each_library():
    assert [name for name, _ in EXAMPLES] == list(NEEDS)
