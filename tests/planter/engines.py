"""Compares both engines of the audit over a dump with all kinds of faults and with random edits, row by row.

    python -m tests.planter.engines FOLDER [--places N] [--edits N] [--seed N]

FOLDER holds a sample, or gets one.  Each fault stands in a vhost of its own, so that Spark judges all of them at once.
Says each row that differs, and ends with 1 if there is one.
"""

import argparse
import shutil
import sys
from pathlib import Path

from tests.planter.composite import Composite
from tests.planter.samples import sample

from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit

FIGURES = ("verdict", "found", "checked", "overtakings")


def rows_of(found):
    """{(vhost, queue, audit): figures}.  The engine in SQL counts culprits and consequences together; rows that it has
    from the other engine tell them apart."""
    told = (row | {"found": row.get("by_rule", row["found"])} for row in found)
    return {(row["vhost"], row["queue"], row["audit"]): tuple(row.get(name) for name in FIGURES) for row in told}


def in_arrays(path):
    """What the engine of arrays says."""
    return rows_of(row for judged in audit(open_source(str(path))) for row in judged.audits)


def in_sql(path):
    """What the engine in SQL says."""
    from brokerd.spark import checks
    from brokerd.spark.session import session

    spark = session("engines", "local[2]", settings={"spark.sql.shuffle.partitions": "4"})
    try:
        return rows_of(checks.run(spark, str(path)))
    finally:
        spark.stop()


def differences(ours, theirs):
    """[(row, figures of the one, figures of the other)]; None: it has no such row."""
    both = sorted({*ours, *theirs})
    return [(key, ours.get(key), theirs.get(key)) for key in both if ours.get(key) != theirs.get(key)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--places", type=int, default=1)
    parser.add_argument("--edits", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not (options.folder / "dump").exists():
        sample(options.folder)
    shutil.rmtree(options.folder / "composite", ignore_errors=True)
    made = Composite(options.folder / "dump", options.folder / "composite")
    made.plant(options.places)
    made.edit(options.edits, options.seed)
    path = made.end()
    ours = in_arrays(path)
    found = differences(ours, in_sql(path))
    for (vhost, queue, name), mine, its in found:
        sys.stdout.write(f"{vhost:40} {made.planted.get(vhost, ''):40} {queue:8} {name:20} arrays {mine}  SQL {its}\n")
    sys.stdout.write(f"{len(made.planted)} faults, {len(ours)} rows, {len(found)} differences\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
