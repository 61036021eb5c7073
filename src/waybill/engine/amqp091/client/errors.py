"""Errors of the server. Errors of the user are exceptions of the calls that cause them."""


class ProtocolViolation(Exception):
    """The server sent something that is not allowed here; ends the connection with `reply_code`."""

    def __init__(self, reply_code: int, text: str) -> None:
        super().__init__(text)
        self.reply_code = reply_code
