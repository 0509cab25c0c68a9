//! The solvers against the definition of the problem, on thousands of random small instances, and
//! against an O(n²) program on larger ones.

mod solver_brute;

use heddle_core::solver::{
    Cooling, CostKind, Plan, Profile, Request, SolveError, SolverKind, Workload, solve,
};
use solver_brute::{Workers, best_costs};

/// xorshift64*: the instances are the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn unit(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 53) as f64
    }
}

/// To a multiple of 2^-10: such a number survives JSON bit by bit.
fn short(value: f64) -> f64 {
    (value * 1024.0).round().max(1.0) / 1024.0
}

/// One random problem under the size-only cost.
struct Instance {
    lengths: Vec<f64>,
    gpus: u32,
    /// Highest first.
    degrees: Vec<u32>,
    t: Vec<f64>,
    f: Vec<Vec<f64>>,
}

impl Instance {
    /// `strict`: lengths differ and F rises strictly, so that the lexicographic optimum is unique.
    /// Otherwise ties and flat stretches of F are common, and a higher degree need not be faster.
    fn random(random: &mut Random, most: u64, strict: bool) -> Self {
        let n = 1 + random.below(most) as usize;
        let whole_numbers = !strict && random.below(2) == 0;
        let lengths = (0..n)
            .map(|_| {
                if whole_numbers {
                    (1 + random.below(6)) as f64
                } else {
                    1.0 + 1000.0 * random.unit().powi(3)
                }
            })
            .collect();
        let mut degrees: Vec<u32> = [8, 4, 3, 2, 1]
            .into_iter()
            .filter(|_| random.below(2) == 0)
            .collect();
        if degrees.is_empty() {
            degrees.push(1);
        }
        let smallest = degrees[degrees.len() - 1];
        let gpus = smallest + random.below(8) as u32;
        degrees.retain(|&degree| degree <= gpus);
        let t = degrees
            .iter()
            .map(|&degree| {
                short(if random.below(3) == 0 {
                    0.01 + random.unit()
                } else {
                    1.0 / f64::from(degree).sqrt()
                })
            })
            .collect();
        let f = degrees
            .iter()
            .map(|_| {
                let entries = if strict {
                    n
                } else {
                    1 + random.below(n as u64) as usize
                };
                let mut factor = 1.0;
                (0..entries)
                    .map(|_| {
                        let now = factor;
                        if strict || random.below(3) > 0 {
                            factor += short(0.01 + random.unit().powi(2));
                        }
                        now
                    })
                    .collect()
            })
            .collect();
        Self {
            lengths,
            gpus,
            degrees,
            t,
            f,
        }
    }

    fn profile(&self) -> Profile {
        let degrees: serde_json::Map<String, serde_json::Value> = self
            .degrees
            .iter()
            .zip(self.t.iter().zip(&self.f))
            .map(|(degree, (t, f))| (degree.to_string(), serde_json::json!({"T": t, "F": f})))
            .collect();
        Profile::parse(&serde_json::json!({ "degrees": degrees }).to_string())
            .expect("the profile is valid")
    }

    fn request(&self, solver: SolverKind) -> Request<'_> {
        Request {
            lengths: &self.lengths,
            sigmas: &[],
            gpus: self.gpus,
            degrees: &self.degrees,
            workers: &[],
            solver,
            cost: CostKind::SizeOnly,
            workload: Workload::default(),
            aggregate_below: 0.0,
            seed: 7,
            cooling: Cooling::default(),
        }
    }

    /// The paper's cost, written out.
    fn cost(&self, longest: f64, size: usize, shape: usize) -> f64 {
        let factors = &self.f[shape];
        longest * (self.t[shape] * factors[size.min(factors.len()) - 1])
    }

    fn group_costs(&self) -> Vec<Vec<f64>> {
        (0..1usize << self.lengths.len())
            .map(|group| {
                let members = (0..self.lengths.len()).filter(|member| group & (1 << member) != 0);
                let longest = members
                    .map(|member| self.lengths[member])
                    .fold(0.0, f64::max);
                let size = group.count_ones() as usize;
                (0..self.degrees.len())
                    .map(|shape| {
                        if size == 0 {
                            0.0
                        } else {
                            self.cost(longest, size, shape)
                        }
                    })
                    .collect()
            })
            .collect()
    }

    /// A random multiset of the degrees that fits into the GPUs, at least one worker.
    fn some_workers(&self, random: &mut Random) -> Vec<u32> {
        let mut left = self.gpus;
        let mut workers = Vec::new();
        loop {
            let fitting: Vec<u32> = self
                .degrees
                .iter()
                .copied()
                .filter(|&degree| degree <= left)
                .collect();
            if fitting.is_empty() || (!workers.is_empty() && random.below(5) == 0) {
                return workers;
            }
            let degree = fitting[random.below(fitting.len() as u64) as usize];
            left -= degree;
            workers.push(degree);
        }
    }
}

