"""What leaves a finished step: the history queue and the metrics. Nothing here is awaited by a request."""
