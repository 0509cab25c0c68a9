//! Workers with round numbers, and scripts in short.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;

use heddle_sim::bound::{Bound, lower_bound};
use heddle_sim::spec::Truth;
use heddle_sim::{Costs, Script, Spec, Turn, Workload};
use serde_json::{Map, Value};

/// 10 ms a step alone and 1 ms for each more, 1 us for each token of context; 4 ms and 0.1 ms a token of prefill.
pub fn costs() -> Costs {
    Costs {
        batches: vec![1, 11],
        step_seconds: vec![0.010, 0.020],
        context_token_s: 1e-6,
        prefill_fixed_s: 0.004,
        prefill_token_s: 1e-4,
        prefill_pair_s: 0.0,
    }
}

pub fn truth() -> Truth {
    Truth {
        costs: costs(),
        slots: 8,
        kv_tokens: 100_000,
        link: None,
    }
}

pub fn policy(json: &str) -> Map<String, Value> {
    serde_json::from_str(json).unwrap()
}

/// Workers of these degrees; degree d is d times as fast and has d times the room.
pub fn spec(workers: &[u32]) -> Spec {
    let mut spec: Spec = serde_json::from_str(r#"{"truth": {}, "workers": []}"#).unwrap();
    spec.workers = workers.to_vec();
    spec.truth = workers
        .iter()
        .map(|&degree| (degree, scaled(degree)))
        .collect::<BTreeMap<_, _>>();
    spec
}

fn scaled(degree: u32) -> Truth {
    let truth = truth();
    Truth {
        costs: truth.costs.slowed(1.0 / f64::from(degree)),
        slots: truth.slots * degree,
        kv_tokens: truth.kv_tokens * u64::from(degree),
        link: None,
    }
}

pub fn turn(input: u64, output: u64, tool_s: f64) -> Turn {
    Turn {
        input,
        output,
        tool_s,
    }
}

pub fn script(prompt: u64, turns: &[(u64, u64, f64)]) -> Script {
    Script {
        prompt,
        group: None,
        start_s: 0.0,
        turns: turns
            .iter()
            .map(|&(input, output, tool_s)| turn(input, output, tool_s))
            .collect(),
    }
}

pub fn workload(scripts: Vec<Script>) -> Workload {
    Workload::new(scripts).unwrap()
}

/// To the microsecond of the core's clock, one a step.
pub fn close(got: f64, expected: f64, steps: usize) {
    assert!(
        (got - expected).abs() < 2e-6 * steps as f64,
        "got {got}, expected {expected}"
    );
}

pub fn bound(workload: &Workload, spec: &Spec) -> Bound {
    lower_bound(workload, &spec.truth, spec.gpus(), spec.slowdown)
}
