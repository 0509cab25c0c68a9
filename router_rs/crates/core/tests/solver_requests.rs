//! Single requests whose plans can be worked out by hand, and requests that are refused.

use heddle_core::solver::{
    Cooling, CostKind, Profile, Request, SolveError, SolverKind, Workload, solve,
};

/// The exact plan under the size-only cost.
fn request<'a>(lengths: &'a [f64], gpus: u32, degrees: &'a [u32]) -> Request<'a> {
    Request {
        lengths,
        sigmas: &[],
        gpus,
        degrees,
        workers: &[],
        solver: SolverKind::Exact,
        cost: CostKind::SizeOnly,
        workload: Workload::default(),
        aggregate_below: 0.0,
        seed: 0,
        cooling: Cooling::default(),
    }
}

fn sizes(request: &Request<'_>, profile: &Profile) -> Vec<usize> {
    let plan = solve(request, profile).expect("a plan");
    plan.workers
        .iter()
        .map(|worker| worker.members.len())
        .collect()
}

#[test]
fn a_lone_long_trajectory_gets_the_fastest_worker_and_the_others_share_the_rest() {
    let profile = Profile::parse(
        r#"{"degrees": {"1": {"T": 0.010, "F": [1.0, 1.1, 1.2, 1.3]}, "4": {"T": 0.004, "F": [1.0, 1.1, 1.2, 1.3]}}}"#,
    )
    .expect("valid");
    let lengths = [100.0, 5000.0, 100.0, 100.0, 100.0];
    let plan = solve(&request(&lengths, 8, &[1, 4]), &profile).expect("a plan");
    assert!((plan.makespan - 20.0).abs() < 1e-9);
    assert_eq!(plan.workers[0].members, [1]);
    assert_eq!(plan.workers[0].degree, 4);
    // The others: four together on degree 4 take 0.52 s, one each on four of degree 1 take 1.0 s.
    assert_eq!(plan.workers[1].degree, 4);
    assert!((plan.workers[1].cost - 0.52).abs() < 1e-9);
    assert_eq!(plan.gpus_used, 8);
}

#[test]
fn an_impossible_request_names_the_field() {
    let profile = Profile::parse(r#"{"degrees": {"2": {"T": 0.01, "F": [1.0]}}}"#).expect("valid");
    let base = request(&[1.0], 4, &[2]);
    let error = |request: Request<'_>| solve(&request, &profile).expect_err("refused").to_string();
    assert!(
        error(Request {
            lengths: &[],
            ..base.clone()
        })
        .starts_with("lengths: empty")
    );
    assert!(
        error(Request {
            lengths: &[1.0, f64::NAN],
            ..base.clone()
        })
        .starts_with("lengths[1]: NaN")
    );
    assert!(
        error(Request {
            sigmas: &[1.0, 2.0],
            ..base.clone()
        })
        .starts_with("sigmas: 2 values for 1")
    );
    assert!(
        error(Request {
            degrees: &[1],
            ..base.clone()
        })
        .contains("no MP degree 1; it has [2]")
    );
    assert!(
        error(Request {
            gpus: 1,
            ..base.clone()
        })
        .starts_with("gpus: 1 GPUs hold no worker")
    );
    assert!(
        error(Request {
            workers: &[2, 2, 2],
            ..base.clone()
        })
        .contains("sum to 6")
    );
    assert!(
        error(Request {
            cost: CostKind::Simulated,
            ..base.clone()
        })
        .contains("degrees.2: has only T and F")
    );
    let falls = Profile::parse(r#"{"degrees": {"2": {"T": 0.01, "F": [1.0, 1.2, 1.1]}}}"#);
    assert!(matches!(falls, Err(SolveError::Profile { field, .. }) if field == "degrees.2.F[2]"));
}

#[test]
fn the_bottleneck_keeps_only_the_company_that_the_others_bound_asks_for() {
    let profile =
        Profile::parse(r#"{"degrees": {"1": {"T": 1.0, "F": [1.0, 1.0, 1.0, 2.0, 3.0]}}}"#)
            .expect("valid");
    // Beside the long one two more would cost nothing, but the second worker takes three at its bound of 9.
    let lengths = [10.0, 9.0, 9.0, 9.0, 1.0];
    assert_eq!(sizes(&request(&lengths, 2, &[1]), &profile), [2, 3]);
}

#[test]
fn where_company_costs_nothing_idle_gpus_still_take_their_share() {
    let profile = Profile::parse(r#"{"degrees": {"4": {"T": 0.004, "F": [1.0]}}}"#).expect("valid");
    let lengths = [1000.0, 100.0, 100.0, 100.0];
    let plan = solve(&request(&lengths, 8, &[4]), &profile).expect("a plan");
    assert_eq!(plan.gpus_used, 8);
    assert_eq!(plan.workers[0].members, [0]);
    assert_eq!(plan.workers[1].members, [1, 2, 3]);
}

#[test]
fn more_gpus_than_trajectories_can_use_stay_free() {
    let profile = Profile::parse(
        r#"{"degrees": {"1": {"T": 0.01, "F": [1.0, 2.0]}, "2": {"T": 0.008, "F": [1.0, 2.0]}}}"#,
    );
    let plan = solve(
        &request(&[100.0, 100.0], 64, &[1, 2]),
        &profile.expect("valid"),
    )
    .expect("a plan");
    assert_eq!(plan.gpus_used, 4);
    assert!((plan.makespan - 0.8).abs() < 1e-12);
}

#[test]
fn workers_too_many_for_every_order_are_still_placed_no_worse_than_by_the_dp() {
    let degrees = [1u32, 2, 3, 4, 5, 6, 7, 8];
    let fields: serde_json::Map<String, serde_json::Value> = degrees
        .iter()
        .map(|degree| {
            (
                degree.to_string(),
                serde_json::json!({"T": 1.0 / f64::from(*degree), "F": [1.0, 1.5, 2.0]}),
            )
        })
        .collect();
    let profile =
        Profile::parse(&serde_json::json!({ "degrees": fields }).to_string()).expect("valid");
    let workers: Vec<u32> = degrees.iter().flat_map(|&degree| [degree; 6]).collect();
    let lengths: Vec<f64> = (1..=500).map(f64::from).collect();
    let makespan = |solver| {
        let request = Request {
            workers: &workers,
            solver,
            ..request(&lengths, 256, &[])
        };
        let plan = solve(&request, &profile).expect("a plan");
        assert_eq!(plan.workers.len(), workers.len());
        plan.makespan
    };
    assert!(makespan(SolverKind::Exact) <= makespan(SolverKind::Dp));
}
