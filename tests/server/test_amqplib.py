"""npm's amqplib, the client of Node: each scene of tests/server/amqplib/client.js."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.broker import SECONDS
from tests.rabbitmq import either

HERE = Path(__file__).parent / "amqplib"
SCENES = re.findall(r"^  async (\w+)\(", (HERE / "client.js").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    if shutil.which("node") is None or not (HERE / "node_modules" / "amqplib").exists():
        pytest.skip(f"needs node, and amqplib by: npm ci --prefix {HERE.relative_to(Path.cwd())}")
    with either(tmp_path_factory.mktemp("amqplib") / "data") as broker:
        yield broker


@pytest.mark.parametrize("scene", SCENES)
def test_scene(broker, scene):
    url = f"amqp://guest:guest@127.0.0.1:{broker.port}"
    done = subprocess.run(["node", HERE / "client.js", scene, url], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_scenes_are_those_of_the_file():
    assert len(SCENES) > 10
