"""What setup.py promises, on a package of three files: compiled where it can be, else plain Python and one line."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PLAIN = "waybill: building plain Python, not compiled: "


@dataclass(frozen=True)
class Build:
    files: list[str]
    plain_lines: list[str]

    @property
    def extension_count(self) -> int:
        return sum(1 for name in self.files if name.endswith(".so"))


@pytest.fixture
def tree(tmp_path: Path, repository: Path) -> Path:
    """A copy of the build files with a tiny source tree."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(repository / name, tmp_path / name)
    for package in ("waybill", "waybill/model", "waybill/wire", "waybill/cli"):
        (tmp_path / "src" / package).mkdir(parents=True)
        (tmp_path / "src" / package / "__init__.py").touch()
    (tmp_path / "src/waybill/model/number.py").write_text("def double(value: int) -> int:\n    return value * 2\n")
    (tmp_path / "src/waybill/cli/plain.py").write_text("ANSWER = 42\n")
    (tmp_path / "src/beside.py").write_text("ANSWER = 42\n")
    return tmp_path


SHIFT = """from mypy_extensions import i64


def power(exponent: i64) -> i64:
    return 1 << exponent
"""


@pytest.fixture
def c_compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("needs a C compiler: apt install gcc")
    return found


def build(tree: Path, environment: Mapping[str, str] | None = None) -> Build:
    inherited = {name: value for name, value in os.environ.items() if name not in {"WAYBILL_COMPILE", "CC"}}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "-q", "bdist_wheel"],
        cwd=tree,
        env={**inherited, **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    (wheel,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
    assert list((tree / "src").rglob("*.so")) == []
    lines = (done.stdout + done.stderr).splitlines()
    return Build(files, [line for line in lines if line.startswith("waybill:")])


@pytest.mark.usefixtures("c_compiler")
def test_a_build_compiles_the_core_and_only_the_core(tree: Path) -> None:
    result = build(tree)
    assert result.plain_lines == []
    compiled = {name.partition(".")[0] for name in result.files if name.endswith(".so")}
    assert {"waybill/model/number", "waybill/wire/__init__"} <= compiled
    assert not any(name.startswith("waybill/cli") for name in compiled)


def test_asked_for_plain_python_it_builds_plain_python(tree: Path) -> None:
    result = build(tree, {"WAYBILL_COMPILE": "0"})
    assert result.plain_lines == [PLAIN + "WAYBILL_COMPILE=0"]
    assert result.extension_count == 0
    assert "beside.py" in result.files, "modules beside the package belong to it"


def test_without_a_c_compiler_it_says_so_in_one_line(tree: Path) -> None:
    result = build(tree, {"CC": str(tree / "no-such-compiler")})
    (line,) = result.plain_lines
    assert line.startswith(PLAIN + "no C compiler for Python extensions")
    assert result.extension_count == 0


@pytest.mark.usefixtures("c_compiler")
def test_a_type_error_in_the_core_is_named_in_one_line(tree: Path) -> None:
    (tree / "src/waybill/model/number.py").write_text("def double(value: int) -> int:\n    return str(value)\n")
    (line,) = build(tree).plain_lines
    assert "number.py:2: error: Incompatible return value type" in line


def test_a_failing_c_compiler_leaves_plain_python(tree: Path, c_compiler: str) -> None:
    """It compiles the probe, so that the failure comes late."""
    compiler = tree / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *probe.c*) exec {c_compiler} "$@";; esac\nexit 1\n')
    compiler.chmod(0o755)
    result = build(tree, {"CC": str(compiler)})
    (line,) = result.plain_lines
    assert line.startswith(PLAIN + "the C compiler failed")
    assert result.extension_count == 0
    assert any(name.endswith("waybill/model/number.py") for name in result.files)


@pytest.mark.usefixtures("c_compiler")
def test_a_shift_that_would_lose_bits_is_refused(tree: Path) -> None:
    """In C, what mypyc makes of the literal has 32 bits."""
    (tree / "src/waybill/model/number.py").write_text(SHIFT)
    built = build(tree)
    assert built.extension_count == 0
    assert built.plain_lines == [
        f"{PLAIN}__native_waybill___model___number.c: an integer literal is shifted by a native integer"
    ]
