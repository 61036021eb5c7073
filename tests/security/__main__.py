"""`make siege`: every attack at full size, each against a broker of its own; what that held and how long others waited.

python -m tests.security [NAME ...]
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.security.siege import RSS_MAX_KB, Siege
from tests.security.sieges import ATTACKS
from waybill.transport.descriptors import raise_descriptor_limit


def main() -> int:
    raise_descriptor_limit()
    # The bystander must not wait for the attackers of its own process.
    sys.setswitchinterval(0.0002)
    chosen = set(sys.argv[1:])
    names = [attack.__name__ for attack, _, _ in ATTACKS]
    if sys.argv[1:2] == ["--from"]:
        chosen = set(names[names.index(sys.argv[2]) :])
    failed = 0
    for attack, _, count in ATTACKS:
        if chosen and attack.__name__ not in chosen:
            continue
        fault = ""
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory, Siege(Path(directory)) as siege:
            try:
                siege.attack(attack, count)
                siege.check()
            except (AssertionError, OSError) as error:
                fault = str(error)[-1500:] or type(error).__name__
            bystander = siege.bystander
            waited = f"{bystander.longest_ms} ms, {bystander.longest_cpu_ms} ms of CPU"
            shown = f"{siege.most_kb // 1000} MB of {RSS_MAX_KB // 1000}, the bystander waited {waited}"
            rounds = bystander.rounds
        failed += bool(fault)
        print(
            f"{attack.__name__} {count}: {shown} ({rounds} rounds, {time.monotonic() - began:.0f} s)  {fault or 'ok'}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
