"""What a search has found: named after what is wrong, made as small as possible, kept as a script."""

import re
import zlib
from pathlib import Path
from typing import Final

from tests.search.choices import genes
from tests.search.generator import generate
from tests.search.script import Script, Step
from tests.search.verdict import Verdict, judge

SEEDS: Final = Path(__file__).parent / "seeds"
VARIES: Final = re.compile(r"[0-9]+|b?['\"].*")
STEPS_TRIED_MAX: Final = 40


def signature(verdict: Verdict, script: Script) -> str:
    """Alike for faults that are likely the same: where an exception came from, or which frames took so long."""
    kind = verdict.kind or "cpu"
    if kind in {"cpu", "memory"}:
        number = verdict.longest_step if kind == "cpu" else int(re.findall(r"step (\d+)", verdict.fault)[0])
        step = script.steps[number] if 0 <= number < len(script.steps) else Step("none")
        start = step.data[7:11] if step.peer in {0, 2} else step.data[10:11]
        return f"{kind} {step.kind} {start.hex()}"
    places = re.findall(r'File "[^"]*/(\w+\.py)", line \d+, in (\w+)', verdict.fault)
    last = verdict.fault.strip().splitlines()[-1] if verdict.fault else ""
    return f"{verdict.kind} {places[-1:]} {VARIES.sub('', last)[:60]}"


def smaller(case: bytes, verdict: Verdict) -> Script:
    """The script of a case, without the moves and the steps that the fault does not need."""
    wanted = verdict.kind
    head, *moves = genes(case)
    index = 0
    while index < len(moves):
        fewer = b"".join([head, *moves[:index], *moves[index + 1 :]])
        if judge(generate(fewer)).kind == wanted:
            del moves[index]
        else:
            index += 1
    return without_steps(generate(b"".join([head, *moves])), wanted)


def without_steps(script: Script, wanted: str) -> Script:
    index = 0
    tried = 0
    while index < len(script.steps) and tried < STEPS_TRIED_MAX:
        tried += 1
        fewer = Script(script.steps[:index] + script.steps[index + 1 :], script.is_durable, script.policies)
        if judge(fewer).kind == wanted:
            script = fewer
        else:
            index += 1
    return script


def keep(directory: Path, script: Script, verdict: Verdict) -> Path:
    """Write it as a seed; the name tells kind and content."""
    directory.mkdir(parents=True, exist_ok=True)
    content = repr([(step.kind, step.peer, step.data) for step in script.steps]).encode()
    path = directory / f"{verdict.kind.lower()}-{zlib.crc32(content):08x}.json"
    script.save(path, verdict.fault.strip()[-1500:])
    return path
