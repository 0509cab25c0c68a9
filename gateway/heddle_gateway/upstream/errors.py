"""What can go wrong between the gateway and a worker, one type per thing the caller must do about it.

Invariant: every error says whether a byte of an answer had arrived, because only a step without one may be
sent again.
"""


class UpstreamError(Exception):
    """A worker did not give a whole answer. ``answer_began``: response headers or more had arrived."""

    answer_began = False


class WorkerUnreachable(UpstreamError):
    """No connection could be made (refused, no route, connect timeout, DNS): the request was never sent."""


class WorkerOverCommitted(UpstreamError):
    """The configured number of connections to this worker is in use: the request was never sent."""


class OutOfFiles(UpstreamError):
    """This process may open no more files: the request was never sent, and no worker is to blame."""


class WorkerLost(UpstreamError):
    """The connection ended, or spoke no HTTP, before the answer was whole."""

    def __init__(self, message: str, *, answer_began: bool) -> None:
        super().__init__(message)
        self.answer_began = answer_began


class WorkerSilent(UpstreamError):
    """Nothing arrived for the configured idle time."""

    def __init__(self, message: str, *, answer_began: bool) -> None:
        super().__init__(message)
        self.answer_began = answer_began
