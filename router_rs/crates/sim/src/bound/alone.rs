//! The longest trajectory, with nobody beside it and its own KV all the time.

use std::collections::BTreeMap;

use super::Degree;
use crate::costs::Costs;
use crate::segment::Segment;
use crate::workload::{Script, Workload};

/// Seconds of a trajectory alone, its start and tools included, each step on the fastest of these workers. `known`:
/// tokens of its prompt that a sibling may have computed before.
pub fn alone_s(script: &Script, workers: &[&Costs], known: u64) -> f64 {
    let mut seconds = script.start_s + script.tool_s();
    let mut computed = known.min(script.prompt.saturating_sub(1));
    for (turn, prompt) in script.turns.iter().zip(script.prompts()) {
        let step = |costs: &Costs| {
            costs.prefill_s([(prompt - computed, computed)].into_iter())
                + decode_alone_s(costs, prompt, turn.output)
        };
        let each = workers.iter().map(|costs| step(costs));
        seconds += each.fold(f64::INFINITY, f64::min);
        computed = prompt + turn.output - 1;
    }
    seconds
}

/// Seconds from the first to the last of `output` tokens behind a prompt, alone.
pub fn decode_alone_s(costs: &Costs, prompt: u64, output: u64) -> f64 {
    let segment = Segment {
        start: 0.0,
        first_step: costs.step_s(1, prompt),
        growth: costs.context_token_s,
        steps: output,
    };
    segment.duration(output - 1)
}

/// The longest of all that way.
pub(super) fn longest_s(workload: &Workload, degrees: &[Degree]) -> f64 {
    let mut members = BTreeMap::new();
    for group in workload.scripts().iter().filter_map(|script| script.group) {
        *members.entry(group).or_insert(0) += 1;
    }
    let workers: Vec<&Costs> = degrees.iter().map(|degree| &degree.costs).collect();
    let alone = |(index, script): (usize, &Script)| {
        let has_siblings = script.group.is_some_and(|group| members[&group] > 1);
        let known = if has_siblings {
            workload.shared_prompt(index)
        } else {
            0
        };
        alone_s(script, &workers, known)
    };
    let all = workload.scripts().iter().enumerate().map(alone);
    all.fold(0.0, f64::max)
}
