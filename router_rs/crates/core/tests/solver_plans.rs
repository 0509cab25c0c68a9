//! The solvers against each other and against plain programs, on instances beyond brute force.

mod solver_instances;

use heddle_core::solver::{Cooling, Request, SolverKind, solve};
use solver_instances::{Instance, Random, check};

#[test]
fn a_fixed_worker_stays_empty_only_if_the_shortest_trajectory_alone_would_raise_the_makespan() {
    let mut random = Random(4);
    let mut empty = 0;
    for trial in 0..3000 {
        let instance = Instance::random(&mut random, 12, false);
        let workers = instance.some_workers(&mut random);
        for solver in [SolverKind::Exact, SolverKind::Dp, SolverKind::Anneal] {
            let request = Request {
                workers: &workers,
                ..instance.request(solver)
            };
            let plan = solve(&request, &instance.profile()).expect("there is a plan");
            check(&instance, &plan, &format!("trial {trial}"));
            if instance.lengths.len() < workers.len() {
                continue;
            }
            let can_give = plan.workers.iter().any(|worker| worker.members.len() > 1);
            for worker in plan
                .workers
                .iter()
                .filter(|worker| worker.members.is_empty())
            {
                empty += 1;
                let shape = instance
                    .degrees
                    .iter()
                    .position(|&degree| degree == worker.degree)
                    .expect("allowed");
                let spare = plan
                    .workers
                    .iter()
                    .filter(|worker| worker.members.len() > 1)
                    .map(|worker| {
                        instance.lengths[worker.members[worker.members.len() - 1] as usize]
                    });
                let shortest = spare.fold(f64::INFINITY, f64::min);
                assert!(
                    can_give && instance.cost(shortest, 1, shape) > plan.makespan,
                    "trial {trial}: {solver:?}"
                );
            }
        }
    }
    assert!(empty > 0, "the case never came up");
}

/// dp[j][i] by trying every k: the paper's recurrence as it stands.
fn plain_dp(instance: &Instance, order: &[usize]) -> f64 {
    let mut lengths = instance.lengths.clone();
    lengths.sort_by(|a, b| b.total_cmp(a));
    let n = lengths.len();
    let mut row = vec![f64::INFINITY; n + 1];
    row[0] = 0.0;
    for &shape in order {
        row = (0..=n)
            .map(|i| {
                (0..=i)
                    .map(|k| {
                        let group = if k == i {
                            0.0
                        } else {
                            instance.cost(lengths[k], i - k, shape)
                        };
                        row[k].max(group)
                    })
                    .fold(f64::INFINITY, f64::min)
            })
            .collect();
    }
    row[n]
}

#[test]
fn the_presorted_dp_equals_its_recurrence_on_fixed_workers() {
    let mut random = Random(5);
    let mut in_order = 0;
    for trial in 0..2000 {
        let instance = Instance::random(&mut random, 40, false);
        let workers = instance.some_workers(&mut random);
        let mut order: Vec<usize> = workers
            .iter()
            .map(|worker| {
                instance
                    .degrees
                    .iter()
                    .position(|degree| degree == worker)
                    .expect("allowed")
            })
            .collect();
        order.sort_unstable();
        let recurrence = plain_dp(&instance, &order);
        for solver in [SolverKind::Dp, SolverKind::Anneal] {
            let request = Request {
                workers: &workers,
                ..instance.request(solver)
            };
            let plan = solve(&request, &instance.profile()).expect("there is a plan");
            check(&instance, &plan, &format!("trial {trial}"));
            // A worker that the order leaves idle is put to use out of order, which may only help.
            assert!(plan.makespan <= recurrence, "trial {trial}: {solver:?}");
            let used = plan
                .workers
                .iter()
                .filter(|worker| !worker.members.is_empty());
            if used.map(|worker| worker.degree).is_sorted_by(|a, b| a >= b) {
                in_order += 1;
                assert_eq!(
                    plan.makespan.to_bits(),
                    recurrence.to_bits(),
                    "trial {trial}: {solver:?}"
                );
            }
        }
    }
    assert!(in_order > 3000, "only {in_order} plans were in order");
}

