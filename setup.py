"""Compile the core, and what moves its bytes, with mypyc where that is possible, or say in a line why it is not.

`WAYBILL_COMPILE=0` builds plain Python. All else stands in pyproject.toml.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
COMPILED = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["waybill"]["compiled"]
# mypyc writes an integer literal as a C int: shifted by a native integer, it loses the bits above the lowest 32.
NARROW_SHIFT = re.compile(r"= -?\d+ << cpy_")
# Only the functions that Python looks up are exported. All others are then called directly, not through a table, which
# halves the misses of the instruction cache for each message.
DIRECT_CALLS = "-fvisibility=hidden"
# An editable install and the metadata steps of a build run this file too: there, nothing is to be compiled.
SHOWN_FROM = 20
"""With so many C files the build says how far it is."""
BUILDING_COMMANDS = {"bdist_wheel", "build", "build_ext", "install"}


class PlainBuildError(Exception):
    """Why the core stays plain Python."""


class OptionalBuild(build_ext):
    """Builds the extension modules, on all processors; if the C compiler fails, leaves none of them behind."""

    def build_extensions(self) -> None:
        compile_files = self.compiler.compile

        def compile_side_by_side(sources: list[str], *args: object, **kwargs: object) -> list[str]:
            objects = []
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                compiled = pool.map(lambda source: compile_files([source], *args, **kwargs), sources)
                for count, names in enumerate(compiled, 1):
                    objects += names
                    if len(sources) >= SHOWN_FROM and count * 10 // len(sources) > (count - 1) * 10 // len(sources):
                        print(f"compiled {count} of {len(sources)} C files", file=sys.stderr, flush=True)
            return objects

        self.compiler.compile = compile_side_by_side
        super().build_extensions()

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in a compiler, plain Python works
            report_plain_build(f"the C compiler failed: {first_line(str(error))}")
            for name in self.get_outputs():
                Path(name).unlink(missing_ok=True)
            self.extensions = []
            self.distribution.ext_modules = []


def report_plain_build(reason: str) -> None:
    print(f"waybill: building plain Python, not compiled: {reason}", file=sys.stderr)


def first_line(text: str) -> str:
    """The first line that tells of an error, or the first that tells anything."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")


def require_c_compiler() -> None:
    """Raise PlainBuildError if a C file that includes Python.h does not compile."""
    from setuptools._distutils.ccompiler import new_compiler  # noqa: PLC0415 - only a compiling build needs it
    from setuptools._distutils.sysconfig import customize_compiler, get_python_inc  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()):
        source = Path(directory, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return PY_MAJOR_VERSION; }\n")
        compiler = new_compiler()
        customize_compiler(compiler)
        try:
            compiler.compile([str(source)], output_dir=directory, include_dirs=[get_python_inc()])
        except Exception as error:
            raise PlainBuildError(f"no C compiler for Python extensions: {first_line(str(error))}") from error


def compiled_modules() -> list[str]:
    places = [SOURCE / "waybill" / name for name in COMPILED]
    return sorted(str(path) for place in places for path in ([place] if place.is_file() else place.rglob("*.py")))


def compiled_extensions() -> list[Extension]:
    """The core as one group of extension modules. Raises PlainBuildError if it cannot be compiled."""
    if os.environ.get("WAYBILL_COMPILE") == "0":
        raise PlainBuildError("WAYBILL_COMPILE=0")
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 - may not be installed
    except ImportError as error:
        raise PlainBuildError("mypyc is not installed") from error
    require_c_compiler()
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            # The project's own mypy settings are for its developers: a build must not fail on a lint, nor on the types
            # of what is not compiled.
            made = mypycify(
                ["--config-file=", "--follow-imports=silent", *compiled_modules()],
                opt_level="2",
                debug_level="0",
                multi_file=True,
                group_name="waybill_core",
            )
    except (Exception, SystemExit) as error:
        # mypyc leaves by SystemExit when the types do not hold.
        raise PlainBuildError(first_line(output.getvalue() or str(error))) from error
    compiled = cast("list[Extension]", made)
    if sys.platform != "win32":
        for extension in compiled:
            # One list is in all of them.
            extension.extra_compile_args = [*extension.extra_compile_args, DIRECT_CALLS]
    refuse_narrow_shifts(compiled)
    return compiled


def refuse_narrow_shifts(extensions: list[Extension]) -> None:
    """Raise PlainBuildError if a literal is shifted by a native integer."""
    for extension in extensions:
        for source in map(Path, extension.sources):
            if NARROW_SHIFT.search(source.read_text(encoding="utf-8")):
                raise PlainBuildError(f"{source.name}: an integer literal is shifted by a native integer")


def extensions() -> list[Extension]:
    if BUILDING_COMMANDS.isdisjoint(sys.argv):
        return []
    try:
        return compiled_extensions()
    except PlainBuildError as error:
        report_plain_build(str(error))
        return []


setup(
    ext_modules=extensions(),
    py_modules=sorted(path.stem for path in SOURCE.glob("*.py")),
    cmdclass={"build_ext": OptionalBuild},
)
