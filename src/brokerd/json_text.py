"""Reads JSON as fast as a library can, because the loop, or Python's lock, is held meanwhile.

pydantic_core needs half of the time of json for many objects, and a tenth for long texts.  But it takes no half of a
surrogate pair, which stands for an octet that is not UTF-8, and does not say line and column of a fault: what it
refuses goes to json.  Knows nothing of what the text means.
"""

from typing import Any


def decode(text: str | bytes) -> Any:
    """The value.  Raises ValueError, RecursionError, as json.loads() does."""
    import json

    from pydantic_core import from_json

    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)
