"""`python -m waybill`: the same as the command `waybill`."""

from waybill.cli.main import main

main()
