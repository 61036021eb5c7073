"""The checks of settings that are numbers, for everything that is built on the client."""

from waybill.transport.ranges import check_number, check_whole

__all__ = ["check_number", "check_whole"]
