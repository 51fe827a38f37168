"""Write ``src/brokerd/wire/methods.pyi``, which this file prints, from the method table.  PYTHONPATH: src."""

import sys

from brokerd.wire import methods

HEAD = '''"""The classes that methods.py makes of its table.  Written by tests/wire/stub_of_methods.py."""

# ruff: noqa: A002

from typing import Any, ClassVar, Self

BY_INDEX: dict[int, type[Method]]
BY_NAME: dict[str, type[Method]]

METHOD_OCTETS_MAX: int
VALUES_MAX: int

def decode(payload: bytes) -> Method: ...
def decode_bounded(payload: bytes) -> Method: ...
def check_octets(payload: bytes) -> None: ...

class Method:
    NAME: ClassVar[str]
    INDEX: ClassVar[int]
    FIELDS: ClassVar[tuple[tuple[str, str], ...]]
    REPLIES: ClassVar[tuple[str, ...]]
    CONTENT: ClassVar[bool]
    def __init__(self) -> None: ...
    def encode(self) -> bytes: ...
    @classmethod
    def decode_fields(cls, payload: bytes) -> Self: ...
    def frame(self, channel: int) -> bytes: ...
'''
TYPES = {"bit": "bool", "shortstr": "str", "longstr": "bytes", "table": "dict[str, Any]"}


def stub() -> str:
    """The text of the stub file."""
    pieces = [HEAD]
    for method in methods.BY_INDEX.values():
        fields = [
            (name, TYPES.get(domain, "int"))
            for name, (_, domain) in zip(vars(method)["__slots__"], method.FIELDS, strict=True)
        ]
        if not fields:
            blank = "" if pieces[-1].endswith("(Method): ...\n") else "\n"
            pieces.append(f"{blank}class {method.__name__}(Method): ...\n")
            continue
        lines = [f"\nclass {method.__name__}(Method):"]
        lines += [f"    {name}: {kind}" for name, kind in fields]
        lines += ["    def __init__(", "        self,", "        *,"]
        lines += [f"        {name}: {parameter(kind)} = ...," for name, kind in fields]
        lines += ["    ) -> None: ...", ""]
        pieces.append("\n".join(lines))
    return "".join(pieces)


def parameter(kind: str) -> str:
    """What a constructor takes for an attribute of ``kind``."""
    if kind == "bytes":
        return "bytes | str"
    return f"{kind} | None" if kind.startswith("dict") else kind


if __name__ == "__main__":
    sys.stdout.write(stub())
