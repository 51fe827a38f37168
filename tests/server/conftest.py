import gc
import warnings

import pytest
from tests.server import clients


@pytest.fixture(autouse=True)
def left_by_clients():
    """Clients leave sockets to the garbage collector, above all those whose broker was killed: that is their way."""
    yield
    clients.made.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
