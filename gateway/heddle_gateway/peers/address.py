"""Who leads and how it is reached, as it lies in the lease."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """How a leader is reached; it lies in the lease. ``http``: its admin API."""

    host: str
    port: int
    http: str
    secret: str

    def written(self) -> str:
        return json.dumps([self.host, self.port, self.http, self.secret])

    @classmethod
    def read(cls, text: str) -> "Address | None":
        """None for what no gateway of this release wrote."""
        try:
            host, port, http, secret = json.loads(text)
            return cls(str(host), int(port), str(http), str(secret))
        except (ValueError, TypeError):
            return None
