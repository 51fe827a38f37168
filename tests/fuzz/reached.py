"""Which lines and functions of the data plane were reached, from what a build with BROKERD_COVERAGE=gcov counted.

    python -m tests.fuzz.reached DIRECTORY      the tree with the build, after processes of it have ended

A line counts if the compiler made code of it.  Code that only tests call is left out.
"""

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PLANE = "src/brokerd/plane"
FOR_TESTS = ("check.pxi",)
# Cython's names for functions: __pyx_f and lengths, or __pyx_pf; the wrappers (__pyx_pw) are left out.
MODULE = "7brokerd_5plane_6_plane_"


def counted(directory):
    """{file's name: ({line: times}, {line of a function's head: (name, times)})} of the plane, as gcov tells it."""
    directory = Path(directory).resolve()
    found = {}
    with tempfile.TemporaryDirectory() as work:
        counts = sorted(str(path) for path in directory.glob("build/**/_plane.gcda"))
        if not counts:
            raise SystemExit(f"{directory}: no counts of a build with BROKERD_COVERAGE=gcov")
        subprocess.run(["gcov", "--json-format", *counts], cwd=work, check=True, capture_output=True)
        for path in Path(work).glob("*.json.gz"):
            for file in json.loads(gzip.decompress(path.read_bytes()))["files"]:
                name = Path(file["file"]).name
                if PLANE in file["file"] and not name.endswith(".c") and name not in FOR_TESTS:
                    add_file(*found.setdefault(name, ({}, {})), file)
    return found


def add_file(lines, functions, file):
    """Add what gcov says of one file to what is known of it."""
    for line in file["lines"]:
        number = line["line_number"]
        lines[number] = lines.get(number, 0) + line["count"]
    for function in file["functions"]:
        if "__pyx_pw" not in function["name"]:
            at = function["start_line"]
            before = functions.get(at, ("", 0))[1]
            functions[at] = plain_name(function["name"]), before + function["execution_count"]


def plain_name(name):
    """A function's name in its source: __pyx_f_7brokerd_5plane_6_plane_4Core_turn is Core.turn."""
    if MODULE not in name:
        return name
    rest, parts = name.partition(MODULE)[2], []
    while True:
        digits = re.match(r"\d+", rest)
        if digits is None:
            return ".".join([*parts, rest])
        size = int(digits[0])
        part = rest[digits.end():digits.end() + size]
        behind = rest[digits.end() + size:]
        if not behind.startswith("_") or not (part[:1].isupper() or behind.endswith("et__")):
            return ".".join([*parts, rest[digits.end():]])      # The number only keeps names apart.
        parts.append(part)
        rest = rest[digits.end() + size + 1:]


def table(found):
    """Rows (file, lines, reached, names of functions never reached), the least reached file first."""
    rows = []
    for name, (lines, functions) in found.items():
        if lines:
            never = [function for _, (function, times) in sorted(functions.items()) if not times]
            rows.append((name, len(lines), sum(1 for count in lines.values() if count), never))
    return sorted(rows, key=lambda row: row[2] / row[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", help="the tree with the build")
    parser.add_argument("--lines", action="store_true", help="also the numbers of the lines that were never reached")
    options = parser.parse_args()
    found = counted(options.directory)
    rows = table(found)
    total, reached = sum(row[1] for row in rows), sum(row[2] for row in rows)
    for name, lines, hit, never in [*rows, ("all", total, reached, [])]:
        sys.stdout.write(f"{name:18} {lines:5} lines {100 * hit / lines:5.1f} %  {', '.join(never)}\n")
        if options.lines and name in found:
            missed = [str(line) for line, count in sorted(found[name][0].items()) if not count]
            sys.stdout.write(f"{'':18} {' '.join(missed)}\n")


if __name__ == "__main__":
    main()
