//! Transfers of KV over links, with contention.
//!
//! A transfer takes its setup time, then its tokens at the lowest of: the sender's rate, the receiver's rate, and its
//! equal share of the network of either host (out of the one, into the other), where they are two hosts. Rates change
//! only when a transfer begins or ends, so between two such moments progress is a straight line.

use heddle_core::MigrationId;
use serde::{Deserialize, Serialize};

/// How workers of one degree move KV.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// KV tokens a second that it can send or receive.
    pub tokens_per_s: f64,
    /// Seconds that a transfer takes whatever it moves.
    #[serde(default)]
    pub setup_s: f64,
}

/// One end of a transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End {
    /// Index of the worker.
    pub worker: usize,
    /// Its host.
    pub host: usize,
    /// Its link.
    pub link: Link,
}

#[derive(Debug, Clone, Copy)]
struct Transfer {
    id: MigrationId,
    from: End,
    to: End,
    setup_left_s: f64,
    tokens_left: f64,
}

/// All transfers under way. Times are seconds and never go back.
#[derive(Debug)]
pub struct Network {
    /// KV tokens a second out of a host, and as many into it.
    host_tokens_per_s: f64,
    transfers: Vec<Transfer>,
    now: f64,
}

impl Network {
    /// An idle network; `host_tokens_per_s` is infinite where hosts are no bound.
    pub fn new(host_tokens_per_s: f64) -> Self {
        Self {
            host_tokens_per_s,
            transfers: Vec::new(),
            now: 0.0,
        }
    }

    /// Seconds that a transfer would take if it began now and nothing changed.
    pub fn expected_s(&self, from: End, to: End, tokens: u64) -> f64 {
        let setup = from.link.setup_s.max(to.link.setup_s);
        setup + tokens as f64 / self.rate(from, to, 1)
    }

    /// Begins a transfer.
    pub fn begin(&mut self, now: f64, id: MigrationId, from: End, to: End, tokens: u64) {
        self.advance(now);
        self.transfers.push(Transfer {
            id,
            from,
            to,
            setup_left_s: from.link.setup_s.max(to.link.setup_s),
            tokens_left: tokens as f64,
        });
    }

    /// Stops a transfer.
    pub fn stop(&mut self, now: f64, id: MigrationId) {
        self.advance(now);
        self.transfers.retain(|transfer| transfer.id != id);
    }

    /// When the next transfer is complete if nothing else happens, and which.
    pub fn next_end(&self) -> Option<(f64, MigrationId)> {
        let ends = self.transfers.iter().map(|transfer| {
            let rate = self.rate(transfer.from, transfer.to, 0);
            let left = transfer.setup_left_s + transfer.tokens_left / rate;
            (self.now + left, transfer.id)
        });
        ends.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
    }

    /// Tokens a second between two ends while `more` transfers than now share their hosts.
    fn rate(&self, from: End, to: End, more: usize) -> f64 {
        let own = from.link.tokens_per_s.min(to.link.tokens_per_s);
        if from.host == to.host {
            return own;
        }
        let crossing = |side: &dyn Fn(&Transfer) -> bool| {
            let others = self.transfers.iter();
            more + others
                .filter(|t| t.from.host != t.to.host && side(t))
                .count()
        };
        let busiest = crossing(&|t| t.from.host == from.host)
            .max(crossing(&|t| t.to.host == to.host))
            .max(1);
        own.min(self.host_tokens_per_s / busiest as f64)
    }

    fn advance(&mut self, now: f64) {
        let elapsed = (now - self.now).max(0.0);
        let rates: Vec<f64> = self
            .transfers
            .iter()
            .map(|transfer| self.rate(transfer.from, transfer.to, 0))
            .collect();
        for (transfer, rate) in self.transfers.iter_mut().zip(rates) {
            let setup = transfer.setup_left_s.min(elapsed);
            transfer.setup_left_s -= setup;
            transfer.tokens_left = (transfer.tokens_left - rate * (elapsed - setup)).max(0.0);
        }
        self.now = self.now.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(worker: usize, host: usize, tokens_per_s: f64) -> End {
        let link = Link {
            tokens_per_s,
            setup_s: 0.5,
        };
        End { worker, host, link }
    }

    #[test]
    fn a_transfer_alone_takes_its_setup_and_the_slower_ends_rate() {
        let mut network = Network::new(f64::INFINITY);
        network.begin(1.0, 7, end(0, 0, 1000.0), end(1, 1, 250.0), 500);
        assert_eq!(network.next_end(), Some((1.0 + 0.5 + 2.0, 7)));
        network.advance(2.0);
        assert_eq!(network.next_end(), Some((3.5, 7)));
    }

    #[test]
    fn two_out_of_one_host_share_its_network_and_the_rest_is_the_first_ones() {
        let mut network = Network::new(100.0);
        network.begin(0.0, 1, end(0, 0, 1000.0), end(2, 1, 1000.0), 100);
        network.begin(0.0, 2, end(1, 0, 1000.0), end(3, 2, 1000.0), 200);
        // Setup to 0.5, then 50 a second each: the first is through at 2.5, and 100 are left of the second.
        assert_eq!(network.next_end(), Some((2.5, 1)));
        network.stop(2.5, 1);
        assert_eq!(network.next_end(), Some((3.5, 2)));
    }

    #[test]
    fn transfers_within_a_host_do_not_use_its_network() {
        let mut network = Network::new(1.0);
        network.begin(0.0, 1, end(0, 4, 100.0), end(1, 4, 100.0), 50);
        assert_eq!(network.next_end(), Some((1.0, 1)));
        assert!((network.expected_s(end(2, 4, 10.0), end(3, 5, 10.0), 5) - 5.5).abs() < 1e-12);
    }
}
