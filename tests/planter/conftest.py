import pytest
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.planter import samples
from tests.planter.asking import ask
from tests.planter.folder import Tree


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    """A dump and the data directory of one broker."""
    return samples.sample(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="session")
def clean(sample, tmp_path_factory):
    """What the audit says of a copy of the dump in which nothing was planted."""
    return ask(Tree(sample.dump).write(tmp_path_factory.mktemp("clean") / "copy"))
