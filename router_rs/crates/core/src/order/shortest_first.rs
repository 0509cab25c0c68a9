//! Program-level least attained service, as in Autellix (arXiv 2502.13965, PLAS): the trajectory that has been served
//! the fewest tokens is next. Service is quantised into queues whose bounds double, first come first served within one.

use super::{Candidate, Order};

/// Tokens of the first queue.
const FIRST_QUEUE: u64 = 512;
/// Number of queues.
const QUEUES: u8 = 16;

pub(super) struct ShortestFirst;

fn queue(attained: u64) -> u8 {
    (64 - (attained / FIRST_QUEUE).leading_zeros()).min(u32::from(QUEUES - 1)) as u8
}

impl Order for ShortestFirst {
    fn measure(&self, candidate: &Candidate) -> u64 {
        u64::from(queue(candidate.attained))
    }

    fn level(&self, candidate: &Candidate, levels: u8) -> u8 {
        let from_top = u32::from(queue(candidate.attained)) * u32::from(levels) / u32::from(QUEUES);
        levels - 1 - from_top as u8
    }

    fn may_starve(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_double() {
        let got: Vec<u8> = [0, 511, 512, 1023, 1024, 2048, u64::MAX]
            .into_iter()
            .map(queue)
            .collect();
        assert_eq!(got, [0, 0, 1, 1, 2, 3, 15]);
    }
}
