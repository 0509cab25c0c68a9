"""The paper's predictor: a pretrained causal language model with a regression head, fine-tuned on history.

Reads a moment as text: its figures in words, the prompt, what was said last; longer texts lose their middle.
The head gives mean and spread of the logarithm of the remaining length; the loss is the normal's, and for a
trajectory that was cut off the probability of being longer. All weights are trained. Needs
``heddle-planner[transformer]``.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from heddle_planner.predictor.calibration import MeanCalibration, held_out_quantiles
from heddle_planner.predictor.features import FEATURES, StepFeatures
from heddle_planner.predictor.folds import chances, task_folds, thinned
from heddle_planner.predictor.protocol import QUANTILES, Example, Floats, Prediction, PredictorError

FORMAT: Final = 1
_NORMAL: Final = np.array(
    [-1.6448536269514722, -0.6744897501960817, 0.0, 0.6744897501960817, 1.6448536269514722]
)
_FIGURES: Final = ("log_prompt", "log_context", "log_last_output", "log_mean_output", "errors", "tools")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Fine-tuning. ``backbone``: a name of the model hub or a folder. ``max_tokens``: of one text.
    ``checkpoints``: a folder for the state after each epoch, from which an interrupted `fit` of the same data
    goes on.
    """

    backbone: str = "Qwen/Qwen3-0.6B"
    max_tokens: int = 1024
    epochs: int = 3
    batch: int = 16
    learning_rate: float = 1e-5
    head_learning_rate: float = 1e-3
    warmup: float = 0.1
    most_examples: int = 20_000
    checkpoints: str | None = None
    seed: int = 0


