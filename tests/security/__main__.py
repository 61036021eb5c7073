"""`make siege`: every attack on a broker at full size.

python -m tests.security [NAME[=COUNT] ... | --from NAME]
"""

import sys

from tests.security.full_size import attack_in_turn
from tests.security.siege import Siege
from tests.security.sieges import ATTACKS
from tests.security.tls_attacks import TLS_ATTACKS, BrokerTlsSiege


def main() -> int:
    plain = [(attack, many, Siege) for attack, _, many in ATTACKS]
    secure = [(attack, many, BrokerTlsSiege) for attack, _, many in TLS_ATTACKS]
    return 1 if attack_in_turn([*plain, *secure], sys.argv[1:]) else 0


if __name__ == "__main__":
    sys.exit(main())
