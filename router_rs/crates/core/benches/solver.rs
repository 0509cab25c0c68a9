//! Time of whole plans (ranking, search, balancing) at the paper's scale: 6,400 trajectories on 64
//! GPUs (§6.2: annealing 5 s, DP 42 ms at 16 workers).

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use heddle_core::solver::{Cooling, CostKind, Profile, Request, SolverKind, Workload, solve};

/// Log-normal lengths of median 3,000 and a tail cut at 40,000 tokens, by a fixed generator: as
/// skewed as coding rollouts.
fn lengths(n: usize) -> Vec<f64> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut unit = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    (0..n)
        .map(|_| {
            let normal = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
            (3000.0 * (1.1 * normal).exp()).min(40_000.0)
        })
        .collect()
}

/// The scale of an 8B model on H100-class GPUs; not a profile to plan with.
fn profile() -> Profile {
    let degrees: serde_json::Map<String, serde_json::Value> = [(1u32, 7.0, 400e3), (2, 4.4, 900e3), (4, 3.0, 1900e3), (8, 2.4, 3900e3)]
        .into_iter()
        .map(|(degree, base, kv)| {
            let batches = [1u32, 8, 32, 64, 128, 256];
            let steps: Vec<f64> =
                batches.iter().map(|&batch| 1e-3 * (base + 0.03 * f64::from(batch) / f64::from(degree))).collect();
            let fields = serde_json::json!({
                "batches": batches, "step_seconds": steps, "seconds_per_context_token": 5e-8 / f64::from(degree),
                "prefill_tokens_per_second": 40_000.0 * f64::from(degree), "kv_tokens": kv, "slots": 256,
            });
            (degree.to_string(), fields)
        })
        .collect();
    Profile::parse(&serde_json::json!({ "degrees": degrees }).to_string()).expect("valid")
}

fn request(lengths: &[f64], solver: SolverKind, cost: CostKind) -> Request<'_> {
    Request {
        lengths,
        sigmas: &[],
        gpus: 64,
        degrees: &[1, 2, 4, 8],
        workers: &[],
        solver,
        cost,
        workload: Workload {
            context_tokens: 2000.0,
            tool_seconds_per_output: 0.002,
            ..Workload::default()
        },
        aggregate_below: 0.0,
        seed: 0,
        cooling: Cooling::default(),
    }
}

fn plans(criterion: &mut Criterion) {
    let profile = profile();
    let small = lengths(6400);
    let large = lengths(640_000);
    let sixteen = [4u32; 16];
    let mixed = [8u32, 8, 8, 8, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1];
    let sigmas: Vec<f64> = small.iter().map(|length| 0.4 * length).collect();
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    let mut bench = |name: &str, request: Request<'_>| {
        group.bench_function(name, |bencher| {
            bencher.iter(|| solve(black_box(&request), black_box(&profile)).expect("a plan"));
        });
    };
    let dp = request(&small, SolverKind::Dp, CostKind::SizeOnly);
    bench(
        "dp, 6400 on 16 workers",
        Request {
            workers: &sixteen,
            ..dp.clone()
        },
    );
    bench(
        "dp, 6400 on 16 workers, short ones aggregated",
        Request {
            workers: &sixteen,
            aggregate_below: 2000.0,
            ..dp.clone()
        },
    );
    bench("dp, 6400 on 64 GPUs, best homogeneous degree", dp);
    let exact = request(&small, SolverKind::Exact, CostKind::SizeOnly);
    bench("exact, 6400 on 64 GPUs", exact.clone());
    bench(
        "exact, 6400 on 18 mixed workers",
        Request {
            workers: &mixed,
            ..exact
        },
    );
    bench(
        "exact, 640000 on 64 GPUs",
        request(&large, SolverKind::Exact, CostKind::SizeOnly),
    );
    bench(
        "anneal, 6400 on 64 GPUs",
        request(&small, SolverKind::Anneal, CostKind::SizeOnly),
    );
    let simulated = request(&small, SolverKind::Exact, CostKind::Simulated);
    bench("exact, simulated cost, 6400 on 64 GPUs", simulated.clone());
    bench(
        "exact, simulated cost, uncertain, 6400 on 64 GPUs",
        Request {
            sigmas: &sigmas,
            ..simulated.clone()
        },
    );
    bench(
        "dp, simulated cost, 6400 on 16 workers",
        Request {
            workers: &sixteen,
            solver: SolverKind::Dp,
            ..simulated
        },
    );
    group.finish();
}

criterion_group!(benches, plans);
criterion_main!(benches);
