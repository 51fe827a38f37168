"""Files changed inside, for a few seconds; the search itself is long, and made by hand or by .ci/sanitize."""

import os
import random
import signal

import pytest
from tests.fuzz import damage, fuzz_files

from brokerd.store import format as layout


def test_a_start_on_changed_files_comes_up_or_names_one_of_them():
    counts = fuzz_files.fuzz(first=60, inputs=60, seed=1)      # Number 99 is for a real process.
    assert counts["inputs"] == 60
    assert counts["came up"] > 20
    assert counts["refused"] > 5
    assert counts["read"] > 60
    assert counts["read of streams"] > 1000
    assert counts["real came up"] + counts["real refused"] == 1


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    made = []
    for number in range(5):
        directory = tmp_path_factory.mktemp("template")
        made.append((directory, fuzz_files.make_template(directory, number)))
    return made


def test_the_directories_have_every_kind_of_file(directories):
    names = {path.name for directory, _ in directories for path in directory.rglob("*") if path.is_file()}
    assert {damage.kind_of(name) for name in names} >= set(damage.KINDS)


def test_an_input_is_always_the_same(directories, tmp_path):
    def contents(number, where):
        made = fuzz_files.Input(tmp_path / where, directories, 1, number)
        return str(made), {path.name: path.read_bytes() for path in made.directory.rglob("*") if path.is_file()}

    assert contents(3, "a") == contents(3, "b")
    assert contents(3, "c") != contents(4, "d")


def test_changed_records_and_entries_keep_right_checksums(directories):
    """What only octets without sense would show to be wrong reaches the code behind the checks."""
    [path] = [path for path in directories[1][0].rglob("msgs.0000000001") if "transient" not in path.parts][:1]
    octets, right = path.read_bytes(), 0
    for seed in range(60):
        changed = damage.changed(random.Random(seed), path.name, octets)
        length = int.from_bytes(changed[68:72], "little")
        if changed != octets and len(changed) >= 64 + length >= 128:
            right += (layout.record_crc(changed[64:64 + length], 1).to_bytes(4, "little") == changed[72:76]
                      and layout.crc32c(changed[:36]).to_bytes(4, "little") == changed[36:40])
    assert right > 20


@pytest.mark.parametrize("text", ["two\nlines of acks.1", "no file is named"])
def test_a_refusal_without_one_line_and_a_file_is_a_fault(text):
    made = type("Made", (), {"names": {"acks.1"}})()
    with pytest.raises(fuzz_files.Fault):
        fuzz_files.check_refusal(text, made)


def test_a_crash_of_a_child_is_a_fault_that_names_the_signal(tmp_path):
    with pytest.raises(fuzz_files.Fault, match=f"signal {int(signal.SIGKILL)}"):
        fuzz_files.in_a_child(lambda: os.kill(os.getpid(), signal.SIGKILL), tmp_path / "log")
    with pytest.raises(fuzz_files.Fault, match="no such thing"):
        fuzz_files.in_a_child(lambda: {}["no such thing"], tmp_path / "log")
    assert fuzz_files.in_a_child(lambda: {"a": 1}, tmp_path / "log") == {"a": 1}
