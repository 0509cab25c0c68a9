"""Fine-tunes the transformer predictor on a small random Qwen3; prints what came of it as JSON.

Runs in the engine's environment, which has torch and transformers, with a folder as its argument.
"""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import torch
from heddle_planner.predictor.features import Progress
from heddle_planner.predictor.observations import EndedStep, Origin
from heddle_planner.predictor.protocol import Example, PredictorError
from heddle_planner.predictor.transformer import Transformer, Tuning, cut_tokens, render
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model


def a_backbone(folder: Path, corpus: list[str]) -> Path:
    """Two layers of random weights, and a byte-level tokenizer made of the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    Qwen3Model(config).save_pretrained(folder)
    return folder


def examples() -> list[Example]:
    """What was said last tells the length, by a factor of twenty; every fifth trajectory was cut off."""
    draw = random.Random(0)
    found = []
    for number in range(120):
        long = number % 2
        progress = Progress(Origin(f"t{number}", "", domain="coding", prompt_tokens=200))
        progress.observe(
            EndedStep(50, text="much is left to do" if long else "finished, here is the summary")
        )
        left = (4_000 if long else 200) * draw.uniform(0.7, 1.4)
        finished = number % 5 != 0
        found.append(
            Example(progress.features(), left if finished else left / 2, f"{number}", number, finished)
        )
    return found


def main(folder: Path) -> None:
    data = examples()
    backbone = a_backbone(folder / "random", [render(example.features) for example in data])
    tuning = Tuning(
        backbone=str(backbone),
        max_tokens=96,
        epochs=3,
        batch=16,
        learning_rate=2e-3,
        head_learning_rate=2e-2,
        checkpoints=str(folder / "checkpoints"),
    )
    first = Transformer(tuning)
    first.fit(data)
    resumed = Transformer(replace(tuning, epochs=5))
    resumed.fit(data)
    moments = [example.features for example in data]
    said = resumed.predict(moments)
    saved = folder / "saved"
    saved.mkdir()
    resumed.save(saved)
    again = Transformer.load(saved).predict(moments)
    (saved / "transformer.json").write_text("{")
    try:
        Transformer.load(saved)
        refusal = ""
    except PredictorError as error:
        refusal = str(error)
    done = [example for example in data if example.finished]
    held = resumed.predict([example.features for example in done])
    inside = [
        low <= example.remaining <= high
        for example, low, high in zip(done, held.quantiles[:, 0], held.quantiles[:, 4], strict=True)
    ]
    result = {
        "losses": resumed.losses,
        "first_losses": first.losses,
        "long": float(said.mean[1::2].mean()),
        "short": float(said.mean[::2].mean()),
        "inside": sum(inside) / len(inside),
        "same": bool((abs(again.mean - said.mean) <= 1e-3 * said.mean).all()),
        "files": sorted(path.name for path in saved.rglob("*") if path.is_file()),
        "refusal": refusal,
        "cut": cut_tokens(list(range(10)), 6),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
