"""The data plane.  Its border, every verb that crosses it, is written in ``__init__.pyi`` and the pages that it names.

With BROKERD_ASSERTS in the environment it is the build for tests, in which assertions are compiled.
"""

from importlib import import_module
from os import environ

asserted = environ.get("BROKERD_ASSERTS", "0") not in ("", "0")
_compiled = import_module("brokerd.plane._asserted" if asserted else "brokerd.plane._plane")
RULES = vars(_compiled)["RULES"]
# All classes and functions that the plane itself makes, so that a new file of the plane is not named here.
globals().update({name: value for name, value in vars(_compiled).items()
                  if getattr(value, "__module__", None) == _compiled.__name__ and not name.startswith("_")})
