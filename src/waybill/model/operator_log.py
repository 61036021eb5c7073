"""Log records for operators. The core writes no log itself: the owner of a node passes in an `OperatorLog`."""

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class OperatorLog:
    """Drops every record; subclasses write them.

    `event` names the kind of event in a few fixed words ("login refused"), so that many of one kind can be counted
    instead of written. `detail` says what happened to whom and, where something can be done, what to do. It never holds
    a password or the body of a message. `user` and `address` are whom it is about and where they are, host and port,
    if it is about a peer: fields of their own in a log that has such.
    """

    def info(self, event: str, detail: str, user: str = "", address: str = "") -> None:
        """Something an operator may want to know afterwards."""

    def warning(self, event: str, detail: str, user: str = "", address: str = "") -> None:
        """Something was refused, dropped or skipped. The node continues."""

    def error(self, event: str, detail: str, user: str = "", address: str = "") -> None:
        """Something is lost, or the node stops."""

    def fault(self, event: str, detail: str, error: Exception) -> None:
        """A bug: something failed, and the rest continues without it.

        A log writes the traceback. This class raises the error again, so that nothing hides it.
        """
        raise error
