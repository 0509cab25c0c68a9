"""The decision core's policy as the admin API says and hears it."""

from pydantic import BaseModel, ConfigDict, Field


class PolicyChange(BaseModel):
    """Some fields of the policy; what is left out stays as it is.

    Which names and values exist is the decision core's table, not this model: the core refuses what it does
    not know and the answer names the field and the values it takes.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        json_schema_extra={
            "examples": [{"order": "longest_first", "placement": "by_rank"}, {"order": "fcfs"}]
        },
    )

    order: str | None = Field(default=None, description="Who is next in a worker's queue.")
    placement: str | None = Field(default=None, description="Which worker a step goes to.")
    admission: str | None = Field(default=None, description="Whether a step waits in the gateway.")


class Policy(BaseModel):
    """The policy in force, with every setting of the core."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        json_schema_extra={
            "examples": [{"order": "longest_first", "placement": "by_rank", "admission": "working_set"}]
        },
    )

    order: str
    placement: str
    admission: str