/// What holds of every plan: each trajectory once, costs as defined, consecutive ranks, GPUs within
/// the limit.
fn check(instance: &Instance, plan: &Plan, at: &str) {
    let mut seen = vec![false; instance.lengths.len()];
    let mut last = f64::INFINITY;
    for worker in plan
        .workers
        .iter()
        .filter(|worker| !worker.members.is_empty())
    {
        let shape = instance
            .degrees
            .iter()
            .position(|&degree| degree == worker.degree)
            .expect("an allowed degree");
        let longest = instance.lengths[worker.members[0] as usize];
        assert_eq!(
            worker.cost.to_bits(),
            instance
                .cost(longest, worker.members.len(), shape)
                .to_bits(),
            "{at}: cost"
        );
        for &member in &worker.members {
            assert!(
                !std::mem::replace(&mut seen[member as usize], true),
                "{at}: {member} is placed twice"
            );
            assert!(
                instance.lengths[member as usize] <= last,
                "{at}: ranks are not consecutive"
            );
            last = instance.lengths[member as usize];
        }
    }
    assert!(
        seen.iter().all(|&seen| seen),
        "{at}: a trajectory is left out"
    );
    assert_eq!(
        plan.gpus_used,
        plan.workers.iter().map(|worker| worker.degree).sum::<u32>()
    );
    assert!(plan.gpus_used <= instance.gpus, "{at}: too many GPUs");
    let most = plan
        .workers
        .iter()
        .map(|worker| worker.cost)
        .fold(0.0, f64::max);
    assert_eq!(plan.makespan.to_bits(), most.to_bits());
}

fn sorted_costs(plan: &Plan) -> Vec<f64> {
    let mut costs: Vec<f64> = plan
        .workers
        .iter()
        .map(|worker| worker.cost)
        .filter(|&cost| cost > 0.0)
        .collect();
    costs.sort_by(|a, b| b.total_cmp(a));
    costs
}

#[test]
fn the_joint_allocation_equals_brute_force_over_all_set_partitions_and_worker_multisets() {
    let mut random = Random(1);
    for trial in 0..3000 {
        let instance = Instance::random(&mut random, 7, false);
        let plan = solve(&instance.request(SolverKind::Exact), &instance.profile())
            .expect("there is a plan");
        check(&instance, &plan, &format!("trial {trial}"));
        let brute = best_costs(
            instance.lengths.len(),
            &instance.degrees,
            &instance.group_costs(),
            &Workers::Gpus(instance.gpus),
        )
        .expect("there is a plan");
        assert_eq!(
            plan.makespan.to_bits(),
            brute[0].to_bits(),
            "trial {trial}: {} against {}",
            plan.makespan,
            brute[0]
        );
    }
}

#[test]
fn the_placement_on_fixed_workers_equals_brute_force_over_all_set_partitions() {
    let mut random = Random(2);
    for trial in 0..3000 {
        let instance = Instance::random(&mut random, 7, false);
        let workers = instance.some_workers(&mut random);
        let request = Request {
            workers: &workers,
            ..instance.request(SolverKind::Exact)
        };
        let plan = solve(&request, &instance.profile()).expect("there is a plan");
        check(&instance, &plan, &format!("trial {trial}"));
        let mut degrees: Vec<u32> = plan.workers.iter().map(|worker| worker.degree).collect();
        let mut asked = workers.clone();
        degrees.sort_unstable();
        asked.sort_unstable();
        assert_eq!(
            degrees, asked,
            "trial {trial}: the plan has exactly the workers asked for"
        );
        let counts: Vec<usize> = instance
            .degrees
            .iter()
            .map(|degree| workers.iter().filter(|worker| *worker == degree).count())
            .collect();
        let brute = best_costs(
            instance.lengths.len(),
            &instance.degrees,
            &instance.group_costs(),
            &Workers::Counts(&counts),
        )
        .expect("there is a plan");
        assert_eq!(plan.makespan.to_bits(), brute[0].to_bits(), "trial {trial}");
    }
}

#[test]
fn what_remains_after_the_bottleneck_is_the_lexicographic_optimum() {
    let mut random = Random(3);
    for trial in 0..2000 {
        let instance = Instance::random(&mut random, 6, true);
        let plan = solve(&instance.request(SolverKind::Exact), &instance.profile())
            .expect("there is a plan");
        check(&instance, &plan, &format!("trial {trial}"));
        let brute = best_costs(
            instance.lengths.len(),
            &instance.degrees,
            &instance.group_costs(),
            &Workers::Gpus(instance.gpus),
        );
        assert_eq!(Some(sorted_costs(&plan)), brute, "trial {trial}");
    }
}

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

#[test]
fn a_lone_long_trajectory_gets_the_fastest_worker_and_the_others_share_the_rest() {
    let profile = Profile::parse(
        r#"{"degrees": {"1": {"T": 0.010, "F": [1.0, 1.1, 1.2, 1.3]}, "4": {"T": 0.004, "F": [1.0, 1.1, 1.2, 1.3]}}}"#,
    )
    .expect("valid");
    let lengths = [100.0, 5000.0, 100.0, 100.0, 100.0];
    let request = Request {
        lengths: &lengths,
        sigmas: &[],
        gpus: 8,
        degrees: &[1, 4],
        workers: &[],
        solver: SolverKind::Exact,
        cost: CostKind::SizeOnly,
        workload: Workload::default(),
        aggregate_below: 0.0,
        seed: 0,
        cooling: Cooling::default(),
    };
    let plan = solve(&request, &profile).expect("a plan");
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
    let base = Request {
        lengths: &[1.0],
        sigmas: &[],
        gpus: 4,
        degrees: &[2],
        workers: &[],
        solver: SolverKind::Exact,
        cost: CostKind::SizeOnly,
        workload: Workload::default(),
        aggregate_below: 0.0,
        seed: 0,
        cooling: Cooling::default(),
    };
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
