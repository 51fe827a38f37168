"""``brokerctl export``: tables of the broker's files as Parquet.  ``brokerd.spark.export`` writes them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from brokerd.audit import AuditError, many
from brokerd.cli.ctl_text import octets

if TYPE_CHECKING:
    from brokerd.audit.files import Damage

LINES_MAX = 20  # of damage


def write(
    directory: str, out: str, glob: str, tables: str, crc: bool, progress: Callable[[str], object]
) -> tuple[str, list[str]]:
    """Write ``tables`` (names, separated by commas) to the folder ``out``.  Returns a line that says what was written,
    and lines that say what is damaged, so that it may be missing there: at most ``LINES_MAX``, and how many more.

    ``progress`` is called with how much has been read.  Raises AuditError, OSError.
    """
    from brokerd.audit.files import open_source
    from brokerd.auditor.request import REPORT, Request, find, must_be_installed

    must_be_installed(REPORT, "an export")
    from brokerd.spark.export import export
    from brokerd.spark.tables import TABLES

    names = [name for name in (name.strip() for name in tables.split(",")) if name]
    unknown = sorted(set(names) - set(TABLES))
    if unknown or not names:
        raise AuditError(f"no such table: {', '.join(unknown) or repr(tables)} (there are {', '.join(TABLES)})")
    queues = find(Request(directory, queues=glob or None))
    done = [0]

    def tell(more: int) -> None:
        done[0] += more
        progress(f"{octets(done[0])} read")

    damaged: list[str] = []
    counts = export(open_source(directory).root, queues, out, names, crc=crc, progress=tell,
                    tell_damage=lambda damage: damaged.append(_line(damage)))  # fmt: skip
    rows = ", ".join(f"{count:,} in {name}" for name, count in counts.items())
    lines = damaged[:LINES_MAX]
    if damaged:
        more = f" ({len(damaged) - LINES_MAX:,} of them not shown)" if len(damaged) > LINES_MAX else ""
        lines.append(f"not all could be exported: {many(len(damaged), 'damaged place')}{more}")
    return f"{out}: {many(len(queues), 'queue')}; rows: {rows}", lines


def _line(damage: "Damage") -> str:
    place = f" at {damage.offset}" if damage.offset >= 0 else ""
    return f"{damage.file}{place}: {damage.detail}"
