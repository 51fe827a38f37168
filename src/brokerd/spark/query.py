"""Runs a query over a broker's files and reads only the parts that it needs: ``sql``, and ``where`` for one table.

Spark tells a source written in Python neither which columns a query uses nor, reliably, which rows (see ``source``).
So this module lets Spark plan the query, and looks up in the plan which columns it uses and by which filters it selects
rows.  Then it plans the query once more, over readings of the tables that leave out all else.  Spark still applies all
filters itself.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.spark.bounds import Condition
from brokerd.spark.small_tables import read_with_times, tables
from brokerd.spark.source import read
from brokerd.spark.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHEAPEST = "segment"            # the column to count rows by; no file need be read for it
CATALYST = "org.apache.spark.sql.catalyst"
SCAN = "org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation"
FILTER = f"{CATALYST}.plans.logical.Filter"
AND = f"{CATALYST}.expressions.And"
STRATEGY = "org.apache.spark.sql.execution.datasources.DataSourceStrategy$"


class Needs(NamedTuple):
    """The parts of a table that a query needs: columns, in the table's order, and conditions that all rows it needs
    meet."""

    columns: list[str]
    conditions: list[Condition]

    def option(self) -> dict[str, str]:
        """The conditions as an option of the source; without conditions, no option."""
        return {"conditions": json.dumps(self.conditions)} if self.conditions else {}


def sql(spark: "SparkSession", path: str, query: str, **options: str) -> "DataFrame":
    """The answer of a query over the views that ``views.views`` makes for ``path``, without ``violations``.

    ``options`` are the source's (``queues``, ``crc``).  Afterwards the views stand as ``views`` makes them.  Raises
    AuditError for a path without the broker's files, and what Spark raises for a query that it cannot understand.
    """
    tables(spark, path, **options)
    needs = needs_of(spark.sql(query))
    try:
        for name, needed in needs.items():
            narrow = read_with_times(spark, path, name, columns=needed.columns or (CHEAPEST,), **needed.option(),
                                     **options)
            narrow.createOrReplaceTempView(name)
        return spark.sql(query)
    finally:
        for name in needs:
            read_with_times(spark, path, name, **options).createOrReplaceTempView(name)


def where(spark: "SparkSession", path: str, table: str, condition: str, *, columns: Sequence[str] | None = None,
          **options: str) -> "DataFrame":
    """``source.read`` of the rows that meet a condition in SQL, as ``queue LIKE 'eu.%' AND time >= '2026-11-23'``.

    ``columns`` are those of the result, and those that the condition names.  Raises as ``source.read`` does, and what
    Spark raises for a condition that it cannot understand.
    """
    needed = needs_of(read(spark, path, table, columns=columns, **options).where(condition)).get(table)
    more = needed.option() if needed is not None else {}
    return read(spark, path, table, columns=columns, **more, **options).where(condition)


def needs_of(frame: "DataFrame") -> dict[str, Needs]:
    """The parts that a DataFrame needs of each table of the source that it reads, by Spark's plan for it."""
    translate = getattr(getattr(frame.sparkSession._jvm, STRATEGY), "MODULE$").translateFilter
    plan = frame._jdf.queryExecution().optimizedPlan()
    used, leaves = _ids(plan.output()), []
    filters: dict[int, set[str]] = {}           # by the id of a scan's first column: conditions, as JSON
    for node in _nodes(plan):
        name = node.getClass().getName()
        if name == SCAN:
            leaves.append(node)
            continue
        used |= _ids(node.references().toSeq())
        if name == FILTER and node.child().getClass().getName() == SCAN:
            filters[_first_id(node.child())] = {json.dumps(condition) for condition in _conditions(
                translate, node.condition())}
    found: dict[str, tuple[set[str], set[str]]] = {}
    for leaf in leaves:
        table = leaf.relation().options().get("table") or "messages"
        if leaf.relation().table().name() != "brokerd" or table not in TABLES:
            continue                            # Another source's.
        names = {attribute.name() for attribute in _items(leaf.output()) if attribute.exprId().id() in used}
        columns, common = found.get(table, (set(), filters.get(_first_id(leaf), set())))
        found[table] = (columns | names, common & filters.get(_first_id(leaf), set()))
    return {table: Needs([name for name in TABLES[table] if name in columns],
                         [Condition(*json.loads(text)) for text in sorted(common)])
            for table, (columns, common) in found.items()}


def _first_id(scan: Any) -> int:
    return int(scan.output().apply(0).exprId().id())


def _conditions(translate: Any, expression: Any) -> Iterator[Condition]:
    """The comparisons with constants that all rows meet for which an expression of Spark is true."""
    if expression.getClass().getName() == AND:
        yield from _conditions(translate, expression.left())
        yield from _conditions(translate, expression.right())
        return
    option = translate(expression, False)
    if option.isDefined():
        condition = _condition(option.get())
        if condition is not None:
            yield condition


def _condition(given: Any) -> Condition | None:
    """A filter of Spark's API for sources; None for one that is no comparison of a column."""
    kind = given.getClass().getSimpleName()
    if kind == "Not":
        inner = _condition(given.child())
        return inner._replace(negated=not inner.negated) if inner is not None else None
    if kind in ("And", "Or", "AlwaysTrue", "AlwaysFalse"):
        return None
    if kind == "In":
        return Condition(given.attribute(), kind, [_value(value) for value in given.values()])
    return Condition(given.attribute(), kind, None if kind in ("IsNull", "IsNotNull") else _value(given.value()))


def _value(value: Any) -> Any:
    """A constant that JSON can hold; a timestamp as µs since the epoch, None for what the source cannot compare."""
    if value is None or isinstance(value, str | int | bool):
        return value
    if hasattr(value, "getClass") and value.getClass().getName() == "java.sql.Timestamp":
        return value.getTime() // 1000 * 1_000_000 + value.getNanos() // 1000
    return None


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for inner in (plan.children(), plan.subqueries()):
        for child in _items(inner):
            yield from _nodes(child)


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _ids(attributes: Any) -> set[int]:
    return {int(attribute.exprId().id()) for attribute in _items(attributes)}
