"""How a command ends."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `heddle`; scripts may rely on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3


class CommandFailed(Exception):
    """Ends the command with a message of one or two lines, for the person who typed it."""

    def __init__(self, exit_code: Exit, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
