"""The boosted predictor: learns a law, says how sure it is, survives being cut off, saved and spoiled."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from heddle_planner.predictor.ages import AGES, age_weights
from heddle_planner.predictor.boosting import Boosting
from heddle_planner.predictor.examples import make_examples
from heddle_planner.predictor.folds import chances, task_folds, thinned
from heddle_planner.predictor.history import History
from heddle_planner.predictor.protocol import Example, Prediction, PredictorError
from heddle_planner.predictor.records import load_set
from heddle_planner.predictor.scores import concordance


@pytest.fixture(scope="module")
def fitted(examples: list[Example]) -> Boosting:
    predictor = Boosting()
    predictor.fit(examples)
    return predictor


def truth_of(examples: list[Example]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([example.remaining for example in examples])


def said_of(predictor: Boosting | History, examples: list[Example]) -> Prediction:
    return predictor.predict([example.features for example in examples])


def test_it_orders_strangers_better_than_history_and_better_with_each_step(
    fitted: Boosting, examples: list[Example], strangers: list[Example]
) -> None:
    history = History()
    history.fit(examples)

    def order(predictor: Boosting | History, step: int) -> float:
        moments = [example for example in strangers if example.features.steps == step]
        found = concordance(truth_of(moments), said_of(predictor, moments).mean)
        assert found is not None
        return found

    assert order(fitted, 2) > 0.75
    assert order(fitted, 2) > order(fitted, 0) + 0.1
    truth = truth_of(strangers)
    error, theirs = (np.abs(truth - said_of(one, strangers).mean).mean() for one in (fitted, history))
    assert error < 0.8 * theirs


def test_its_intervals_hold_and_its_mean_is_right_on_average(
    fitted: Boosting, strangers: list[Example]
) -> None:
    said, truth = said_of(fitted, strangers), truth_of(strangers)
    inside = ((truth >= said.quantiles[:, 0]) & (truth <= said.quantiles[:, 4])).mean()
    assert 0.75 < inside <= 1.0
    later = np.array([example.features.steps >= 2 for example in strangers])
    off = np.log(said.quantiles[later, 2] / truth[later]).mean()
    assert abs(off) < 0.4


def test_what_it_says_is_always_usable(fitted: Boosting, strangers: list[Example]) -> None:
    spoiled = [example.features for example in strangers[:40]]
    for row, features in enumerate(spoiled):
        features.numbers[:: row + 1] = [np.nan, 1e300, -1e300, 0.0][row % 4]
    said = fitted.predict(spoiled)
    for values in (said.mean, said.sigma, said.quantiles):
        assert np.isfinite(values).all()
    assert (said.mean >= 1).all()
    assert (np.diff(said.quantiles, axis=1) >= 0).all()
    assert ((said.sigma >= 0.05) & (said.sigma <= 5)).all()
    assert len(fitted.predict([])) == 0


def test_a_batch_says_what_its_members_say_alone(fitted: Boosting, examples: list[Example]) -> None:
    some = examples[100:110]
    alone = [said_of(fitted, [example]).mean[0] for example in some]
    np.testing.assert_allclose(said_of(fitted, some).mean, alone)


def test_it_comes_back_as_it_was_saved_without_pickle(
    fitted: Boosting, strangers: list[Example], tmp_path: Path
) -> None:
    fitted.save(tmp_path)
    loaded = Boosting.load(tmp_path)
    before, after = said_of(fitted, strangers), said_of(loaded, strangers)
    np.testing.assert_allclose(after.mean, before.mean, rtol=1e-4)
    np.testing.assert_allclose(after.quantiles, before.quantiles, rtol=1e-4)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".txt", ".npy"}
    assert not any(path.read_bytes().startswith(b"\x80") for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
        ("boosting.json", lambda text: "{", "boosting.json: cannot be read"),
        ("boosting.json", lambda text: "[]", "boosting.json: cannot be read"),
        ("boosting.json", lambda text: text.replace('"log_done"', '"log_dome"'), "features: is not that of"),
        ("boosting.json", lambda text: text.replace('"format": 3', '"format": 9'), "format: is not that of"),
        (
            "boosting.json",
            lambda text: json.dumps({**json.loads(text), "shape": [0]}),
            "must be finite numbers of shape",
        ),
        ("location.txt", lambda text: "", "cannot be read"),
        ("location.txt", lambda text: "nonsense", "cannot be read"),
        ("spread.txt", lambda text: "nonsense", "cannot be read"),
        ("history.json", lambda text: "{}", "history.json: cannot be read"),
        ("wording.npy", None, "cannot be read"),
    ],
)
def test_a_spoiled_model_is_refused_by_file(
    fitted: Boosting, tmp_path: Path, file: str, spoil: Callable[[str], str] | None, message: str
) -> None:
    fitted.save(tmp_path)
    path = tmp_path / file
    if spoil is None:
        path.unlink()
    else:
        path.write_text(spoil(path.read_text()))
    with pytest.raises(PredictorError, match=message.replace(".", r"\.")):
        Boosting.load(tmp_path)


def test_too_little_to_learn_from_is_said(examples: list[Example]) -> None:
    few = [example for example in examples if example.trajectory < 4]
    with pytest.raises(PredictorError, match="4 trajectories are too few"):
        Boosting().fit(few)
    one_task = [Example(e.features, e.remaining, "same", e.trajectory) for e in examples]
    with pytest.raises(PredictorError, match="two tasks"):
        Boosting().fit(one_task)
    with pytest.raises(PredictorError, match="before fit"):
        Boosting().predict([examples[0].features])


def test_trajectories_that_were_cut_off_do_not_make_it_short(
    made: Callable[..., Path], strangers: list[Example]
) -> None:
    def fit(name: str, *, cut: float, believing: bool = False) -> float:
        """The logarithm of the lengths that it predicts early on."""
        recorded = load_set(made(name, 60, 2, seed=4, cut=cut))
        found = make_examples(recorded.trajectories, recorded.tasks)
        if believing:
            found = [Example(e.features, e.remaining, e.task, e.trajectory) for e in found]
        predictor = Boosting()
        predictor.fit(found)
        early = [example for example in strangers if example.features.steps <= 4]
        return float(np.log(said_of(predictor, early).quantiles[:, 2]).mean())

    whole = fit("whole.jsonl", cut=0.0)
    aware = fit("cut.jsonl", cut=0.4)
    believing = fit("cut.jsonl", cut=0.4, believing=True)
    assert believing < whole - 0.1
    assert abs(aware - whole) < 0.7 * abs(believing - whole)


def test_words_that_tell_are_heard(
    written: Callable[..., Path], line: Callable[..., dict[str, object]]
) -> None:
    draw = np.random.default_rng(2)
    lines, texts = [], []
    for task in range(60):
        long = bool(task % 2)
        lines.append(line(f"t{task}", 0, [int(v) for v in draw.integers(90, 110, 12 if long else 4)]))
        content = "rewrite the whole engine" if long else "mend a typo"
        texts.append({"id": f"t{task}/0", "prompt": [{"role": "user", "content": content}], "steps": []})
    written("w.text.jsonl", texts)
    recorded = load_set(written("w.jsonl", lines))
    examples = make_examples(recorded.trajectories, recorded.tasks)
    learned = [example for example in examples if example.trajectory < 40]
    held = [example for example in examples if example.trajectory >= 40 and example.features.steps == 0]
    predictor = Boosting()
    predictor.fit(learned)
    found = concordance(truth_of(held), said_of(predictor, held).mean)
    assert found is not None
    assert found > 0.75


def test_an_opinion_that_was_wrong_on_held_out_rows_has_no_weight() -> None:
    draw = np.random.default_rng(0)
    said = draw.standard_normal((4_000, 2))
    steps = np.arange(4_000) % 40
    finished = np.ones(4_000, dtype=np.bool_)
    found = age_weights(said[:, 0] + draw.standard_normal(4_000), said, steps, finished)
    assert found[:, 0] == pytest.approx(np.ones(len(AGES)), abs=0.25)
    assert (found[:-1, 1] < 0.3).all()


def test_opinions_that_agree_share_the_weight() -> None:
    draw = np.random.default_rng(0)
    truth = draw.standard_normal(4_000)
    steps = np.full(4_000, 20)
    found = age_weights(truth, np.column_stack([truth, truth]), steps, np.ones(4_000, dtype=np.bool_))
    assert found[-1] == pytest.approx([0.5, 0.5], abs=0.02)


def test_what_was_said_long_ago_is_remembered(
    written: Callable[..., Path], line: Callable[..., dict[str, object]]
) -> None:
    """The word that tells comes at the first step; the order is asked for at the fourth."""
    draw = np.random.default_rng(5)
    lines = []
    for task in range(80):
        word = ("migrate", "rename")[task % 2]
        fields = line(f"t{task}", 0, [int(v) for v in draw.integers(90, 110, 14 if task % 2 else 6)])
        for number, step in enumerate(fields["steps"]):  # type: ignore[arg-type,var-annotated]
            step["text"] = f"I will {word} it" if number == 0 else "next"
        lines.append(fields)
    recorded = load_set(written("said.jsonl", lines))
    examples = make_examples(recorded.trajectories, recorded.tasks)
    predictor = Boosting()
    predictor.fit([example for example in examples if example.trajectory < 50])
    held = [e for e in examples if e.trajectory >= 50 and e.features.steps == 4]
    found = concordance(truth_of(held), said_of(predictor, held).mean)
    assert found is not None
    assert found > 0.7


def test_of_an_agent_it_never_saw_history_has_the_word(
    fitted: Boosting, strangers: list[Example], examples: list[Example]
) -> None:
    """Where nothing is unusual that means the same whoever the agent is."""
    history = History()
    history.fit(examples)
    moments = [example.features for example in strangers]
    others = [m._replace(origin=replace(m.origin, model="another")) for m in moments]
    theirs = fitted.predict(others)
    np.testing.assert_allclose(theirs.mean, history.predict(others).mean, rtol=1e-6)
    np.testing.assert_allclose(theirs.quantiles, history.predict(others).quantiles, rtol=1e-6)
    assert not np.allclose(fitted.predict(moments).mean, theirs.mean, rtol=0.02)


def test_folds_keep_tasks_whole_and_even() -> None:
    tasks = [f"{number // 3}" for number in range(300)]
    folds = task_folds(tasks, 5, seed=1)
    for task in set(tasks):
        assert len({int(fold) for fold, name in zip(folds, tasks, strict=True) if name == task}) == 1
    assert sorted(np.bincount(folds)) == [60] * 5
    assert task_folds(["a", "b"], 5, seed=0).max() == 1


def test_thinning_keeps_early_steps_and_the_bound() -> None:
    steps = np.tile(np.arange(200), 50)
    kept = thinned(chances(steps, 100_000), seed=0)
    assert (np.bincount(steps[kept], minlength=200)[:9] == 50).all()
    assert len(thinned(chances(steps, 1_000), seed=0)) < 1_150
