//! One measurement as JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::load::Tally;

const NS_PER_US: f64 = 1000.0;

/// Figures of a measurement; times in microseconds, rates per second of the measured time.
pub fn summary(tally: &Tally, measured: Duration) -> Value {
    let seconds = measured.as_secs_f64();
    let requests = tally.latency.len();
    json!({
        "requests": requests,
        "errors": tally.errors.values().sum::<u64>(),
        "error_kinds": tally.errors,
        "reconnects": tally.reconnects,
        "seconds": seconds,
        "requests_per_s": requests as f64 / seconds,
        "latency_us": quantiles(&tally.latency),
        "first_byte_us": quantiles(&tally.first_byte),
        "events": tally.events,
        "events_per_s": tally.events as f64 / seconds,
        "bytes": tally.bytes,
        "bytes_per_s": tally.bytes as f64 / seconds,
        "whole_run": {
            "requests": tally.whole_requests, "events": tally.whole_events, "conversations": tally.conversations,
        },
    })
}

fn quantiles(histogram: &Histogram<u64>) -> Value {
    let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / NS_PER_US;
    json!({
        "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": histogram.max() as f64 / NS_PER_US,
        "mean": histogram.mean() / NS_PER_US,
    })
}
