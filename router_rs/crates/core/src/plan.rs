//! A planner's partition: how many consecutive ranks each worker takes.
//!
//! Source: paper section 5.3. The partition was made for `planned` trajectories; while `active` of them are left, each
//! size counts for size x active / planned.

use serde::{Deserialize, Serialize};

use crate::WorkerId;
use crate::event::EventError;

/// One worker's share of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The worker.
    pub worker: WorkerId,
    /// Trajectories it takes.
    pub size: u64,
}

/// A plan as it is handed in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// Grows from plan to plan; an older one is refused.
    pub version: u64,
    /// Shares by rank, the longest trajectories first.
    pub partition: Vec<Share>,
    /// How long the plan is valid, in milliseconds; absent for until the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl PlanSpec {
    /// Parses a plan; the message names the field.
    pub fn from_json(json: &str) -> Result<Self, EventError> {
        serde_json::from_str(json).map_err(|e| EventError::BadField {
            field: "plan_json",
            why: e.to_string(),
        })
    }
}

/// A plan in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Its version.
    pub version: u64,
    /// Workers by rank, with the sum of the sizes up to and including each.
    upto: Vec<(WorkerId, u64)>,
    planned: u64,
}

impl Plan {
    /// Checks and takes in a plan.
    pub fn new(spec: &PlanSpec) -> Result<Self, EventError> {
        let bad = |why: &str| EventError::BadField {
            field: "partition",
            why: why.to_owned(),
        };
        let mut planned = 0u64;
        let mut upto: Vec<(WorkerId, u64)> = Vec::with_capacity(spec.partition.len());
        for share in &spec.partition {
            if upto.iter().any(|&(worker, _)| worker == share.worker) {
                return Err(bad(&format!("worker {} has two shares", share.worker)));
            }
            planned = planned
                .checked_add(share.size)
                .ok_or_else(|| bad("sizes overflow"))?;
            upto.push((share.worker, planned));
        }
        if planned == 0 || planned > u64::from(u32::MAX) {
            return Err(bad("sizes must add up to at least 1 and fit 32 bits"));
        }
        Ok(Self {
            version: spec.version,
            upto,
            planned,
        })
    }

    /// Index into [`Plan::workers`] of the share that `rank` falls into while `active` trajectories are left.
    pub fn share_of(&self, rank: usize, active: usize) -> usize {
        // rank < upto * active / planned, without division: sizes scale together, so no worker's share is rounded away
        // before the ranks are there to show it.
        let rank = rank as u64;
        let active = active.max(1) as u64;
        self.upto
            .partition_point(|&(_, upto)| upto * active <= rank * self.planned)
            .min(self.upto.len().saturating_sub(1))
    }

    /// Workers by rank.
    pub fn workers(&self) -> impl DoubleEndedIterator<Item = WorkerId> + ExactSizeIterator + '_ {
        self.upto.iter().map(|&(worker, _)| worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(sizes: &[u64]) -> Plan {
        let partition = sizes
            .iter()
            .enumerate()
            .map(|(i, &size)| Share {
                worker: i as u64,
                size,
            })
            .collect();
        Plan::new(&PlanSpec {
            version: 1,
            partition,
            ttl_ms: None,
        })
        .unwrap()
    }

    #[test]
    fn ranks_fall_into_shares_by_size() {
        let plan = plan(&[1, 3, 0, 4]);
        let got: Vec<usize> = (0..8).map(|rank| plan.share_of(rank, 8)).collect();
        assert_eq!(got, [0, 1, 1, 1, 3, 3, 3, 3]);
    }

    #[test]
    fn shares_scale_with_the_number_left() {
        let plan = plan(&[2, 6, 8]);
        let got: Vec<usize> = (0..8).map(|rank| plan.share_of(rank, 8)).collect();
        assert_eq!(got, [0, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(
            plan.share_of(0, 1),
            0,
            "the last one left goes to the first worker"
        );
        assert_eq!(plan.share_of(40, 8), 2);
    }

    #[test]
    fn plans_that_cannot_be_are_refused() {
        let twice = PlanSpec {
            version: 1,
            partition: vec![Share { worker: 1, size: 1 }, Share { worker: 1, size: 2 }],
            ttl_ms: None,
        };
        assert!(
            Plan::new(&twice)
                .unwrap_err()
                .to_string()
                .starts_with("partition")
        );
        let empty = PlanSpec {
            version: 1,
            partition: vec![],
            ttl_ms: None,
        };
        assert!(Plan::new(&empty).is_err());
        assert!(
            PlanSpec::from_json(r#"{"version": 1}"#)
                .unwrap_err()
                .to_string()
                .contains("partition")
        );
    }
}
