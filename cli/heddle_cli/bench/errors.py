"""The one error of this package: a benchmark that cannot give honest figures."""


class BenchError(Exception):
    """The run cannot start, or one of its arms failed. The text says what to do, as far as is known."""
