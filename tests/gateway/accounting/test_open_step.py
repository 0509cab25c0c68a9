"""One ending per step."""

from dataclasses import dataclass, field, fields

import pytest
from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.accounting.endings import ENDINGS, LEGAL_MOVES, StepPhase
from heddle_gateway.accounting.open_step import OpenStep, StepEndedTwice


@dataclass
class Who:
    trajectory_id: str = "t"
    source: str = "header"
    group_id: str | None = None
    sample: int | None = None
    parent_id: str | None = None
    step: int = 0
    segment: int = 0
    retry_of_step: bool = False


@dataclass
class Said:
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reasons: list[str] = field(default_factory=list)
    tool_names: list[str] = field(default_factory=list)
    chunks: int = 0


def new_step() -> OpenStep:
    return OpenStep(
        Who(),
        tenant="",
        model="m",
        dialect="chat",
        estimated_prompt_tokens=50,
        arrived_at=100.0,
        gap_before_s=None,
    )


@pytest.mark.parametrize("first", list(Outcome))
@pytest.mark.parametrize("second", list(Outcome))
def test_a_second_ending_is_an_error(first: Outcome, second: Outcome) -> None:
    step = new_step()
    assert step.end(first, status=None, now=101.0).outcome is first
    with pytest.raises(StepEndedTwice):
        step.end(second, status=200, now=102.0)


def test_every_outcome_and_phase_has_its_row() -> None:
    assert set(ENDINGS) == set(Outcome)
    assert set(LEGAL_MOVES) == set(StepPhase)
    assert [outcome for outcome, ending in ENDINGS.items() if ending.whole and ending.blames == "nobody"] == [
        Outcome.DONE
    ]


def test_an_ended_step_has_the_fields_of_the_contract() -> None:
    contract = set(StepRecord.model_fields) - {"schema_version"}
    assert {field.name for field in fields(EndedStep)} == contract


def test_an_ended_step_is_a_valid_record() -> None:
    step = new_step()
    step.dispatched("w", 3, 100.5)
    step.answering(100.75)
    step.heard(Said(10, 5, 4, ["stop"], ["search"], 6))
    ended = step.end(Outcome.DONE, status=200, now=102.0)
    record = StepRecord.model_validate({field.name: getattr(ended, field.name) for field in fields(ended)})
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (10, 5, 4)
    assert (record.finish_reason, record.tool_names, record.usage_known) == ("stop", ("search",), True)
    assert record.dispatched_at == pytest.approx(record.arrived_at + 0.5)
    assert record.first_byte_at == pytest.approx(record.arrived_at + 0.75)
    assert record.ended_at == pytest.approx(record.arrived_at + 2)


def test_chunks_count_where_usage_never_came() -> None:
    step = new_step()
    step.dispatched("w", 0, 100.0)
    step.answering(100.1)
    step.heard(Said(chunks=7))
    ended = step.end(Outcome.ABORTED, status=200, now=101.0)
    assert (ended.prompt_tokens, ended.output_tokens, ended.usage_known) == (50, 7, False)


def test_a_step_that_never_left_the_gateway_used_no_tokens() -> None:
    ended = new_step().end(Outcome.REJECTED, status=503, now=100.0)
    assert (ended.attempts, ended.prompt_tokens, ended.worker) == (0, 0, None)


def test_the_answers_of_a_failed_attempt_do_not_count() -> None:
    step = new_step()
    step.dispatched("first", 0, 100.0)
    step.heard(Said(output_tokens=99))
    step.dispatched("second", 1, 101.0)
    ended = step.end(Outcome.ABORTED, status=None, now=102.0)
    assert (ended.attempts, ended.worker, ended.output_tokens, ended.priority_level) == (2, "second", 0, 1)


def test_an_answer_cannot_begin_before_a_dispatch_nor_be_sent_again_after_it_began() -> None:
    step = new_step()
    with pytest.raises(RuntimeError, match="arrived to answering"):
        step.answering(100.0)
    step.dispatched("w", 0, 100.0)
    step.answering(100.1)
    with pytest.raises(RuntimeError, match="answering to dispatched"):
        step.dispatched("w", 0, 100.2)