class _Net(nn.Module):  # type: ignore[misc]
    """Backbone, and a head on the last token's state: mean and log spread of the standardised logarithm."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        states = self.backbone(input_ids=tokens, attention_mask=mask).last_hidden_state
        last = states[torch.arange(len(tokens), device=tokens.device), mask.sum(dim=1) - 1]
        mean, log_spread = self.head(last.float()).unbind(dim=-1)
        return mean, log_spread.clamp(-3.0, 2.0)


@dataclass(slots=True)
class Transformer:
    """`Predictor`; see the module. A GPU is used where there is one, with bfloat16 in the forward pass."""

    name: ClassVar[str] = "transformer"

    tuning: Tuning = field(default_factory=Tuning)
    losses: list[float] = field(default_factory=list)
    """Mean training loss of each epoch of the last `fit`."""
    _net: _Net | None = None
    _tokenizer: Any = None
    _center: float = 0.0
    _scale: float = 1.0
    _shifts: Floats = field(default_factory=lambda: np.zeros(len(QUANTILES)))
    _mean: MeanCalibration = field(default_factory=MeanCalibration)

    def fit(self, examples: Sequence[Example]) -> None:
        """Fine-tunes on four fifths of the tasks and calibrates on the rest. Raises PredictorError."""
        kept = self._thin(examples)
        folds = task_folds([example.task for example in kept], 5, self.tuning.seed)
        if folds.max() < 1:
            raise PredictorError("transformer: examples of two tasks at least are needed")
        learned = [example for example, fold in zip(kept, folds, strict=True) if fold != 0]
        held = [example for example, fold in zip(kept, folds, strict=True) if fold == 0]
        torch.manual_seed(self.tuning.seed)
        logs = np.log1p([example.remaining for example in learned])
        self._center, self._scale = float(logs.mean()), max(0.1, float(logs.std()))
        self._tokenizer, self._net = _pretrained(self.tuning.backbone)
        self._train(learned)
        self._calibrate(held)

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
        """Raises PredictorError before `fit` or `load`."""
        center, spread = self._infer([render(moment) for moment in moments])
        logs = center[:, None] + spread[:, None] * (_NORMAL + self._shifts)[None, :]
        logs = np.clip(np.sort(logs, axis=1), 0.0, 20.0)
        sigma = np.clip((logs[:, -1] - logs[:, 0]) / (_NORMAL[-1] - _NORMAL[0]), 0.05, 5.0)
        return Prediction(self._mean.apply(center), sigma, np.maximum(np.expm1(logs), 1.0))

    def save(self, folder: Path) -> None:
        """``transformer.json``, ``head.safetensors``, ``backbone/`` with weights and tokenizer."""
        if self._net is None:
            raise PredictorError("transformer: save before fit")
        self._net.backbone.save_pretrained(folder / "backbone", safe_serialization=True)
        self._tokenizer.save_pretrained(folder / "backbone")
        save_file(
            {k: v.contiguous() for k, v in self._net.head.state_dict().items()}, folder / "head.safetensors"
        )
        body = {
            "format": FORMAT,
            "tuning": asdict(self.tuning),
            "center": self._center,
            "scale": self._scale,
            "shifts": self._shifts.tolist(),
            "mean": self._mean.as_json(),
        }
        (folder / "transformer.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises PredictorError."""
        path = folder / "transformer.json"
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["format"] != FORMAT:
                raise PredictorError(f"{path}: format: {body['format']!r} is not {FORMAT}; train again")
            known = {one.name for one in fields(Tuning)}
            loaded = cls(Tuning(**{name: value for name, value in body["tuning"].items() if name in known}))
            loaded._center, loaded._scale = float(body["center"]), float(body["scale"])
            loaded._shifts = np.array([float(value) for value in body["shifts"]])
            loaded._mean = MeanCalibration.from_json(body["mean"])
            loaded._tokenizer, loaded._net = _pretrained(str(folder / "backbone"))
            loaded._net.head.load_state_dict(load_file(folder / "head.safetensors"))
        except (OSError, KeyError, TypeError, RuntimeError) as error:
            raise PredictorError(f"{path}: cannot be read: {error!r}") from error
        except ValueError as error:
            if isinstance(error, PredictorError):
                raise
            raise PredictorError(f"{path}: cannot be read: {error!r}") from error
        return loaded

    # ------------------------------------------------------------------------------------------ inside

    def _thin(self, examples: Sequence[Example]) -> list[Example]:
        steps = np.array([example.features.steps for example in examples], dtype=np.intp)
        rows = thinned(chances(steps, self.tuning.most_examples), self.tuning.seed)
        return [examples[row] for row in rows.tolist()]

    def _train(self, examples: Sequence[Example]) -> None:
        assert self._net is not None
        net, tuning = self._net, self.tuning
        device = _device()
        net.to(device).train()
        optimizer = torch.optim.AdamW(
            [
                {"params": net.backbone.parameters(), "lr": tuning.learning_rate},
                {"params": net.head.parameters(), "lr": tuning.head_learning_rate},
            ],
            weight_decay=0.01,
        )
        per_epoch = math.ceil(len(examples) / tuning.batch)
        total = max(1, per_epoch * tuning.epochs)
        warm = max(1, round(tuning.warmup * total))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warm, max(0.0, (total - step) / max(1, total - warm)))
        )
        draw = np.random.default_rng(tuning.seed)
        orders = [draw.permutation(len(examples)) for _ in range(tuning.epochs)]
        self.losses = []
        first = self._resume(optimizer, schedule)
        for epoch in range(first, tuning.epochs):
            losses = []
            for start in range(0, len(examples), tuning.batch):
                rows = orders[epoch][start : start + tuning.batch].tolist()
                loss = self._loss([examples[row] for row in rows], device)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                losses.append(float(loss.detach()))
            self.losses.append(float(np.mean(losses)))
            self._checkpoint(epoch)
        net.eval()

    def _loss(self, examples: Sequence[Example], device: torch.device) -> Tensor:
        assert self._net is not None
        tokens, mask = self._batch([render(example.features) for example in examples], device)
        target = torch.tensor(
            [(math.log1p(example.remaining) - self._center) / self._scale for example in examples],
            device=device,
        )
        finished = torch.tensor([example.finished for example in examples], device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            mean, log_spread = self._net(tokens, mask)
        standard = (target - mean) / log_spread.exp()
        seen = 0.5 * standard**2 + log_spread
        longer = -torch.special.log_ndtr(-standard)
        return torch.where(finished, seen, longer).mean()

    def _batch(self, texts: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
        most = self.tuning.max_tokens
        rows = [cut_tokens(self._tokenizer(text)["input_ids"], most) or [0] for text in texts]
        longest = max(len(row) for row in rows)
        tokens = torch.zeros((len(rows), longest), dtype=torch.long)
        mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = torch.tensor(row)
            mask[place, : len(row)] = 1
        return tokens.to(device), mask.to(device)

    def _infer(self, texts: Sequence[str]) -> tuple[Floats, Floats]:
        if self._net is None:
            raise PredictorError("transformer: predict before fit or load")
        device = _device()
        net = self._net.to(device).eval()
        means: list[Floats] = [np.empty(0)]
        spreads: list[Floats] = [np.empty(0)]
        with torch.inference_mode():
            for part in _parts(texts, 4 * self.tuning.batch):
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                    mean, log_spread = net(*self._batch(part, device))
                means.append(mean.double().cpu().numpy() * self._scale + self._center)
                spreads.append(log_spread.exp().double().cpu().numpy() * self._scale)
        return np.concatenate(means), np.concatenate(spreads)

    def _calibrate(self, held: Sequence[Example]) -> None:
        self._shifts = np.zeros(len(QUANTILES))
        center, spread = self._infer([render(example.features) for example in held])
        finished = np.array([example.finished for example in held], dtype=np.bool_)
        logs = np.log1p([example.remaining for example in held])
        standard = (logs - center) / spread
        self._shifts = held_out_quantiles(standard, QUANTILES, finished) - _NORMAL
        if finished.any():
            whole = np.ones(int(finished.sum()))
            self._mean = MeanCalibration.fit(center[finished], np.expm1(logs[finished]), whole)

    def _checkpoint(self, epoch: int) -> None:
        if self.tuning.checkpoints is None or self._net is None:
            return
        folder = Path(self.tuning.checkpoints)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.contiguous().clone() for name, value in self._net.state_dict().items()}
        fresh = folder / "net.safetensors.part"
        save_file(weights, fresh)
        fresh.replace(folder / "net.safetensors")
        state = {"epoch": epoch, "losses": self.losses, "seed": self.tuning.seed}
        (folder / "state.json").write_text(json.dumps(state) + "\n", encoding="utf-8")

    def _resume(self, optimizer: torch.optim.Optimizer, schedule: Any) -> int:
        """The epoch to go on with. Weights come back; the optimizer's moments begin anew."""
        if self.tuning.checkpoints is None or self._net is None:
            return 0
        folder = Path(self.tuning.checkpoints)
        if not (folder / "state.json").is_file():
            return 0
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state.get("seed") != self.tuning.seed:
            return 0
        self._net.load_state_dict(load_file(folder / "net.safetensors"))
        self.losses = [float(value) for value in state["losses"]]
        return int(state["epoch"]) + 1


def render(moment: StepFeatures) -> str:
    """A moment as text: figures first, then what was said; the newest at the end."""
    numbers = [
        f"{name} {moment.numbers[FEATURES.index(name)]:.1f}"
        for name in _FIGURES
        if math.isfinite(moment.numbers[FEATURES.index(name)])
    ]
    siblings = " ".join(str(tokens) for tokens, _ in moment.siblings.finished[-8:]) or "none"
    origin = moment.origin
    return "\n".join(
        (
            f"domain {origin.domain} model {origin.model} steps {moment.steps} tokens {moment.done_tokens}",
            " ".join(numbers),
            f"finished siblings: {siblings}",
            origin.prompt_text or "",
            moment.text or "",
            "tokens still to come:",
        )
    )


def cut_tokens(tokens: Sequence[int], most: int) -> list[int]:
    """Without the middle where longer than ``most``: the beginning says what is asked, the end what is
    done.
    """
    if len(tokens) <= most:
        return list(tokens)
    head = most // 3
    return [*tokens[:head], *tokens[len(tokens) - (most - head) :]]


def _parts(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]


def _pretrained(where: str) -> tuple[Any, _Net]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
        backbone = AutoModel.from_pretrained(where, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise PredictorError(f"transformer: backbone {where!r} cannot be loaded: {error}") from error
    return tokenizer, _Net(backbone, int(backbone.config.hidden_size))


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
