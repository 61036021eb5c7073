"""Makes up cases: at first by chance, then more and more from those that have shown something new or cost the most.

It needs no instrumented code, so it works on the compiled build as well. What counts as new is what can be seen from
outside: kinds of frames and errors that came back, by protocol, and CPU and memory in powers of two.
"""

from random import Random
from typing import Final

from tests.search.choices import GENE_BYTES, genes
from tests.search.verdict import Verdict

GENES_MAX: Final = 10
ELITE_MAX: Final = 24
# What a longer case has to show, a shorter one shows as well: one stretch of it, or memory.
ELITE_SECONDS_MAX: Final = 0.25
FRESH_ONE_IN: Final = 2


def fresh(random: Random) -> bytes:
    return random.randbytes(GENE_BYTES * random.randint(2, GENES_MAX))


class Evolution:
    """`corpus` holds the cases that showed something new, in the order in which they did; `elite` what cost most."""

    def __init__(self, corpus: list[bytes] | None = None) -> None:
        self.corpus: list[bytes] = list(corpus or ())
        self._costs: dict[bytes, float] = {}
        self.elite: list[tuple[float, bytes]] = []
        self.features: set[object] = set()

    def propose(self, random: Random) -> bytes:
        if not self.corpus or random.randrange(FRESH_ONE_IN) == 0:
            return fresh(random)
        if self.elite and random.randrange(8) == 0:
            parent = random.choice(self.elite)[1]
        else:
            # Of two the cheaper one: a second is better spent on fifty small cases than on one large one.
            parent = min(
                random.choice(self.corpus), random.choice(self.corpus), key=lambda case: self._costs.get(case, 0)
            )
        return self._changed(random, parent)

    def _changed(self, random: Random, parent: bytes) -> bytes:
        found = genes(parent)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            at = random.randrange(len(found))
            kind = random.randrange(6)
            if kind == 0:
                found.insert(at + 1, found[at])
            elif kind == 1:
                found.insert(at + 1, random.randbytes(GENE_BYTES))
            elif kind == 2 and len(found) > 2:
                del found[max(1, at)]
            elif kind == 3:
                other = genes(random.choice(self.corpus))
                found[at + 1 :] = other[1 + random.randrange(len(other)) :]
            else:
                octets = bytearray(found[at])
                for _ in range(random.randint(1, 3)):
                    octets[random.randrange(len(octets))] = random.randrange(256)
                found[at] = bytes(octets)
        return b"".join(found[: GENES_MAX + 2])

    def learn(self, case: bytes, verdict: Verdict) -> bool:
        """Whether the case showed something new."""
        features = set(verdict.features)
        features.add(("cpu", int(verdict.longest_s * 1000).bit_length()))
        features.add(("memory", (verdict.uncounted_bytes >> 18).bit_length()))
        fresh_features = features - self.features
        self.features |= fresh_features
        cost = max(verdict.longest_s / 0.05, verdict.uncounted_bytes / (32 << 20))
        is_short = verdict.whole_s <= ELITE_SECONDS_MAX
        if is_short and (len(self.elite) < ELITE_MAX or cost > self.elite[-1][0]):
            self.elite = sorted([*self.elite, (cost, case)], reverse=True)[:ELITE_MAX]
        if fresh_features:
            self.corpus.append(case)
            self._costs[case] = verdict.whole_s
        return bool(fresh_features)
