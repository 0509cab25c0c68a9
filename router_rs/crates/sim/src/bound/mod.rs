//! A makespan that no schedule on so many GPUs beats, whatever the degrees of its workers.
//!
//! Two things take their time in any schedule: the trajectory that is longest when it runs [`alone`], its tools included;
//! and all [`work`], at the best throughput that a GPU can have. And they are in each other's way: what makes the longest
//! quick makes the others dear ([`joint`]). The last is *the* bound, the other two say where it comes from.
//!
//! Degrees that no cut of the GPUs has together are not combined: with eight GPUs, a worker of eight is the only one.
//!
//! What a schedule is: engines as in [`crate::engine`], every answer decoded to its end by decode steps but for the first
//! token, with hindsight of everything. Who is preempted or retracted gets one more token of the prefill that makes up for it;
//! where that prefill takes less than the decode step it saves (it has no fixed time, or contexts are dear to read), the bound
//! may be above such a schedule, by no more than those steps. Trajectories that no worker can hold are not thought of.

mod alone;
mod demand;
mod joint;
mod search;
mod work;

use std::collections::BTreeMap;

use crate::costs::Costs;
use crate::spec::Truth;
use crate::workload::Workload;

pub use alone::{alone_s, decode_alone_s};
use demand::Demand;

/// Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// The longest trajectory alone, each of its steps on the fastest worker.
    pub longest_alone_s: f64,
    /// All work over the throughput of all GPUs.
    pub work_s: f64,
    /// Both at once; at least the later of the two.
    pub joint_s: f64,
}

impl Bound {
    /// The highest of all.
    pub fn seconds(&self) -> f64 {
        self.joint_s
    }
}

/// A degree that a worker may have, at the speed of this run.
#[derive(Debug, Clone)]
struct Degree {
    gpus: f64,
    costs: Costs,
    slots: u32,
    kv_tokens: f64,
}

/// The bound for `gpus` GPUs that may be cut into workers of any degree in `truth`, with times multiplied by `slowdown`.
pub fn lower_bound(
    workload: &Workload,
    truth: &BTreeMap<u32, Truth>,
    gpus: u32,
    slowdown: f64,
) -> Bound {
    let known: Vec<u32> = truth.keys().copied().collect();
    let demand = Demand::of(workload);
    let mut least: Option<Bound> = None;
    for together in cuts(&known, gpus) {
        let degrees: Vec<Degree> = together
            .iter()
            .map(|degree| {
                let truth = &truth[degree];
                Degree {
                    gpus: f64::from(*degree),
                    costs: truth.costs.slowed(slowdown),
                    slots: truth.slots,
                    kv_tokens: truth.kv_tokens as f64,
                }
            })
            .collect();
        let longest_alone_s = alone::longest_s(workload, &degrees);
        let of_all = f64::from(gpus);
        let (work, price) = work::gpu_s(workload, &degrees);
        let work_s = work / of_all;
        let joint_s = joint::seconds(&demand, &degrees, of_all, price);
        let bound = Bound {
            longest_alone_s,
            work_s,
            joint_s: joint_s.max(longest_alone_s).max(work_s),
        };
        least = Some(match least {
            None => bound,
            Some(other) => Bound {
                longest_alone_s: bound.longest_alone_s.min(other.longest_alone_s),
                work_s: bound.work_s.min(other.work_s),
                joint_s: bound.joint_s.min(other.joint_s),
            },
        });
    }
    least.unwrap_or(Bound {
        longest_alone_s: f64::INFINITY,
        work_s: f64::INFINITY,
        joint_s: f64::INFINITY,
    })
}

/// Sets of degrees that one cut of the GPUs can have, and that are part of no larger such set.
fn cuts(degrees: &[u32], gpus: u32) -> Vec<Vec<u32>> {
    let mut found: Vec<Vec<u32>> = vec![Vec::new()];
    for &degree in degrees {
        let with: Vec<Vec<u32>> = found
            .iter()
            .filter(|set| set.iter().sum::<u32>() + degree <= gpus)
            .map(|set| set.iter().copied().chain([degree]).collect())
            .collect();
        found.extend(with);
    }
    let within = |one: &Vec<u32>, other: &Vec<u32>| {
        one.len() < other.len() && one.iter().all(|degree| other.contains(degree))
    };
    let largest = found
        .iter()
        .filter(|one| !one.is_empty() && !found.iter().any(|other| within(one, other)));
    largest.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::cuts;

    #[test]
    fn degrees_are_combined_where_the_gpus_can_be_cut_so() {
        assert_eq!(cuts(&[1, 2, 4, 8], 64), [vec![1, 2, 4, 8]]);
        assert_eq!(cuts(&[1, 2, 4, 8], 8), [vec![1, 2, 4], vec![8]]);
        assert_eq!(cuts(&[2, 4], 3), [vec![2]]);
        assert!(cuts(&[4], 3).is_empty());
    }
}
