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
    assert (config["interface_v1"], config["hicache_storage_pass_prefix_keys"]) == (1, True)
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


@pytest.mark.parametrize(
    "split",
    ["--pp-size 2", "--pipeline-parallel-size=2", "--attn_cp_size 2", "--decode-context-parallel-size 4"],
)
def test_pages_that_are_split_otherwise_than_by_heads_are_not_stored(split: str) -> None:
    """Ranks of two stages would store theirs under one name."""
    arguments = engine_arguments(Options.parse(f"--model-path /m {split}"), STORE)
    assert not any("hicache" in argument or "hierarchical" in argument for argument in arguments)
    one = engine_arguments(Options.parse(f"--model-path /m {split[:-1]}1"), STORE)
    assert "--hicache-storage-backend" in one


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


def test_two_checkpoints_of_the_same_size_have_two_fingerprints(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "one")
    weights = bytearray(1 << 20)
    (folder / "model.safetensors").write_bytes(weights)
    before = model_facts(str(folder)).fingerprint
    for at in range(0, len(weights), 16_384):
        weights[at] = 1
    (folder / "model.safetensors").write_bytes(weights)
    assert model_facts(str(folder)).fingerprint != before


def test_options_that_make_another_model_of_the_same_files_have_another_fingerprint(tmp_path: Path) -> None:
    folder = str(make_model(tmp_path / "one"))
    scales = tmp_path / "scales.json"
    scales.write_text("{}")
    yarn = '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'
    given = [
        "",
        f"--json-model-override-args '{yarn}'",
        f"--json-model-override-args '{yarn.replace('4.0', '2.0')}'",
        "--quantization fp8",
        f"--quantization-param-path {scales}",
        "--load-format dummy",
    ]

    def fingerprint(text: str) -> str:
        return model_facts(folder, Options.parse(text)).fingerprint

    assert len({fingerprint(text) for text in given}) == len(given)
    # What says the same in other words, or nothing of the model, changes nothing.
    spaced = yarn.replace(" ", "").replace(":", " : ")
    assert fingerprint(f"--json_model_override_args='{spaced}'") == fingerprint(given[1])
    for text in ("--json-model-override-args {}", "--load-format auto --port 5 --tp 2"):
        assert fingerprint(text) == fingerprint("")
    (tmp_path / "copy").write_text("{}")
    assert fingerprint(f"--quantization-param-path {tmp_path / 'copy'}") == fingerprint(given[4])
    scales.write_text('{"layer": 2}')
    assert fingerprint(given[4]) != fingerprint(f"--quantization-param-path {tmp_path / 'copy'}")


def test_a_name_on_a_hub_is_known_by_name_and_revision() -> None:
    named = model_facts("Qwen/Qwen3-8B")
    assert named.kv_heads is None
    assert named != model_facts("Qwen/Qwen3-8B", {"--revision": "main2"})
