import tempfile

import pytest
from tests.in_memory import in_memory  # noqa: F401 - its folders


@pytest.fixture(scope="module", autouse=True)
def temporary_folders(tmp_path_factory):
    """Those of tempfile are in memory, too: hypothesis has one for each example."""
    tempfile.tempdir = str(tmp_path_factory.getbasetemp())
    yield
    tempfile.tempdir = None
