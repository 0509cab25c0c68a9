"""Errors of the fleet. Each carries what a caller can be told; none carries an API key."""


class FleetError(Exception):
    """Base of what the fleet's public calls raise."""


class AddressRefused(FleetError):
    """The URL is malformed, or points where a gateway must not go. ``reason`` says what to change."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"worker URL {url!r} refused: {reason}")
        self.url = url
        self.reason = reason


class UnknownWorker(FleetError):
    """No worker of this id or URL, or it was removed."""

    def __init__(self, which: int | str) -> None:
        super().__init__(f"no worker {which}")
        self.which = which


class WorkerTakenOut(FleetError):
    """The worker was drained by hand: its shim is to stay away until it is added again."""

    def __init__(self, url: str) -> None:
        super().__init__(f"worker {url} was taken out; add it again to have it back")
        self.url = url


class FleetFull(FleetError):
    """The registry's bound is reached."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the fleet holds its limit of {limit} workers; remove one first")
        self.limit = limit


class AskFailed(Exception):
    """A question to a worker got no usable answer. Not a FleetError: it never leaves the fleet."""


class Unreachable(AskFailed):
    """Nothing listens there, the name does not resolve, or the connection broke before an answer."""


class CannotAsk(AskFailed):
    """This process may open no more files: the worker was not asked."""


class NoAnswerInTime(AskFailed):
    """A connection may stand, but no answer came in time. A busy worker looks like this too."""


class EngineBusy(AskFailed):
    """The server's front answers, the engine behind it does not yet: it loads weights, or runs a huge
    prefill.
    """


class BadAnswer(AskFailed):
    """An answer of the wrong status or shape."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class StillStarting(AskFailed):
    """Something answers, and says that it is not ready: the model is being loaded."""
