"""The shape of a row in the table of operations: its request, its answer, the right that it needs, its function.

A request is a class with the decorator ``request``; each of its fields is Annotated with a ``Field``.  pydantic checks
it, and brokerctl makes its arguments and options from it.  An answer is a ``TypedDict`` of values that JSON has: mypy
holds the function to it, and pydantic makes its schema.

Nothing here imports pydantic: rows are read by each brokerctl, and pydantic takes longer than brokerctl's own work.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from dataclasses import field as made
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
)  # fmt: skip

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:
    from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12.

if TYPE_CHECKING:
    from brokerd.auth.granted import Granted
    from brokerd.node import Node
    from brokerd.operations.jobs import Job

__all__ = [
    "DONE", "LOCAL", "Done", "Field", "Name", "Operation", "RequestField", "Right", "Tag", "TypedDict", "Who",
    "request", "request_fields",
]  # fmt: skip

Tag = Literal["management", "policymaker", "monitoring", "administrator"]
Request = TypeVar("Request")
Answer = TypeVar("Answer")


# --- who asks, and the right that an operation needs


class Who(NamedTuple):
    """Who asks for an operation: a user by name, or the broker's own user (``local``), who may do everything.

    ``granted``: what the user may do, where that does not stand in ``users.json`` and ``permissions.json``.
    """

    user: str
    local: bool = False
    granted: "Granted | None" = None


LOCAL = Who("", local=True)


class Right(NamedTuple):
    """The right that a user needs for an operation; ``rights.check`` reads it.

    ``tag``: one of the user's tags is this one or includes it.  ``permission``: on the vhost that the request's field
    ``vhost`` names.  "visit": the user has any permission there, or sees all vhosts (monitoring, administrator).
    "configure", "write", "read": the user has that permission for the name in the request's field ``on``.
    """

    tag: Tag
    permission: Literal["", "visit", "configure", "write", "read"] = ""
    on: str = ""


# --- requests


@dataclass_transform(frozen_default=True)
def request(cls: type[Request]) -> type[Request]:
    """Make a class of annotated fields a request: a frozen dataclass that refuses fields it does not know."""
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]  # pydantic looks for it there
    return dataclass(frozen=True, slots=True)(cls)


INT_MAX = (1 << 63) - 1


class Field:
    """A field of a request: everything except its type and default.

    ``low`` and ``high`` bound a number, or the characters of a text; ends included.  A whole number without ``high``
    has at most 63 bits, because the data plane counts in 64.  An ``argument`` stands in
    brokerctl's command without an option's name.  ``path``: a file or folder on the broker's machine, absolute;
    brokerctl completes a relative one.  ``secret``: a password; brokerctl asks for one that is not given.
    ``verbatim``: a list whose texts may have commas; its option stands once for each of them.
    """

    __slots__ = ("argument", "help", "high", "low", "path", "secret", "verbatim")

    def __init__(
        self, help: str, *, argument: bool = False, low: float | None = None, high: float | None = None,  # noqa: A002
        path: bool = False, secret: bool = False, verbatim: bool = False,
    ) -> None:  # fmt: skip
        self.help = help
        self.argument, self.path, self.secret, self.verbatim = argument, path, secret, verbatim
        self.low, self.high = low, high

    def accepts(self, text: object) -> str:
        """``text`` itself, if it is a text of the right length.  Raises ValueError."""
        if isinstance(text, str) and len(text) >= (self.low or 0) and (self.high is None or len(text) <= self.high):
            return text
        raise ValueError("no text, or one of another length")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Tell pydantic the bounds in its own words, without importing it here."""
        if source is str:
            # pydantic's own texts refuse the surrogates that stand for octets that are not UTF-8.
            return {"type": "function-plain", "function": {"type": "no-info", "function": self.accepts}}
        schema = handler(source)
        if schema["type"] in ("int", "float", "bool"):
            schema["strict"] = True  # Else true would be 1, and "1" too.
        if schema["type"] == "float":
            schema["allow_inf_nan"] = False
        if schema["type"] in ("int", "float"):
            high = INT_MAX if self.high is None and schema["type"] == "int" else self.high
            bounds = {"ge": self.low, "le": high}
            schema.update({name: bound for name, bound in bounds.items() if bound is not None})
        return schema

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        """The same for OpenAPI, with the help text."""
        if schema["type"] != "function-plain":
            return {**handler(schema), "description": self.help}
        bounds = {"minLength": self.low, "maxLength": self.high}
        bounds = {name: bound for name, bound in bounds.items() if bound is not None}
        return {"type": "string", "description": self.help, **bounds}


class _Name:
    """A text with surrogates where octets are not UTF-8."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {"type": "is-instance", "cls": str}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return {"type": "string"}


Name = Annotated[str, _Name()]  # in answers: of a queue, a vhost, a user, a consumer, a file


class Done(TypedDict):
    """The answer of what answers nothing."""

    done: bool


DONE: Done = {"done": True}


class RequestField(NamedTuple):
    """One field of a request as brokerctl and the checks of requests see it."""

    name: str
    type: Any
    field: Field
    default: Any  # of a field that must be given: None
    required: bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The words the value must be one of; none for other types."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def rule(self) -> str:
        """The words that follow "must be" in an error text; "": a few words cannot say it."""
        low, high = self.field.low, self.field.high
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.type is bool:
            return "true or false"
        if self.type is int:
            return f"a whole number{_bounds(low, high)}{' (of 63 bits at most)' if high is None else ''}"
        if self.type is float:
            return f"a number{_bounds(low, high)}"
        if self.type is str:
            if high is not None:
                return f"a text of {low or 0} to {high} characters"
            return "a text that is not empty" if low else "a text"
        return ""


def _bounds(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f", {low} or more"
    return f" up to {high}" if low is None else f" from {low} to {high}"


def request_fields(request: type) -> list[RequestField]:
    """The fields of a request, in order."""
    found = []
    for each in fields(request):
        kind, field = get_args(each.type)
        required = each.default is MISSING
        found.append(RequestField(each.name, kind, field, None if required else each.default, required))
    return found


# --- the row


@dataclass(frozen=True, slots=True)
class Operation(Generic[Request, Answer]):
    """A row.  ``name`` is what the control socket calls it: "queue ordering".

    ``help`` begins with one sentence that may stand alone.  ``function`` returns the answer, or, where the operation
    is a ``job``, a ``jobs.Job`` that leads to it.  ``changes``: something is different afterwards, in the broker or
    on a disk.  ``traffic``: what changes is where messages are, as clients change it; the change log does not name it.
    ``aliases`` are other names, of one word, on the control socket and for brokerctl.  ``presets``: names of brokerctl
    for it with some fields given; one that is None there is the command's argument.
    """

    noun: str
    verb: str
    help: str
    request: type[Request]
    answer: type[Answer]
    right: Right
    function: "Callable[[Node, Who, Request], Answer | Job]"
    changes: bool = False
    traffic: bool = False
    job: bool = False
    aliases: tuple[str, ...] = ()
    presets: Mapping[str, dict[str, Any]] = made(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Noun and verb."""
        return f"{self.noun} {self.verb}"

    @property
    def usage(self) -> str:
        """The name with the arguments, as the manual writes it: "message trace QUEUE SEQ"."""
        arguments = [each.name.upper() for each in request_fields(self.request) if each.field.argument]
        return " ".join([self.name, *arguments])
