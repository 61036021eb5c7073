"""Show everything that keeps mypyc from compiling the core, in seconds: no C compiler runs.

A build names only the first error, and goes on with plain Python.

    python -m scripts.check_compiles
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

from mypyc.build import mypycify

SOURCE: Final = Path(__file__).resolve().parent.parent / "src"
COMPILED_PACKAGES: Final = ("model", "wire", "engine", "storage", "node")


def main() -> int:
    modules = sorted(
        str(path) for package in COMPILED_PACKAGES for path in (SOURCE / "waybill" / package).rglob("*.py")
    )
    with tempfile.TemporaryDirectory() as directory:
        # mypyc prints the errors and leaves by SystemExit itself.
        mypycify(
            ["--config-file=", "--follow-imports=silent", *modules], target_dir=directory, group_name="waybill_core"
        )
    print(f"mypyc accepts all {len(modules)} modules of the core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
