"""Show everything that keeps mypyc from compiling what is compiled, in seconds: no C compiler runs.

A build names only the first error, and goes on with plain Python.

    python -m scripts.check_compiles
"""

import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from mypyc.build import mypycify

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
COMPILED: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["waybill"]["compiled"]


def main() -> int:
    places = [SOURCE / "waybill" / name for name in COMPILED]
    modules = sorted(str(path) for place in places for path in ([place] if place.is_file() else place.rglob("*.py")))
    with tempfile.TemporaryDirectory() as directory:
        # mypyc prints the errors and leaves by SystemExit itself.
        mypycify(
            ["--config-file=", "--follow-imports=silent", *modules], target_dir=directory, group_name="waybill_core"
        )
    print(f"mypyc accepts all {len(modules)} modules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
