"""Errors of the server. Errors of the user are exceptions of the calls that cause them."""


class ProtocolViolation(Exception):
    """The server sent what it may not send here; ends the connection with `reply_code`."""

    def __init__(self, reply_code: int, text: str) -> None:
        super().__init__(text)
        self.reply_code = reply_code
