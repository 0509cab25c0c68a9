"""Settings from all sources, and what is refused by name."""

import re
from pathlib import Path

import pytest
from heddle_gateway.settings import ENV_PREFIX, Settings, SettingsError, load_settings

ROOT = Path(__file__).parents[2]

TOML = """
port = 5001
host = "0.0.0.0"
api_keys = ["from-file"]

[[workers]]
url = "http://gpu1:30000"
degree = 4

[policy]
order = "fcfs"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "heddle.toml"
    path.write_text(TOML)
    return path


def test_defaults_need_no_source() -> None:
    settings = load_settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.idle_timeout_s == 0


def test_the_command_line_beats_the_environment_which_beats_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings(file).port == 5001
    monkeypatch.setenv("HEDDLE_PORT", "5002")
    assert load_settings(file).port == 5002
    settings = load_settings(file, port=5003)
    assert (settings.port, settings.host) == (5003, "0.0.0.0")
    assert settings.workers[0].degree == 4
    assert settings.policy == {"order": "fcfs"}


def test_overrides_that_are_none_do_not_count(file: Path) -> None:
    assert load_settings(file, port=None).port == 5001


@pytest.mark.parametrize("value", ["http://a:1,http://b:2", '["http://a:1", {"url": "http://b:2"}]'])
def test_lists_in_the_environment_are_json_or_commas(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_WORKERS", value)
    assert [worker.url for worker in load_settings().workers] == ["http://a:1", "http://b:2"]


def test_an_unknown_key_of_the_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "heddle.toml"
    path.write_text('prot = 1\n[[workers]]\nurl = "http://a:1"\ndegre = 2\n')
    with pytest.raises(SettingsError, match=r"workers\.0\.degre") as refused:
        load_settings(path)
    assert "prot: there is no such setting; did you mean port?" in str(refused.value)
    assert "workers.0.degre: there is no such setting; did you mean degree?" in str(refused.value)


def test_an_unknown_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_PROT", "1")
    with pytest.raises(SettingsError, match=r"HEDDLE_PROT.*did you mean HEDDLE_PORT"):
        load_settings()


def test_variables_of_other_parts_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {
        name
        for part in ("cli", "planner", "worker_shim")
        for source in (ROOT / part).rglob("*.py")
        for name in re.findall(r'"(HEDDLE_[A-Z_]+[A-Z])"', source.read_text())
    }
    others = {name for name in named if name.removeprefix(ENV_PREFIX).lower() not in Settings.model_fields}
    assert others >= {"HEDDLE_GATEWAY", "HEDDLE_HOSTS", "HEDDLE_HOST_KEY"}
    for name in others:
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("HEDDLE_SHIM_PORT", "1")
    load_settings()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("port", 70000), ("idle_timeout_s", -1), ("max_body_bytes", 0), ("workers", [{"degree": 1}])],
)
def test_a_value_that_cannot_be_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(SettingsError, match=setting):
        load_settings(**{setting: value})


def test_keys_are_not_shown() -> None:
    settings = load_settings(
        api_keys=["very-secret"], workers=[{"url": "http://a", "api_key": "also-secret"}]
    )
    assert "secret" not in repr(settings)
    with pytest.raises(SettingsError) as refused:
        load_settings(admin_keys=["very-secret"], api_keys="very-secret")
    assert "very-secret" not in str(refused.value)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.toml"):
        load_settings(tmp_path / "nothing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("port = = 1")
    with pytest.raises(SettingsError, match=r"broken\.toml: .*line 1"):
        load_settings(broken)


def test_what_is_wrong_is_named_with_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "heddle.toml"
    path.write_text('port = "many"\n')
    with pytest.raises(SettingsError, match=r"heddle\.toml: port: .*integer"):
        load_settings(path)
    monkeypatch.setenv("HEDDLE_PORT", "few")
    with pytest.raises(SettingsError, match=r"^HEDDLE_PORT: .*integer"):
        load_settings(path)
    with pytest.raises(SettingsError, match=r"^port: .*less"):
        load_settings(path, port=70000)


def test_a_policy_in_the_environment_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_POLICY", "{order")
    with pytest.raises(SettingsError, match=r"^HEDDLE_POLICY: not JSON: Expecting"):
        load_settings()


def test_settings_are_frozen_and_each_is_described() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
