"""What is handed out: the source distribution, the files beside the programs, the unit for systemd.

Nothing is compiled here; `.ci/package` installs the source distribution into a fresh environment and runs it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "config" / "brokerd.service"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


EVERYWHERE = shutil.ignore_patterns(".git", ".venv", "build", "data", "node_modules", "*.egg-info", ".*_cache",
                                    ".hypothesis")


def left_out(folder, names):
    """What is built, or belongs to this machine; `dist` at the top alone, because .ci has a program of that name."""
    return EVERYWHERE(folder, names) | ({"dist"} & set(names) if Path(folder) == ROOT else set())


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """Run commands of setup.py in a copy of the tree, with what is compiled in it: they write beside the sources."""
    tree = tmp_path_factory.mktemp("tree") / "tree"
    shutil.copytree(ROOT, tree, ignore=left_out)

    def run(*commands):
        done = subprocess.run([sys.executable, "setup.py", "-q", *map(str, commands)], cwd=tree, capture_output=True,
                              text=True)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(scope="module")
def sdist(tmp_path_factory, setup):
    """Names in the source distribution, without its folder."""
    folder = tmp_path_factory.mktemp("sdist")
    setup("sdist", "--dist-dir", folder)
    archive, = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        return {name.partition("/")[2] for name in file.getnames() if not name.endswith("/")}


def tracked():
    """The files of the repository."""
    if shutil.which("git") is None:
        pytest.skip("git is not there")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode or not done.stdout:
        pytest.skip("not a git checkout")
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


def test_the_source_distribution_holds_every_file_of_the_repository(sdist):
    assert tracked() - {".gitignore"} <= sdist


def test_the_source_distribution_holds_nothing_that_is_built(sdist):
    built = [name for name in sdist if name.endswith((".so", ".o", ".pyc", ".c"))]
    assert built == ["tests/faults/injector.c"]     # That is a source.
    assert not [name for name in sdist if name.startswith(("build/", ".venv/")) or "node_modules" in name]


def test_a_wheel_holds_the_options_and_the_unit_beside_the_programs(setup, tmp_path):
    setup("build_py", "--build-lib", tmp_path / "lib",
          "install_data", "--install-dir", tmp_path / "root")
    assert {path.name: path.read_bytes() for path in (tmp_path / "root" / "share" / "brokerd").iterdir()} == {
        path.name: path.read_bytes() for path in (ROOT / "config").iterdir()}
    assert (tmp_path / "lib" / "brokerd" / "py.typed").exists()
    packages = {path.parent.name for path in (tmp_path / "lib" / "brokerd").rglob("__init__.py")}
    assert packages == {path.parent.name for path in (ROOT / "src" / "brokerd").rglob("__init__.py")}


def test_a_wheel_holds_the_pages_with_the_licences_of_what_they_are_made_of(setup, tmp_path):
    built = ROOT / "src" / "brokerd" / "pages"
    if not built.exists():
        pytest.skip("the pages are not built: make pages, which needs npm")
    setup("build_py", "--build-lib", tmp_path / "lib")
    pages = tmp_path / "lib" / "brokerd" / "pages"
    assert {path.name: path.read_bytes() for path in pages.iterdir()} == {
        path.name: path.read_bytes() for path in built.iterdir()}
    shipped = json.loads((ROOT / "src" / "web" / "package-lock.json").read_text())["packages"]
    licences = (pages / "LICENSES.txt").read_text()
    for name in ("preact", "uplot"):
        assert f"{name} {shipped[f'node_modules/{name}']['version']}\n" in licences


def test_the_metadata_names_a_readme_and_a_licence_that_are_there():
    project = PROJECT["project"]
    for name in (project["readme"], *project["license-files"]):
        assert (ROOT / name).read_text()
    assert project["license"] == "Apache-2.0"
    assert not [line for line in project["classifiers"] if line.startswith("License ::")]  # The two must not be mixed.


@pytest.mark.parametrize(("value", "stops"), [(None, False), ("0", False), ("1", True)])
def test_a_warning_of_the_compiler_stops_no_build_of_users(value, stops):
    env = {name: text for name, text in os.environ.items() if not name.startswith("BROKERD_")}
    env |= {} if value is None else {"BROKERD_WERROR": value}
    show = "import runpy, setuptools; setuptools.setup = lambda **_: None; print(runpy.run_path('setup.py')['flags']())"
    done = subprocess.run([sys.executable, "-c", show], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert ("-Werror" in done.stdout) is stops


# --- the unit, and its installation as the manual has it

def commands_of_the_manual():
    """The words of each command in the section on systemd."""
    section = (ROOT / "docs" / "running.md").read_text().split("\n## systemd\n")[1]
    return [shlex.split(line, comments=True) for line in re.findall(r"^    (\S.*)$", section, re.MULTILINE)]


def settings(name):
    """The values of a setting of the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_manual_installs_what_the_unit_starts():
    words = commands_of_the_manual()
    program, flag, config = settings("ExecStart")[0].split()
    assert flag == "--config"
    venv = str(Path(program).parent.parent)
    assert ["python3", "-m", "venv", venv] in words
    assert any(line[:2] == [f"{venv}/bin/pip", "install"] for line in words)
    assert program.removeprefix(f"{venv}/bin/") in PROJECT["project"]["scripts"]
    users = [line[-1] for line in words if line[0] == "useradd"]
    assert users == settings("User") == settings("Group")
    copied = {line[-2]: line[-1] for line in words if line[0] == "install" and "-d" not in line}
    [shared] = PROJECT["tool"]["setuptools"]["data-files"]
    assert copied == {f"{venv}/{shared}/{Path(config).name}": str(Path(config).parent) + "/",
                      f"{venv}/{shared}/{UNIT.name}": "/etc/systemd/system/"}


