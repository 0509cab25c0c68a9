"""The command line of a launched engine."""

import json
from pathlib import Path

import pytest
from heddle_shim.engine_flags import FlagsRefused, KvStore, Options, engine_arguments
from heddle_shim.engine_version import parse_version
from heddle_shim.model_facts import model_facts

STORE = KvStore(Path("/dev/shm/heddle-x"), "fingerprint", 8, 5557, 5558)


def value_after(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_an_engine_gets_priorities_metrics_and_the_page_store() -> None:
    arguments = engine_arguments(Options.parse("--model-path /m --page-size 32"), STORE)
    for switch in ("--enable-priority-scheduling", "--enable-metrics", "--enable-hierarchical-cache"):
        assert switch in arguments
    assert value_after(arguments, "--hicache-storage-backend") == "dynamic"
    config = json.loads(value_after(arguments, "--hicache-storage-backend-extra-config"))
    assert config["heddle_store"] == "/dev/shm/heddle-x"
    assert (config["heddle_model"], config["heddle_kv_heads"]) == ("fingerprint", 8)
    # A page is the least that is looked for: with SGLang's 256 tokens the end of a prefix would be missed.
    assert config["prefetch_threshold"] == 32
    events = json.loads(value_after(arguments, "--kv-events-config"))
    assert events["endpoint"] == "tcp://*:5557"


def test_what_the_user_gave_stays() -> None:
    given = (
        "--model-path /m --default-priority-value 7 --hicache-mem-layout=page_head --retraction_policy length"
    )
    arguments = engine_arguments(Options.parse(given), STORE)
    assert arguments[: len(given.split())] == given.split()
    for name in ("--default-priority-value", "--hicache-mem-layout", "--retraction-policy"):
        assert name not in arguments[len(given.split()) :]


def test_without_a_store_nothing_of_hicache_is_asked_for() -> None:
    arguments = engine_arguments(Options.parse("--model-path /m"), None)
    assert not any("hicache" in argument or "hierarchical" in argument for argument in arguments)
    assert "--enable-priority-scheduling" in arguments


def test_an_older_release_is_not_given_options_that_it_lacks() -> None:
    options = Options.parse("--model-path /m")
    assert "--retraction-policy" not in engine_arguments(options, None, parse_version("0.5.15.post1"))
    assert "--retraction-policy" in engine_arguments(options, None, parse_version("0.5.23"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--tp 2", "--model-path is missing"),
        ("--model-path /m --schedule-policy lpm", "--schedule-policy lpm"),
        ("--model-path /m --schedule-low-priority-values-first", "Heddle sends high numbers first"),
        ("--model-path /m --hicache-storage-backend file", "--hicache-storage-backend file"),
        ("--model-path /m --disable-radix-cache", "--disable-radix-cache"),
        ("--model-path /m --page-size big", "--page-size: 'big' is not a number"),
        ("model-path /m", "'model-path' is not an option"),
        ("--model-path '/m", "--launch: No closing quotation"),
    ],
)
def test_what_heddle_cannot_work_with_is_refused_by_name(given: str, words: str) -> None:
    with pytest.raises(FlagsRefused) as refused:
        engine_arguments(Options.parse(given), STORE)
    assert words in str(refused.value)


def test_versions_are_compared_by_their_numbers() -> None:
    assert parse_version("0.5.15.post1") == (0, 5, 15)
    assert parse_version("0.5.23+cpu") == (0, 5, 23)
    assert parse_version(None) == (0,)
    assert parse_version("0.5.9") < parse_version("0.5.23") < parse_version("0.6.0rc1")


def make_model(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_attention_heads": 16, **config}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_model_has_one_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    one = model_facts(str(make_model(tmp_path / "one", num_key_value_heads=4)))
    other = model_facts(str(make_model(tmp_path / "other", num_key_value_heads=4)))
    assert one == other
    assert one.kv_heads == 4
    assert model_facts(str(make_model(tmp_path / "third"))).kv_heads == 16
    assert model_facts(str(tmp_path / "third")).fingerprint != one.fingerprint


def test_a_model_with_other_weights_has_another_fingerprint(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "one")
    before = model_facts(str(folder)).fingerprint
    (folder / "model.safetensors").write_bytes(b"more weights")
    assert model_facts(str(folder)).fingerprint != before


def test_a_name_on_a_hub_is_known_by_name_and_revision() -> None:
    named = model_facts("Qwen/Qwen3-8B")
    assert named.kv_heads is None
    assert named != model_facts("Qwen/Qwen3-8B", "main2")
