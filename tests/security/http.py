"""`make siege-http`: every attack on `waybill serve` at full size, each against a server of its own.

python -m tests.security.http [NAME[=COUNT] ...]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.security.http_attacks import ATTACKS, HttpAttack
from tests.security.http_siege import HttpSiege
from tests.security.siege import RSS_MAX_KB
from tests.security.tls_attacks import TLS_ATTACKS, TlsSiege
from waybill.transport.descriptors import raise_descriptor_limit


def besieged(attack: HttpAttack) -> Callable[[Path], HttpSiege]:
    return TlsSiege if attack in {one for one, _, _ in TLS_ATTACKS} else HttpSiege


def main() -> int:
    raise_descriptor_limit()
    chosen = {name: count for name, _, count in (one.partition("=") for one in sys.argv[1:])}
    failed = 0
    for attack, _, usual in (*ATTACKS, *TLS_ATTACKS):
        if chosen and attack.__name__ not in chosen:
            continue
        count = int(chosen.get(attack.__name__) or usual)
        fault = ""
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory, besieged(attack)(Path(directory)) as siege:
            try:
                attack(siege, count)
                siege.serve(10)
                siege.check()
            except (AssertionError, OSError) as error:
                fault = str(error)[-1500:] or type(error).__name__
            waited = f"{siege.bystander.longest_ms} ms, {siege.bystander.longest_cpu_ms} ms of CPU"
            rounds = siege.bystander.rounds
        failed += bool(fault)
        shown = f"{siege.most_kb // 1000} MB of {RSS_MAX_KB // 1000}, the bystander waited {waited}"
        took = f"{rounds} rounds, {time.monotonic() - began:.0f} s"
        print(f"{attack.__name__} {count}: {shown} ({took})  {fault or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