def test_the_unit_waits_for_what_the_broker_says_and_hardens_it():
    assert settings("Type") == ["notify"]
    assert int(settings("WatchdogSec")[0]) >= 30  # The broker says each second that it is alive.
    assert settings("ProtectSystem") == ["strict"]
    assert settings("StateDirectory") == ["brokerd"]
    assert settings("NoNewPrivileges") == ["yes"]
    assert settings("ProcSubset") == []  # /proc/sys/kernel/random/boot_id tells the broker a crash from a power cut.


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_systemd_finds_no_fault_with_the_unit(tmp_path):
    program = Path(sysconfig.get_path("scripts")) / "brokerd"
    assert program.exists()
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/brokerd/bin/brokerd ", f"{program} "))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    faults = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, faults) == (0, [])


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a clone")
def test_the_build_of_an_image_sees_every_file_of_the_project_and_none_that_was_built_here(tmp_path):
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    ignored = tmp_path / "patterns"     # As git reads them: one without a slash would count in each folder.
    ignored.write_text("".join(f"{pattern if pattern.startswith('**') else f'/{pattern}'}\n" for pattern in patterns))

    def files(*options):
        done = subprocess.run(["git", "ls-files", *options], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert files("--cached", "--ignored", "--exclude-from", str(ignored)) == []
    built = files("--others", "--ignored", "--exclude-standard", "src")
    unseen = set(files("--others", "--ignored", "--exclude-from", str(ignored), "src"))
    assert [name for name in built if name not in unseen and ".egg-info" not in name] == []
    assert {".git", ".venv"} <= set(patterns)


def instructions():
    """Those of the Containerfile, each as a line."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_has_extras_that_the_project_defines():
    [extras] = [line.removeprefix("ARG EXTRAS=") for line in instructions() if line.startswith("ARG EXTRAS=")]
    assert set(extras.split(",")) < PROJECT["project"]["optional-dependencies"].keys()


def test_the_user_of_the_image_has_a_number_which_kubernetes_can_tell_from_root():
    [user] = [line.split()[1] for line in instructions() if line.startswith("USER ")]
    number, group = map(int, user.split(":"))
    made = next(line for line in instructions() if "useradd" in line)
    assert f"groupadd --gid {group} " in made
    assert f"useradd --uid {number} " in made
    assert number


def test_the_composed_broker_has_the_health_check_of_the_image():
    """An image in podman's own format has none."""
    [check] = [line for line in instructions() if line.startswith("HEALTHCHECK ")]
    options, command = check.split(" CMD ")
    composed = (ROOT / "config" / "compose.yaml").read_text()
    assert f"healthcheck: {{test: [CMD, {', '.join(json.loads(command))}], " in composed
    for name, value in re.findall(r"--([a-z-]+)=(\w+)", options):
        assert f"{name.replace('-', '_')}: {value}" in composed
