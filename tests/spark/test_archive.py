"""The archive of Spark's classes: a JVM of the same Java and Spark takes it, others do without and say nothing."""

import os
import subprocess

import pytest
from tests.spark import archive

from brokerd.spark.java import JavaError, java_home


@pytest.fixture
def java():
    try:
        return java_home(dict(os.environ))
    except JavaError as error:
        pytest.skip(str(error))


def run(java, options):
    words = [f"{java}/bin/java", *options.split(), "-version"]
    return subprocess.run(words, capture_output=True, text=True, check=True)


def test_the_archive_of_another_java_or_spark_has_another_name(java, monkeypatch, tmp_path):
    pyspark = pytest.importorskip("pyspark")
    names = [archive.file_of(os.environ)]
    monkeypatch.setattr(pyspark, "__version__", "0")
    names.append(archive.file_of(os.environ))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").write_text(f'#!/bin/sh\nexec {java}/bin/java "$@"\n')
    (tmp_path / "bin/java").chmod(0o755)
    names.append(archive.file_of(os.environ | {"JAVA_HOME": str(tmp_path)}))
    assert len(set(names)) == 3


def test_without_an_archive_none_is_named(java, monkeypatch, tmp_path):
    monkeypatch.setattr(archive.sys, "prefix", str(tmp_path))
    assert archive.options() == archive.OPTIONS
    archive.file_of(os.environ).touch()
    assert archive.options().endswith(f"-XX:SharedArchiveFile={archive.file_of(os.environ)}")


def test_a_jvm_says_nothing_of_an_archive_that_it_cannot_use(java, monkeypatch, tmp_path):
    usual = run(java, archive.OPTIONS)
    monkeypatch.setattr(archive.sys, "prefix", str(tmp_path))
    archive.file_of(os.environ).write_bytes(b"no archive" * 1000)
    told = run(java, archive.options())
    assert (told.stdout, told.stderr) == (usual.stdout, usual.stderr.replace(", sharing", ""))
