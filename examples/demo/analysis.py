"""What a job does: read one file, parse it as Python, count."""

import ast
import hashlib
import io
import tokenize
from pathlib import Path
from typing import Final, TypedDict

PYTHON_SUFFIXES: Final = (".py", ".pyi", ".pyw")


class NotText(ValueError):
    """The file is binary; no second look will make it Python."""


class NotPython(ValueError):
    """The file can be read as Python, as some data can, but its name says that it is something else."""


class Result(TypedDict):
    """What is known of a file: its counts of lines and functions, its size, and the SHA-256 of its bytes in hex."""

    lines: int
    functions: int
    bytes: int
    sha256: str


def analyse(path: Path) -> Result:
    """Read and parse a Python file.

    Raises OSError, NotText, UnicodeDecodeError, SyntaxError and NotPython: nothing here is staged.
    """
    data = path.read_bytes()
    if b"\0" in data:
        raise NotText("a zero byte: this is no text")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding)
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(ast.parse(text)))
    if path.suffix not in PYTHON_SUFFIXES:
        raise NotPython(f"the suffix {path.suffix!r} is not one of Python's")
    return {
        "lines": len(text.splitlines()),
        "functions": functions,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
