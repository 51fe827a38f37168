"""x-stream-filter-sql: a condition in SQL's words, compiled into a program for the data plane.

    region = 'eu' AND amount > 100 AND NOT (type LIKE 'test%' OR customer IS NULL) AND header('x-retry') IN (1, 2)

    or          and { OR and }
    and         not { AND not }
    not         [NOT] condition
    condition   sum [ comparison sum | [NOT] IN (…) | [NOT] LIKE text [ESCAPE text] | [NOT] BETWEEN sum AND sum
                    | IS [NOT] NULL ]
    sum         product { + - product }
    product     sign { * / % sign }
    sign        [- +] primary
    primary     literal, name, header('name'), properties.name, ( or )

The parser is a recursive descent of its own: it takes microseconds, where the tables of a parser generator take a
hundred milliseconds of the loop at the first use.  Everything has a limit: characters, depth, octets of the program.
Knows nothing of streams; what operations do stands in ``plane/filter.pxi``.
"""

import re
import struct
from typing import Any, NamedTuple

CHARACTERS_MAX, DEPTH_MAX, LISTED_MAX, PROGRAM_MAX, PATTERN_MAX = 4096, 24, 128, 6000, 255
INT64 = range(-(1 << 63), 1 << 63)
PROPERTIES = {
    "content_type": 15, "content_encoding": 14, "delivery_mode": 12, "priority": 11, "correlation_id": 10,
    "reply_to": 9, "expiration": 8, "message_id": 7, "timestamp": 6, "type": 5, "user_id": 4, "app_id": 3,
    "cluster_id": 2,
}  # fmt: skip
FIELDS = PROPERTIES | {"routing_key": 16, "exchange": 17, "size": 18, "offset": 19, "stored": 20}
NUMBERS = frozenset(FIELDS[name] for name in ("delivery_mode", "priority", "timestamp", "size", "offset", "stored"))
NAMES = {code: name for name, code in FIELDS.items()}
COMPARISONS = {"=": 16, "<>": 17, "!=": 17, "<": 18, "<=": 19, ">": 20, ">=": 21}
SUMS, PRODUCTS = {"+": 25, "-": 26}, {"*": 27, "/": 28, "%": 29}
AND, OR, NOT, NEGATIVE, IS_NULL, LIKE, IN_NEXT, IN_END = 22, 23, 24, 30, 31, 32, 33, 34
JUMP_FALSE, JUMP_TRUE = 35, 36
WORDS = frozenset({"AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "BETWEEN"})
TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?\*/
    | (?P<number> (?: \d+\.\d* | \.\d+ | \d+ ) (?: [eE][+-]?\d+ )? )
    | (?P<text> '(?:[^']|'')*' )
    | (?P<quoted> "(?:[^"]|"")+" )
    | (?P<name> [^\W\d][\w$]* )
    | (?P<sign> <> | != | <= | >= | [=<>+\-*/%(),.] )""",
    re.VERBOSE | re.DOTALL,
)


class ExpressionFault(Exception):
    """The expression is wrong: why, and where."""


class Token(NamedTuple):
    """``kind``: number, text, quoted, name, word, sign, or end."""

    kind: str
    text: str
    at: int


def compile_expression(text: Any) -> bytes:
    """The program that is true where the expression is.  Raises ExpressionFault."""
    if not isinstance(text, str):
        raise ExpressionFault("it must be a text")
    if len(text) > CHARACTERS_MAX:
        raise ExpressionFault(f"{len(text)} characters, at most {CHARACTERS_MAX}")
    program = _Parser(text).whole()
    if len(program) > PROGRAM_MAX:
        raise ExpressionFault("it is too long")
    return program


def _tokens(text: str) -> list[Token]:
    tokens, at = [], 0
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            open_ended = {"'": "a text without its end", '"': "a name without its end"}
            raise _fault(text, at, open_ended.get(text[at], f"'{text[at]}' has no meaning here"))
        if text.startswith("/*", at) and found.lastgroup:
            raise _fault(text, at, "a comment without its end")
        kind, octets = found.lastgroup, found.group()
        if kind == "name" and octets.upper() in WORDS:
            tokens.append(Token("word", octets.upper(), at))
        elif kind is not None:
            tokens.append(Token(kind, octets, at))
        at = found.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


def _fault(text: str, at: int, what: str) -> ExpressionFault:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return ExpressionFault(f"line {line}, column {column}: {what}")


def _kind(program: bytes) -> str | None:
    """Of a program that is a field or a literal alone: what it is.  None: it is another one."""
    code = program[0]
    if code == 6 and len(program) == 2:
        return "number" if program[1] in NUMBERS else "text"
    if code in (2, 3) and len(program) == 9:
        return "number"
    if code == 4 and len(program) in (1, 3 + int.from_bytes(program[1:3])):
        return "text"
    return "truth value" if code == 1 and len(program) == 2 else None


class _Parser:
    """Each method takes what its name says, and returns its program."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.at, self.depth = text, _tokens(text), 0, 0

    # --- tokens

    def fault(self, what: str, token: Token | None = None) -> ExpressionFault:
        return _fault(self.text, (token or self.tokens[self.at]).at, what)

    def take(self, *texts: str) -> str | None:
        """Take the next token, if it is one of these words or signs."""
        token = self.tokens[self.at]
        if token.kind not in ("word", "sign") or token.text not in texts:
            return None
        self.at += 1
        return token.text

    def need(self, text: str) -> None:
        if self.take(text) is None:
            raise self.fault(f"'{text}' is wanted, {self.shown()}")

    def shown(self) -> str:
        token = self.tokens[self.at]
        return "but it ends" if token.kind == "end" else f"not '{token.text}'"

    # --- grammar

    def whole(self) -> bytes:
        program = self.either()
        if self.tokens[self.at].kind != "end":
            raise self.fault(f"the end is wanted, {self.shown()}")
        return program

    def either(self) -> bytes:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self.fault(f"more than {DEPTH_MAX} conditions within one another")
        program = self.both()
        while self.take("OR"):
            program = self.jump(JUMP_TRUE, program, self.both(), OR)
        self.depth -= 1
        return program

    def both(self) -> bytes:
        program = self.negated()
        while self.take("AND"):
            program = self.jump(JUMP_FALSE, program, self.negated(), AND)
        return program

    def jump(self, code: int, left: bytes, right: bytes, join: int) -> bytes:
        """The right side is left out where the left one decides."""
        right += bytes((join,))
        if len(left) + len(right) > PROGRAM_MAX:
            raise self.fault("it is too long")
        return left + bytes((code,)) + len(right).to_bytes(2) + right

    def negated(self) -> bytes:
        negated = False
        while self.take("NOT"):
            negated = not negated
        return self.condition() + (bytes((NOT,)) if negated else b"")

    def condition(self) -> bytes:
        start = self.tokens[self.at]
        program = self.compared()
        if len(program) > PROGRAM_MAX:  # BETWEEN takes its left side twice.
            raise self.fault("it is too long", start)
        return program

    def compared(self) -> bytes:
        start = self.tokens[self.at]
        left = self.sum()
        sign = self.take(*COMPARISONS)
        if sign is not None:
            right = self.sum()
            self.check_kinds(left, right, start)
            return left + right + bytes((COMPARISONS[sign],))
        if self.take("IS"):
            negated = self.take("NOT")
            self.need("NULL")
            return left + bytes((IS_NULL, NOT) if negated else (IS_NULL,))
        negated = self.take("NOT")
        if self.take("IN"):
            program = left + self.listed(left)
        elif self.take("LIKE"):
            self.check_kinds(left, b"\4", start)
            program = left + self.pattern()
        elif self.take("BETWEEN"):
            low = self.sum()
            self.need("AND")
            high = self.sum()
            for end in (low, high):
                self.check_kinds(left, end, start)
            program = left + low + bytes((COMPARISONS[">="],)) + left + high + bytes((COMPARISONS["<="], AND))
        elif negated:
            raise self.fault(f"IN, LIKE or BETWEEN is wanted, {self.shown()}")
        else:
            return left
        return program + bytes((NOT,)) if negated else program

    def check_kinds(self, left: bytes, right: bytes, start: Token) -> None:
        """A field of which the kind is known does not meet a literal of another kind: that would never be true."""
        for one, other in ((left, right), (right, left)):
            kind, against = _kind(one), _kind(other)
            if one[:1] == b"\6" and None not in (kind, against) and kind != against:
                raise self.fault(f"{NAMES[one[1]]} is a {kind}: it never compares with a {against}", start)

    def listed(self, left: bytes) -> bytes:
        self.need("(")
        program, count = b"\1\0", 0
        while True:
            count += 1
            if count > LISTED_MAX:
                raise self.fault(f"more than {LISTED_MAX} values in a list")
            start, one = self.tokens[self.at], self.sum()
            self.check_kinds(left, one, start)
            program += one + bytes((IN_NEXT,))
            if not self.take(","):
                break
        self.need(")")
        return program + bytes((IN_END,))

    def pattern(self) -> bytes:
        token = self.tokens[self.at]
        text, escape = self.string(), None
        if self.take("ESCAPE"):
            escape = self.string()
            if len(escape) != 1:
                raise self.fault("ESCAPE takes one character", self.tokens[self.at - 1])
        out, characters = b"", iter(text)
        for one in characters:
            if one == escape:
                one = next(characters, "")
                if one not in ("%", "_", escape):
                    raise self.fault("the escape stands before %, _ or itself only", token)
            elif one in "%_":
                out += b"\3" if one == "%" else b"\2"
                continue
            out += b"".join(bytes((1, octet)) for octet in one.encode("utf-8", "surrogateescape"))
        if len(out) > 2 * PATTERN_MAX:
            raise self.fault(f"a pattern of more than {PATTERN_MAX} octets", token)
        return bytes((LIKE,)) + len(out).to_bytes(2) + out

    def string(self) -> str:
        token = self.tokens[self.at]
        if token.kind != "text":
            raise self.fault(f"a text in single quotes is wanted, {self.shown()}")
        self.at += 1
        return token.text[1:-1].replace("''", "'")

    def sum(self) -> bytes:
        return self.chain(SUMS, self.product)

    def product(self) -> bytes:
        return self.chain(PRODUCTS, self.signed)

    def chain(self, signs: dict[str, int], part: Any) -> bytes:
        program: bytes = part()
        sign = self.take(*signs)
        while sign is not None:
            program += part() + bytes((signs[sign],))
            sign = self.take(*signs)
        return program

    def signed(self) -> bytes:
        negative = False
        sign = self.take("-", "+")
        while sign is not None:
            negative ^= sign == "-"
            sign = self.take("-", "+")
        token = self.tokens[self.at]
        if negative and token.kind == "number":
            return self.number(-1)
        return self.primary() + (bytes((NEGATIVE,)) if negative else b"")

    def number(self, factor: int) -> bytes:
        token = self.tokens[self.at]
        self.at += 1
        if token.text.isdigit():
            whole = factor * int(token.text)
            if whole not in INT64:
                raise self.fault("a whole number has at most 64 bits", token)
            return struct.pack(">Bq", 2, whole)
        real = factor * float(token.text)
        if real in (float("inf"), float("-inf")):
            raise self.fault("the number is too large", token)
        return struct.pack(">Bd", 3, real)

    def primary(self) -> bytes:
        token = self.tokens[self.at]
        if token.kind == "number":
            return self.number(1)
        if token.kind == "text":
            octets = self.string().encode("utf-8", "surrogateescape")
            return b"\4" + len(octets).to_bytes(2) + octets
        if self.take("("):
            program = self.either()
            self.need(")")
            return program
        word = self.take("TRUE", "FALSE", "NULL")
        if word is not None:
            return b"\0" if word == "NULL" else bytes((1, word == "TRUE"))
        if token.kind == "quoted":
            self.at += 1
            return self.header(token.text[1:-1].replace('""', '"'), token)
        if token.kind == "name":
            self.at += 1
            return self.name(token)
        raise self.fault(f"a value is wanted, {self.shown()}")

    def name(self, token: Token) -> bytes:
        """A field by its name, or else the header of that name."""
        prefix = token.text.lower()
        if prefix == "header" and self.take("("):
            name = self.string()
            self.need(")")
            return self.header(name, token)
        if prefix in ("properties", "p", "headers", "h", "a") and self.take("."):
            named = self.tokens[self.at]
            if named.kind not in ("name", "quoted"):
                raise self.fault(f"a name is wanted, {self.shown()}")
            self.at += 1
            name = named.text[1:-1].replace('""', '"') if named.kind == "quoted" else named.text
            if prefix not in ("properties", "p"):
                return self.header(name, named)
            known = self.hyphened(name.replace("-", "_").lower(), named)
            if known not in PROPERTIES:
                raise self.fault(f"'{name}' is no property: there are {', '.join(PROPERTIES)}", named)
            return bytes((6, PROPERTIES[known]))
        if token.text in FIELDS:
            return bytes((6, FIELDS[token.text]))
        return self.header(token.text, token)

    def hyphened(self, name: str, token: Token) -> str:
        """The property's name: AMQP writes message-id, and an expression may do so too, without spaces."""
        sign, second = self.tokens[self.at], self.tokens[min(self.at + 1, len(self.tokens) - 1)]
        joined = f"{name}_{second.text.lower()}"
        adjoins = sign.at == token.at + len(token.text) and second.at == sign.at + 1
        if name in PROPERTIES or sign.text != "-" or not adjoins or joined not in PROPERTIES:
            return name
        self.at += 2
        return joined

    def header(self, name: str, token: Token) -> bytes:
        octets = name.encode("utf-8", "surrogateescape")
        if len(octets) > 255:
            raise self.fault("a header's name has at most 255 octets", token)
        return bytes((5, len(octets))) + octets
