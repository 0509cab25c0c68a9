"""The data path's routes: one endpoint a dialect, served straight from the connection."""

from collections.abc import Mapping
from functools import partial

from heddle_gateway.asgi.client_exchange import Endpoint
from heddle_gateway.dialects.dialect import DIALECTS
from heddle_gateway.serve_step import StepServer
from heddle_gateway.side_questions import SideQuestions


def data_endpoints(server: StepServer, questions: SideQuestions) -> Mapping[str, Endpoint]:
    """Endpoint by path, for POST."""
    steps = {dialect.path: partial(server.serve, dialect) for dialect in DIALECTS}
    return {**steps, **questions.endpoints()}
