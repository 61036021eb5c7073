"""`make search CASES=200000`: searches for sessions that stop, stall or bloat a node.

Two processes share the cases. What is found is written to `build/search`, small, with what is wrong in it; once it is
mended the file goes to `tests/search/seeds`, where the suite replays it for ever. A search that was interrupted goes on
where it was: its state is there, too. `--again` runs one file.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from multiprocessing.connection import wait
from multiprocessing.queues import Queue
from pathlib import Path
from random import Random
from typing import Final

from tests.search.choices import GENE_BYTES
from tests.search.evolution import Evolution
from tests.search.finding import keep, signature, smaller
from tests.search.generator import generate
from tests.search.script import Script
from tests.search.verdict import IS_COMPILED, STRETCH_S, judge, run, slowness

DIRECTORY: Final = Path(__file__).resolve().parents[2] / "build" / "search"
CORPUS: Final = DIRECTORY / "corpus"
"""Cases that `tests.search.coverage` has kept."""
SAVE_EVERY: Final = 200
REPORT_S: Final = 10.0
COLLECT_EVERY: Final = 50


class Searcher:
    """One process's share: cases `first`, `first + stride`, ... below `count`, each from the seed and its number."""

    def __init__(self, seed: int, number: int, stride: int, count: int, directory: Path) -> None:
        self.seed = seed
        self.number = number
        self.stride = stride
        self.count = count
        self.directory = directory
        self.state = directory / f"state-{seed}-{number}of{stride}.json"
        self.next = number
        self.evolution = Evolution()
        self.signatures: set[str] = set()
        self._resume()

    def _resume(self) -> None:
        if self.state.exists():
            value = json.loads(self.state.read_text())
            self.next = value["next"]
            self.evolution = Evolution([bytes.fromhex(case) for case in value["corpus"]])
            self.signatures = set(value["signatures"])
        elif CORPUS.exists():
            cases = [path.read_bytes() for path in sorted(CORPUS.iterdir())]
            self.evolution = Evolution([case for case in cases if len(case) >= 2 * GENE_BYTES])

    def _save(self) -> None:
        value = {
            "next": self.next,
            "corpus": [case.hex() for case in self.evolution.corpus],
            "signatures": sorted(self.signatures),
        }
        self.state.write_text(json.dumps(value))

    def search(self, told: "Queue[tuple[int, int, str]]") -> None:
        gc.collect()
        gc.freeze()
        cases = 0
        while self.next < self.count:
            case = self.evolution.propose(Random(f"{self.seed}/{self.next}"))
            found = self.attempt(case)
            self.next += self.stride
            cases += 1
            if found or cases % SAVE_EVERY == 0:
                self._save()
                told.put((self.number, self.next // self.stride, found))
            if cases % COLLECT_EVERY == 0:
                gc.collect()
        self._save()
        told.put((self.number, -1, ""))

    def attempt(self, case: bytes) -> str:
        """What was found in a case, if it was not found before."""
        script = generate(case)
        verdict = run(script)
        if not verdict.fault and verdict.longest_s <= STRETCH_S:
            self.evolution.learn(case, verdict)
            return ""
        # What is known already is not searched any further: that is as slow as it is.
        if signature(verdict, script) in self.signatures:
            return ""
        verdict = judge(script)
        if not verdict.fault:
            self.evolution.learn(case, verdict)
            return ""
        self.signatures.add(signature(verdict, script))
        small = smaller(case, verdict)
        reduced = judge(small)
        if reduced.fault:
            script, verdict = small, reduced
        path = keep(self.directory, script, verdict)
        return f"{path.name}: {verdict.fault.strip().splitlines()[-1][:160]}"


def _end_with_parent() -> None:
    """End this process as soon as its parent has ended, even by a kill -9."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
    os._exit(1)


def _process(seed: int, number: int, stride: int, count: int, told: "Queue[tuple[int, int, str]]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    Searcher(seed, number, stride, count, DIRECTORY).search(told)


def search(cases: int, seed: int, jobs: int) -> int:
    """How many findings there are."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    print(
        f"{cases:,} cases from seed {seed}, {jobs} processes, {'compiled' if IS_COMPILED else 'interpreted'};"
        f" a stretch may take {STRETCH_S * 1000:.0f} ms on a machine {slowness():.1f} times as slow as the reference"
    )
    context = multiprocessing.get_context("spawn")
    told: Queue[tuple[int, int, str]] = context.Queue()
    processes = [context.Process(target=_process, args=(seed, number, jobs, cases, told)) for number in range(jobs)]
    for process in processes:
        process.start()
    began = reported = time.monotonic()
    done: Counter[int] = Counter()
    first: dict[int, int] = {}
    running = jobs
    findings = 0
    while running:
        number, count, found = told.get()
        if count < 0:
            running -= 1
            continue
        first.setdefault(number, count)
        done[number] = count
        if found:
            findings += 1
            print(f"found {found}", flush=True)
        now = time.monotonic()
        if now - reported > REPORT_S:
            reported = now
            rate = sum(done.values()) - sum(first.values())
            print(f"{sum(done.values()):,} cases, {rate / (now - began):.0f} a second, {findings} findings", flush=True)
    for process in processes:
        process.join()
    failed = sum(process.exitcode != 0 for process in processes)
    print(f"{findings} findings in {DIRECTORY}" + (f"; {failed} processes failed" if failed else ""))
    return findings + failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", type=Path, help="run one file of findings")
    arguments = parser.parse_args()
    if arguments.again is None:
        return 1 if search(arguments.cases, arguments.seed, arguments.jobs) else 0
    script = Script.load(arguments.again)
    for step in script.steps:
        print(f"{step.kind} {step.peer} {step.text or step.amount or step.data[:60]!r} {len(step.data)} octets")
    verdict = run(script)
    print(
        f"longest stretch {verdict.longest_s * 1000:.1f} ms in step {verdict.longest_step}, "
        f"{verdict.uncounted_bytes / (1 << 20):.1f} MiB that nobody counts"
    )
    verdict = judge(script)
    print(verdict.fault or "nothing is wrong with it")
    return 1 if verdict.fault else 0


if __name__ == "__main__":
    sys.exit(main())
