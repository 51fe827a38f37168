"""Build brokerd's compiled parts; all else about the package stands in pyproject.toml.

Environment switches:

    BROKERD_ASSERTS=1    also the plane with its assertions compiled in, for tests; set it when it is run, too
    BROKERD_SANITIZE=1   address and undefined-behaviour sanitizers (run Python with libasan preloaded), with assertions
    BROKERD_COVERAGE=1   line tracing, for coverage.py with the plugin Cython.Coverage
    BROKERD_COVERAGE=gcov   lines counted by the compiler, under the names of their Cython sources: see .ci/coverage
    BROKERD_WERROR=1     a warning of the compiler stops the build; for our own builds, as other compilers warn of more
"""

import os
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
PLANE, CLIENT = Path("src/brokerd/plane"), Path("src/brokerd/client")
# Extension name, its main source, and the folders whose other sources it includes.
MODULES = (
    ("brokerd.plane._plane", PLANE / "_plane.pyx", (PLANE,)),
    ("brokerd.client._relay", CLIENT / "_relay.pyx", (CLIENT,)),
    ("brokerd.cli._perf", Path("src/brokerd/cli/_perf.pyx"), (Path("src/brokerd/cli"), CLIENT)),
)
# The same plane with its assertions, beside the other: what the tests run.
ASSERTED = ("brokerd.plane._asserted", PLANE / "_asserted.pyx", (PLANE,))

WARNINGS = [
    "-Wall",
    "-Wextra",
    # What the C that Cython writes cannot do without; our own C (*.h) is clean without them.
    "-Wno-unused-function",
    "-Wno-unused-parameter",
    "-Wno-unused-variable",
    "-Wno-unused-but-set-variable",
    "-Wno-missing-field-initializers",
    "-Wno-cast-function-type",
    "-Wno-sign-compare",
    "-Wno-deprecated-declarations",
    "-Wno-unreachable-code",
    # Cython starts every C local of unknown course with nothing, and gcc cannot follow its gotos.
    "-Wno-maybe-uninitialized",
]
# For gcc.  Rare functions with one caller stay functions, and functions that are declared inline are inlined although
# they are long, and however much the whole grows by that (5 %).  Else the first push the second out of hot functions:
# 2 to 5 % more instructions for a message.
INLINING = [
    "-fno-inline-functions-called-once",
    "--param=max-inline-insns-single=400",
    "--param=inline-unit-growth=100",
]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]


def switch(name: str) -> bool:
    """Whether the environment variable ``name`` is set to anything but nothing and 0."""
    return os.environ.get(name, "0") not in ("", "0")


SANITIZE = switch("BROKERD_SANITIZE")
ASSERTS = switch("BROKERD_ASSERTS")
GCOV = os.environ.get("BROKERD_COVERAGE") == "gcov"
COVERAGE = switch("BROKERD_COVERAGE") and not GCOV


def flags() -> tuple[list[str], list[str]]:
    """Arguments for compiler and linker."""
    compile_args = [*WARNINGS, "-fno-strict-aliasing"]
    if switch("BROKERD_WERROR"):
        compile_args.append("-Werror")
    if SANITIZE:
        return [*compile_args, *SANITIZERS, "-O1", "-g"], SANITIZERS
    if GCOV:
        return [*compile_args, "--coverage", "-fprofile-update=atomic", "-O0", "-g1"], ["--coverage"]
    if "clang" not in os.environ.get("CC", sysconfig.get_config_var("CC") or ""):
        compile_args += INLINING
    return [*compile_args, "-O1" if COVERAGE else "-O3", "-g1"], []


def flags_of(name: str, compile_args: list[str]) -> list[str]:
    """The compiler's arguments for this extension.  -O3 takes three times as long, which tests do not make up for."""
    return ["-O1" if name == ASSERTED[0] and arg == "-O3" else arg for arg in compile_args]


def macros(name: str) -> list[tuple[str, str]]:
    """What the C of this extension is compiled with."""
    found = [("CYTHON_TRACE_NOGIL", "1")] if COVERAGE else []
    if SANITIZE or name == ASSERTED[0]:
        found.append(("BROKERD_ASSERTS", "1"))
    return found


def extensions() -> list[Extension]:
    """One extension per module whose source is there."""
    compile_args, link_args = flags()
    return [
        Extension(
            name,
            [str(source)],
            depends=sorted(str(path.relative_to(ROOT))
                           for pattern in ("*.pxi", "*.pxd", "*.h")
                           for folder in folders for path in (ROOT / folder).glob(pattern)),
            include_dirs=[str(source.parent)],
            define_macros=macros(name),
            extra_compile_args=flags_of(name, compile_args),
            extra_link_args=link_args,
        )
        for name, source, folders in (*MODULES, *([ASSERTED] if ASSERTS else []))
        if (ROOT / source).exists()
    ]


class BuildWithCython(build_ext):
    """Has Cython write the C when something is compiled, and not for metadata or a source distribution."""

    def run(self) -> None:
        """Write the C, then compile it."""
        if self.extensions:
            from Cython.Build import cythonize

            written = cythonize(
                self.extensions,
                # Cython.Coverage looks for the C beside its source; otherwise the tree stays clean.
                build_dir=None if COVERAGE else "build/cython",
                # The switches are no files: what was compiled under another one is compiled anew.
                force=SANITIZE or COVERAGE or GCOV,
                emit_linenums=GCOV,
                compiler_directives={"language_level": 3, "linetrace": COVERAGE},
            )
            for extension, with_c in zip(self.extensions, written, strict=True):
                extension.sources = with_c.sources
        super().run()


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildWithCython},
    options={"build_ext": {"force": True}} if SANITIZE or COVERAGE or GCOV else {},
)
