"""The data directories of these tests are in memory."""

from tests.in_memory import in_memory  # noqa: F401 - its folders
