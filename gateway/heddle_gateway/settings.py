"""All settings of the gateway: the one file that reads the environment.

Order: command line, environment (``HEDDLE_*``), TOML file, defaults. Unknown keys are refused by name.
"""

import json
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as UnreadableSource

ENV_PREFIX: Final = "HEDDLE_"
# Read by other parts of Heddle: one environment may serve several of them.
OTHER_PARTS: Final = frozenset(
    {
        "HEDDLE_ENGINE_KEY",
        "HEDDLE_GATEWAY",
        "HEDDLE_HOSTS",
        "HEDDLE_HOST_KEY",
        "HEDDLE_LOADGEN",
        "HEDDLE_STORE",
    }
)
OTHER_PARTS_PREFIXES: Final = ("HEDDLE_SHIM_", "HEDDLE_PLANNER_", "HEDDLE_EMULATE_", "HEDDLE_TEST_")


class SettingsError(ValueError):
    """A setting is unknown or has a value that cannot be; the message names it."""


class WorkerSetting(BaseModel):
    """A server to send steps to. Only the URL is needed: the rest is found by asking, or said here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    name: str | None = None
    kind: Literal["sglang", "vllm", "llamacpp", "openai"] | None = None
    model: str | None = None
    degree: int | None = Field(default=None, ge=1)
    slots: int | None = Field(default=None, ge=1)
    kv_tokens: int | None = Field(default=None, ge=0)
    priority: Literal["higher", "lower", "none"] | None = None
    api_key: SecretStr | None = None


class Settings(BaseSettings):
    """Frozen; made by ``load_settings``."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENV_PREFIX, validate_default=True, hide_input_in_errors=True
    )
    toml_path: ClassVar[Path | None] = None

    # where
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Host names accepted in the Host header; empty accepts all."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Origins whose browsers may call the agents' routes; empty turns CORS off."
    )

    # who
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(), description="Keys of agents; empty lets everybody call the data path."
    )
    admin_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(),
        description="Keys of operators; empty closes the operator's routes when there are agent keys.",
    )

    session_headers: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Headers of your own that name a trajectory, beside those that agents are known to send.",
    )

    # workers
    workers: Annotated[tuple[WorkerSetting, ...], NoDecode] = Field(
        default=(), description="Workers at start; more can be added while running."
    )
    worker_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Hosts that workers may have; empty allows all but link-local ones."
    )
    check_models: bool = Field(
        default=False,
        description="Keep workers of another model than the others' aside, and refuse requests for a model "
        "that none has (404). Otherwise every request goes to any worker, whatever either calls its model; a "
        "worker of another name than the others' is warned of in the log.",
    )
    policy: dict[str, Any] = Field(
        default_factory=dict, description="The decision core's policy; fields left out have its defaults."
    )

    # bytes
    max_body_bytes: int = Field(
        default=256 * 1024 * 1024, ge=1024, description="Largest request body, decoded; above it 413."
    )
    head_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Longest time from the first byte of a request's headers to their last; beyond it 408. "
        "A body may take as long as it does.",
    )
    write_timeout_s: float = Field(
        default=120.0,
        gt=0,
        description="A client that takes nothing of its answer for this long, while it has to wait for that, "
        "counts as gone. One that reads slowly does not.",
    )
    connect_timeout_s: float = Field(default=5.0, gt=0, description="Time to connect to a worker.")
    idle_timeout_s: float = Field(
        default=0.0,
        ge=0,
        description="Longest silence of a worker in an answer; 0 is none: a whole answer comes after one "
        "long silence, and a host that died is noticed by TCP and by its probes.",
    )
    ping_period_s: float = Field(
        default=0.0,
        ge=0,
        description="A comment goes into a stream that has not begun this often, for load balancers that cut "
        "silent connections; 0 is never. After the first one an error can only be an event.",
    )
    worker_keepalive_s: float = Field(
        default=4.0,
        gt=0,
        description="Kept connections are used this long; below the workers' own (uvicorn: 5).",
    )
    worker_connections: int = Field(default=8192, ge=1, description="Connections to one worker at most.")

    # trajectories
    max_trajectories: int = Field(
        default=200_000, ge=1, description="Live trajectories at most; beyond it the oldest is closed."
    )
    journal_path: Path | None = Field(
        default=None,
        description="File for the core's journal, which replays the run; an earlier one is set aside.",
    )

    # history
    database: str = Field(default="heddle.db", description="SQLite file or SQLAlchemy URL of the history.")
    history_spill: Path | None = Field(
        default=None,
        description="Folder on a local disk where history lies until the database has it, so that neither an "
        "outage nor kill -9 costs a record; none is one beside the SQLite file, or for PostgreSQL in the "
        "working directory.",
    )

    # live state
    redis_url: SecretStr | None = Field(
        default=None,
        description="URL of a Redis that keeps live state, so that a restarted gateway goes on, and by which "
        "the gateways of a namespace find their leader; none keeps it in this process.",
    )
    namespace: str = Field(
        default="default",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="Names the state in Redis; the gateways of one name decide as one.",
    )
    state_ttl_s: float = Field(
        default=6 * 3600.0, gt=0, description="How long Redis keeps a trajectory after its last step."
    )
    worker_lease_s: float = Field(
        default=600.0,
        ge=1,
        description="How long Redis keeps a worker that was added while running, once it does not serve.",
    )

    # other gateways of the namespace
    peer_host: str | None = Field(
        default=None,
        description="Name by which other gateways reach this one; none is host, or the machine's own name "
        "where it listens on all addresses.",
    )
    peer_port: int = Field(
        default=0, ge=0, le=65535, description="Port for other gateways, at host; 0 picks a free one."
    )

    # planner
    planner: str | None = Field(
        default=None, description="URL of the planner; without one the core goes by its own estimates."
    )
    planner_key: SecretStr | None = Field(default=None, description="Sent to the planner as bearer token.")
    planner_timeout_s: float = Field(
        default=1.0, gt=0, description="Longest wait for forecasts; no step waits for them."
    )
    plan_timeout_s: float = Field(default=60.0, gt=0, description="Longest wait for a plan.")
    plan_period_s: float = Field(default=30.0, gt=0, description="Time between plans that nobody asked for.")
    auto_plan: bool = Field(
        default=True,
        description="Make plans without being asked and put them in force, as long as the placement is "
        "by_rank or what a plan has put there.",
    )

    # process
    shutdown_grace_s: float = Field(
        default=30.0, ge=0, description="How long running steps may go on after SIGTERM."
    )
    access_log: bool = Field(default=False, description="One JSON line a request.")

    @field_validator(
        "allowed_hosts",
        "cors_origins",
        "api_keys",
        "admin_keys",
        "session_headers",
        "worker_hosts",
        mode="before",
    )
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        """In the environment a list is JSON or separated by commas."""
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return json.loads(value)
        return [part.strip() for part in value.split(",") if part.strip()]

    @field_validator("workers", mode="before")
    @classmethod
    def _split_workers(cls, value: Any) -> Any:
        """URLs stand for workers of which nothing more is said."""
        found = cls._split_list(value)
        if isinstance(found, list | tuple):
            return [{"url": one} if isinstance(one, str) else one for one in found]
        return found

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        agents = {key.get_secret_value() for key in self.api_keys}
        if any(key.get_secret_value() in agents for key in self.admin_keys):
            raise ValueError("a key stands in both api_keys and admin_keys: agents could operate the gateway")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        if cls.toml_path is not None:
            sources += (TomlConfigSettingsSource(settings_cls, cls.toml_path),)
        return sources


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Settings from all sources; ``overrides`` that are None do not count. Raises SettingsError, which names
    the setting and, unless it came as an override, the variable or the file it stands in.
    """
    _refuse_unknown_environment()
    if config is not None and not config.is_file():
        raise SettingsError(f"there is no file {config}")
    kind = type("SettingsOfFile", (Settings,), {"toml_path": config, "__module__": __name__})
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        settings: Settings = kind(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(fault, given, config) for fault in error.errors())) from error
    except TOMLDecodeError as error:
        raise SettingsError(f"{config}: {error}") from error
    except UnreadableSource as error:
        # The policy is the one setting that pydantic reads as JSON by itself.
        raise SettingsError(f"{_variable('policy')}: not JSON: {error.__cause__}") from error
    except (ValueError, OSError) as error:
        raise SettingsError(str(error)) from error
    return settings


def _refuse_unknown_environment() -> None:
    for name in os.environ:
        if not name.startswith(ENV_PREFIX) or name in OTHER_PARTS or name.startswith(OTHER_PARTS_PREFIXES):
            continue
        known = Settings.model_fields
        if name.removeprefix(ENV_PREFIX).lower() not in known:
            meant = _meant(name, [_variable(field) for field in known])
            raise SettingsError(f"environment variable {name}: there is no such setting{meant}")


def _explain(fault: Any, given: Mapping[str, Any], config: Path | None) -> str:
    place = ".".join(str(part) for part in fault["loc"])
    if not place:
        return str(fault["msg"])
    name = str(fault["loc"][0])
    wrong = fault["msg"].removeprefix("Value error, ")
    said = f"{place}: {wrong}"
    if fault["type"] == "extra_forbidden":
        fields = Settings.model_fields if len(fault["loc"]) == 1 else WorkerSetting.model_fields
        said = f"{place}: there is no such setting{_meant(str(fault['loc'][-1]), fields)}"
    if name in given:
        return said
    if _variable(name) in os.environ:
        return f"{_variable(name)}: {wrong}"
    return said if config is None else f"{config}: {said}"


def _variable(setting: str) -> str:
    return f"{ENV_PREFIX}{setting.upper()}"


def _meant(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
