"""The same cases, made up by libFuzzer from what parts of the source they reach: `make search-coverage CASES=20000`.

Needs atheris, and the plain source, which it instruments: that is slow, so nothing is measured here. What reaches a
part of the program that no case had reached before is kept in `build/search/corpus`, and `make search` begins with it.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

import atheris  # type: ignore[import-untyped]

PREFIXES: Final = ["waybill.engine", "waybill.model", "waybill.node", "waybill.wire", "waybill.storage"]

with atheris.instrument_imports(include=PREFIXES):
    from tests.search.choices import GENE_BYTES
    from tests.search.finding import keep
    from tests.search.generator import generate
    from tests.search.search import CORPUS, DIRECTORY
    from tests.search.verdict import run

CASE_BYTES_MAX: Final = 12 * GENE_BYTES
SCALE_MAX: Final = 60
"""Coverage does not grow with amounts."""


def attempt(case: bytes) -> None:
    if len(case) < 2 * GENE_BYTES:
        return
    script = generate(case, SCALE_MAX)
    verdict = run(script)
    if verdict.fault:
        path = keep(DIRECTORY, script, verdict)
        print(f"found {path.name}: {verdict.fault.strip().splitlines()[-1][:160]}", flush=True)
        raise AssertionError(verdict.fault)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    Path(CORPUS).mkdir(parents=True, exist_ok=True)
    options = [
        sys.argv[0],
        str(CORPUS),
        f"-runs={arguments.cases}",
        f"-seed={arguments.seed}",
        f"-max_len={CASE_BYTES_MAX}",
        "-len_control=0",
        "-timeout=60",
        f"-artifact_prefix={DIRECTORY}/",
    ]
    atheris.Setup(options, attempt)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
