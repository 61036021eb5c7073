"""`make siege-http`: every attack on `waybill serve` and on the management API at full size.

python -m tests.security.http [NAME[=COUNT] ... | --from NAME]
"""

import sys

from tests.security.full_size import attack_in_turn
from tests.security.http_attacks import ATTACKS
from tests.security.http_siege import HttpSiege
from tests.security.management_attacks import MANAGEMENT_ATTACKS, ManagementSiege
from tests.security.tls_attacks import TLS_ATTACKS, HttpTlsSiege


def main() -> int:
    plain = [(attack, many, HttpSiege) for attack, _, many in ATTACKS]
    secure = [(attack, many, HttpTlsSiege) for attack, _, many in TLS_ATTACKS]
    managed = [(attack, many, ManagementSiege) for attack, _, many in MANAGEMENT_ATTACKS]
    return 1 if attack_in_turn([*plain, *secure, *managed], sys.argv[1:]) else 0


if __name__ == "__main__":
    sys.exit(main())
