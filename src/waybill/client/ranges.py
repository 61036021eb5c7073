"""Checks of numeric settings, for packages that build on the client."""

from waybill.transport.ranges import check_number, check_whole

__all__ = ["check_number", "check_whole"]
