"""One JSON line for every ended step, when the operator wants an access log."""

import json
import logging
from dataclasses import asdict
from typing import Any

log = logging.getLogger("heddle.steps")


def log_step(step: Any) -> None:
    """``step``: a dataclass with StepRecord's fields. json.dumps escapes whatever a client put into them."""
    log.info(json.dumps(asdict(step)))
