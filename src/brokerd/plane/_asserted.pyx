# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: nonecheck=False, binding=False, freethreading_compatible=False
"""The data plane with its assertions: the same source, compiled for tests (BROKERD_ASSERTS, see setup.py)."""

include "_plane.pyx"
include "../../../tests/plane/gates.pxi"
