"""The historical baseline and its prior."""

from pathlib import Path

import numpy as np
import pytest
from heddle_core import Siblings
from heddle_planner.predictor.features import Progress, StepFeatures
from heddle_planner.predictor.history import History, remaining_of_lognormal
from heddle_planner.predictor.observations import EndedStep, Origin
from heddle_planner.predictor.prompt_only import PromptOnly
from heddle_planner.predictor.protocol import QUANTILES, Example, PredictorError
from heddle_planner.predictor.siblings import Sibling


def moment(
    prompt: str = "", domain: str = "", done: int = 0, siblings: tuple[Sibling, ...] = ()
) -> StepFeatures:
    progress = Progress(Origin("t", prompt, domain, prompt_tokens=100))
    if done:
        progress.observe(EndedStep(done))
    return progress.features(Siblings(siblings))


def test_what_remains_of_a_lognormal_is_what_a_sample_of_it_shows() -> None:
    draw = np.random.default_rng(1)
    lengths = np.exp(8.0 + 1.1 * draw.standard_normal(400_000))
    for done in (0.0, 1_000.0, 10_000.0):
        left = lengths[lengths > done] - done
        said = remaining_of_lognormal(np.array([8.0]), np.array([1.1]), np.array([done]))
        assert said.mean[0] == pytest.approx(left.mean(), rel=0.03)
        np.testing.assert_allclose(said.quantiles[0], np.quantile(left, QUANTILES), rtol=0.03)


@pytest.mark.parametrize("done", [0, 1, 10**6, 10**8])
def test_a_first_run_without_any_data_is_sane(done: int) -> None:
    said = History().predict([moment(done=done)])
    assert np.isfinite(said.mean).all()
    assert (said.mean >= 1).all()
    assert (np.diff(said.quantiles, axis=1) >= 0).all()
    assert 0.05 <= said.sigma[0] <= 5


def test_it_goes_by_prompt_then_domain_then_everything() -> None:
    history = History()
    for _ in range(50):
        history.learn(Origin("a", "long", "d"), 50_000)
        history.learn(Origin("b", "short", "d"), 500)
        history.learn(Origin("c", "", "e"), 50)
    long, short, other, domain = history.predict(
        [moment("long", "d"), moment("short", "d"), moment("new", "e"), moment("new", "d")]
    ).quantiles[:, 2]
    assert long == pytest.approx(50_000, rel=0.3)
    assert short == pytest.approx(500, rel=0.3)
    assert other == pytest.approx(50, rel=0.3)
    assert short < domain < long


def test_finished_siblings_move_it() -> None:
    history = History()
    without = history.predict([moment()]).mean[0]
    few = history.predict([moment(siblings=(Sibling(100, 3),))]).mean[0]
    many = history.predict([moment(siblings=(Sibling(100, 3),) * 8)]).mean[0]
    assert many < few < without


@pytest.mark.parametrize("kind", [History, PromptOnly])
def test_baselines_come_back_as_they_were_saved(
    kind: type[History] | type[PromptOnly], tmp_path: Path, examples: list[Example]
) -> None:
    fitted = kind()
    fitted.fit(examples)
    fitted.save(tmp_path)
    moments = [example.features for example in examples[:200]]
    np.testing.assert_allclose(kind.load(tmp_path).predict(moments).mean, fitted.predict(moments).mean)
    (tmp_path / f"{kind.name}.json").write_text('{"all": "x"}')
    with pytest.raises(PredictorError, match=rf"{kind.name}\.json"):
        kind.load(tmp_path)
    (tmp_path / f"{kind.name}.json").unlink()
    with pytest.raises(PredictorError, match="cannot be read"):
        kind.load(tmp_path)


def test_a_prompt_says_what_its_length_says() -> None:
    found = []
    for number in range(60):
        progress = Progress(Origin(f"{number}", "", prompt_tokens=100 * (number + 1)))
        found.append(Example(progress.features(), 10.0 * (number + 1), f"{number}", number))
    predictor = PromptOnly()
    predictor.fit(found)
    said = predictor.predict([example.features for example in found]).mean
    assert np.corrcoef(said, [example.remaining for example in found])[0, 1] > 0.9
