//! The exact solver against the definition of the problem, on thousands of random small instances.

mod solver_instances;

use heddle_core::solver::{Request, SolverKind, solve};
use solver_instances::brute::{Workers, best_costs};
use solver_instances::{Instance, Random, check, sorted_costs};

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
