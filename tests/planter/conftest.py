import pickle
import shutil

import pytest
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.planter import samples
from tests.planter.asking import ask
from tests.planter.folder import Tree
from tests.workers import make_once


@pytest.fixture(scope="session")
def sample(tmp_path_factory, request):
    """A dump and the data directory of one broker.  Each worker has a copy, to which its tests can link."""
    made = make_once(request.config, "sample", samples.sample)
    folder = tmp_path_factory.mktemp("sample") / "copy"
    shutil.copytree(made, folder)
    return samples.Sample(folder / "dump", folder / "data")


@pytest.fixture(scope="session")
def clean(sample, tmp_path_factory, request):
    """What the audit says of a copy of the dump in which nothing was planted."""
    def make(folder):
        said = ask(Tree(sample.dump).write(tmp_path_factory.mktemp("clean") / "copy"))
        (folder / "said").write_bytes(pickle.dumps(said))

    return pickle.loads((make_once(request.config, "clean", make) / "said").read_bytes())