#[test]
fn the_dp_without_fixed_workers_takes_the_best_homogeneous_degree() {
    let mut random = Random(6);
    for trial in 0..500 {
        let instance = Instance::random(&mut random, 30, false);
        let plan =
            solve(&instance.request(SolverKind::Dp), &instance.profile()).expect("there is a plan");
        check(&instance, &plan, &format!("trial {trial}"));
        let best = (0..instance.degrees.len())
            .map(|shape| {
                plain_dp(
                    &instance,
                    &vec![shape; (instance.gpus / instance.degrees[shape]) as usize],
                )
            })
            .fold(f64::INFINITY, f64::min);
        assert_eq!(plan.makespan.to_bits(), best.to_bits(), "trial {trial}");
        assert!(
            plan.workers
                .windows(2)
                .all(|pair| pair[0].degree == pair[1].degree)
        );
    }
}

/// The joint optimum over consecutive groups by trying every cut: O(gpus x degrees x n²), no use of
/// monotony.
fn plain_joint(instance: &Instance) -> f64 {
    let mut lengths = instance.lengths.clone();
    lengths.sort_by(|a, b| b.total_cmp(a));
    let n = lengths.len();
    let mut best = vec![vec![f64::INFINITY; n + 1]; instance.gpus as usize + 1];
    best[0][0] = 0.0;
    for gpus in 1..best.len() {
        best[gpus][0] = 0.0;
        for i in 1..=n {
            let mut least = best[gpus - 1][i];
            for (shape, &degree) in instance
                .degrees
                .iter()
                .enumerate()
                .filter(|(_, degree)| **degree as usize <= gpus)
            {
                for k in 0..i {
                    least = least.min(best[gpus - degree as usize][k].max(instance.cost(
                        lengths[k],
                        i - k,
                        shape,
                    )));
                }
            }
            best[gpus][i] = least;
        }
    }
    best[instance.gpus as usize][n]
}

#[test]
fn the_joint_allocation_equals_a_plain_program_on_larger_instances() {
    let mut random = Random(8);
    for trial in 0..60 {
        let mut instance = Instance::random(&mut random, 120, false);
        instance.gpus += random.below(30) as u32;
        let plan = solve(&instance.request(SolverKind::Exact), &instance.profile())
            .expect("there is a plan");
        check(&instance, &plan, &format!("trial {trial}"));
        assert_eq!(
            plan.makespan.to_bits(),
            plain_joint(&instance).to_bits(),
            "trial {trial}"
        );
    }
}

#[test]
fn no_other_solver_beats_the_exact_one() {
    let mut random = Random(9);
    for trial in 0..150 {
        let mut instance = Instance::random(&mut random, 300, false);
        instance.gpus += random.below(40) as u32;
        let exact = solve(&instance.request(SolverKind::Exact), &instance.profile())
            .expect("there is a plan");
        for solver in [SolverKind::Dp, SolverKind::Anneal] {
            let cooling = Cooling {
                factor: 0.8,
                ..Cooling::default()
            };
            let plan = solve(
                &Request {
                    cooling,
                    ..instance.request(solver)
                },
                &instance.profile(),
            )
            .expect("a plan");
            check(&instance, &plan, &format!("trial {trial}"));
            assert!(exact.makespan <= plan.makespan, "trial {trial}: {solver:?}");
        }
    }
}

#[test]
fn a_plan_is_a_function_of_its_request() {
    let mut random = Random(10);
    for _ in 0..20 {
        let instance = Instance::random(&mut random, 100, false);
        for solver in [SolverKind::Exact, SolverKind::Dp, SolverKind::Anneal] {
            let once = solve(&instance.request(solver), &instance.profile());
            let again = solve(&instance.request(solver), &instance.profile());
            assert_eq!(once, again);
        }
    }
}

#[test]
fn aggregating_short_trajectories_restricts_the_dp_and_never_helps_it() {
    let mut random = Random(11);
    let mut worse = 0;
    for trial in 0..300 {
        let instance = Instance::random(&mut random, 200, false);
        let free = solve(&instance.request(SolverKind::Dp), &instance.profile()).expect("a plan");
        let request = Request {
            aggregate_below: 200.0,
            ..instance.request(SolverKind::Dp)
        };
        let merged = solve(&request, &instance.profile()).expect("a plan");
        check(&instance, &merged, &format!("trial {trial}"));
        assert!(merged.makespan >= free.makespan, "trial {trial}");
        worse += u32::from(merged.makespan > free.makespan);
    }
    assert!(worse > 0, "the threshold never mattered");
}
