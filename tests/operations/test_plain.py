"""Values of AMQP tables as JSON has them."""

import json
from decimal import Decimal

from brokerd.operations.plain import plain
from brokerd.wire.values import Int8, Timestamp


def test_every_type_of_a_table_becomes_what_json_has():
    table = {"b": b"ab\xff", "t": Timestamp(7), "i": Int8(3), "d": Decimal("1.5"), "n": None, "l": [b"x", {"k": True}],
             "f": 2.5, "nan": float("nan"), "inf": float("-inf")}
    assert plain(table) == {"b": "ab\udcff", "t": 7, "i": 3, "d": 1.5, "n": None, "l": ["x", {"k": True}], "f": 2.5,
                            "nan": "nan", "inf": "-inf"}
    json.dumps(plain(table), allow_nan=False)
