"""Each promise of docs/ordering.md is proved by an audit, or by tests where the files cannot contradict it."""

import re
from pathlib import Path

import pytest

from brokerd.audit.scan import AUDITS
from brokerd.audit.verdicts import OF_USE
from brokerd.spark import by_arrays
from brokerd.spark.checks import CHECKS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ordering.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^(\d+)\. ", PAGE, re.MULTILINE)
TABLE = PAGE.split("\n## What proves it\n")[1].split("\n## ")[0]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\|.*$", TABLE, re.MULTILINE)[2:]]


def words_in(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_numbers_its_promises_from_one_on():
    assert [str(n + 1) for n in range(len(PROMISES))] == PROMISES


def test_every_promise_is_proved_by_an_audit_or_by_tests_that_are_there():
    proofs = {promise: (words_in(audits), [word for word in words_in(tests) if word.startswith("tests/")])
              for promise, audits, tests in ROWS}
    assert [promise for promise in proofs if promise.isdigit()] == PROMISES
    assert [promise for promise, (audits, tests) in proofs.items() if not audits and not tests] == []
    assert [path for _, tests in proofs.values() for path in tests if not (ROOT / path).exists()] == []


def test_every_audit_proves_a_promise_or_judges_the_use():
    named = {audit for _, audits, _ in ROWS for audit in words_in(audits)}
    assert named == set(AUDITS) - OF_USE
    assert set(AUDITS) >= OF_USE


@pytest.mark.parametrize("audit", AUDITS)
def test_every_audit_is_there_in_both_engines_and_explained(audit):
    assert audit in CHECKS or audit in by_arrays.AUDITS         # Both engines judge these by the same functions.
    assert f"`{audit}`" in (ROOT / "docs" / "prove.md").read_text(encoding="utf-8")
