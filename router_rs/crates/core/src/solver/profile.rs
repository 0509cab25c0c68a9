//! The part of a worker profile that the solvers read: per MP degree either the paper's `T` and
//! `F`, or a worker's decode step time by batch with its slots, KV tokens and prefill rate. The
//! whole format is `heddle_contracts.worker_profile`.
//!
//! Invariants after parsing: step time never falls with the batch, throughput (batch / step time)
//! never falls with the batch.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::SolveError;

#[derive(Deserialize)]
struct ProfileJson {
    degrees: BTreeMap<u32, DegreeJson>,
}

/// Both forms in one, so that a wrong field is named instead of "no variant matched".
#[derive(Deserialize)]
struct DegreeJson {
    #[serde(rename = "T")]
    t: Option<f64>,
    #[serde(rename = "F")]
    f: Option<Vec<f64>>,
    batches: Option<Vec<u32>>,
    step_seconds: Option<Vec<f64>>,
    #[serde(default)]
    seconds_per_context_token: f64,
    #[serde(default)]
    prefill_tokens_per_second: f64,
    #[serde(default)]
    kv_tokens: f64,
    #[serde(default)]
    slots: u32,
}

/// What a worker of one MP degree does.
#[derive(Debug, Clone, PartialEq)]
pub enum DegreeProfile {
    /// The short form.
    Factors {
        /// Seconds a token at batch 1.
        t: f64,
        /// Interference factor by group size from 1; the last one holds for all larger groups.
        f: Vec<f64>,
    },
    /// A measured or modelled worker.
    Steps(StepProfile),
}

/// Decode step time by batch, and the capacities around it.
#[derive(Debug, Clone, PartialEq)]
pub struct StepProfile {
    batches: Vec<f64>,
    step_seconds: Vec<f64>,
    /// Seconds a decode step takes longer for each token of context in its batch.
    pub seconds_per_context_token: f64,
    /// Uncached prompt tokens a second; infinite where the profile says nothing.
    pub prefill_tokens_per_second: f64,
    /// KV tokens; infinite where the profile says nothing.
    pub kv_tokens: f64,
    /// Requests that run at once.
    pub slots: u32,
}

impl StepProfile {
    /// Seconds of one decode step at `batch`, each request with `context` tokens: linear between
    /// the profiled batches and beyond the last; at the first batch's time below it.
    pub fn step_seconds(&self, batch: f64, context: f64) -> f64 {
        let reading = self.seconds_per_context_token * context * batch.max(1.0);
        let above = self.batches.partition_point(|&at| at < batch);
        if above == 0 || self.batches.len() == 1 {
            return self.step_seconds[0] + reading;
        }
        let right = above.min(self.batches.len() - 1);
        let (b0, b1) = (self.batches[right - 1], self.batches[right]);
        let (t0, t1) = (self.step_seconds[right - 1], self.step_seconds[right]);
        t0 + (t1 - t0) / (b1 - b0) * (batch - b0) + reading
    }
}

/// A worker profile: what each MP degree does.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    degrees: BTreeMap<u32, DegreeProfile>,
}

impl Profile {
    /// Reads a profile from JSON, either form by degree. Fields that no solver needs are passed
    /// over.
    ///
    /// # Errors
    /// [`SolveError::Profile`] with the path of the field.
    pub fn parse(json: &str) -> Result<Self, SolveError> {
        let parsed: ProfileJson =
            serde_json::from_str(json).map_err(|error| SolveError::Profile {
                field: "degrees".to_owned(),
                problem: error.to_string(),
            })?;
        let degrees = parsed
            .degrees
            .into_iter()
            .map(|(degree, fields)| Ok((degree, fields.check(&format!("degrees.{degree}"))?)))
            .collect::<Result<_, SolveError>>()?;
        Ok(Self { degrees })
    }

    /// Whether this degree is profiled.
    pub fn has(&self, degree: u32) -> bool {
        self.degrees.contains_key(&degree)
    }

    /// The profiled degrees, ascending.
    pub fn degrees(&self) -> Vec<u32> {
        self.degrees.keys().copied().collect()
    }

    pub(super) fn degree(&self, degree: u32) -> Result<&DegreeProfile, SolveError> {
        self.degrees
            .get(&degree)
            .ok_or_else(|| SolveError::DegreeNotInProfile {
                degree,
                available: self.degrees(),
            })
    }
}

fn wrong<T>(field: String, problem: &str) -> Result<T, SolveError> {
    Err(SolveError::Profile {
        field,
        problem: problem.to_owned(),
    })
}

fn positive(field: &str, value: f64) -> Result<f64, SolveError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        wrong(field.to_owned(), "must be a finite number > 0")
    }
}

fn known(field: &str, value: f64) -> Result<f64, SolveError> {
    if value.is_finite() && value >= 0.0 {
        Ok(if value == 0.0 { f64::INFINITY } else { value })
    } else {
        wrong(
            field.to_owned(),
            "must be a finite number >= 0 (0: not known)",
        )
    }
}

/// `values` are finite, > 0 and never fall.
fn rising(field: &str, values: &[f64]) -> Result<(), SolveError> {
    for (index, &value) in values.iter().enumerate() {
        positive(&format!("{field}[{index}]"), value)?;
        if index > 0 && value < values[index - 1] {
            return wrong(
                format!("{field}[{index}]"),
                "falls below the value before it; more company never makes a token faster, so smooth the measurement \
                 (running maximum)",
            );
        }
    }
    if values.is_empty() {
        wrong(field.to_owned(), "must not be empty")
    } else {
        Ok(())
    }
}

impl DegreeJson {
    fn check(self, at: &str) -> Result<DegreeProfile, SolveError> {
        match (self.t, &self.f, &self.batches, &self.step_seconds) {
            (Some(t), Some(f), None, None) => {
                rising(&format!("{at}.F"), f)?;
                Ok(DegreeProfile::Factors {
                    t: positive(&format!("{at}.T"), t)?,
                    f: f.clone(),
                })
            }
            (None, None, Some(_), Some(_)) => self.check_steps(at),
            _ => wrong(
                at.to_owned(),
                "needs either T and F, or batches and step_seconds with slots",
            ),
        }
    }

    fn check_steps(self, at: &str) -> Result<DegreeProfile, SolveError> {
        let batches = self.batches.unwrap_or_default();
        let mut steps = self.step_seconds.unwrap_or_default();
        if batches.len() != steps.len() {
            return wrong(
                format!("{at}.step_seconds"),
                "must have one value for each of batches",
            );
        }
        if batches.first() != Some(&1) || batches.windows(2).any(|pair| pair[0] >= pair[1]) {
            return wrong(format!("{at}.batches"), "must start at 1 and rise");
        }
        rising(&format!("{at}.step_seconds"), &steps)?;
        let batches: Vec<f64> = batches.into_iter().map(f64::from).collect();
        // Where a larger batch yields less throughput, taking turns at the smaller one is as good:
        // that is what it costs.
        for right in 1..steps.len() {
            steps[right] = steps[right].min(steps[right - 1] * batches[right] / batches[right - 1]);
        }
        if self.slots == 0 {
            return wrong(
                format!("{at}.slots"),
                "must be >= 1: how many requests run at once",
            );
        }
        let reading = self.seconds_per_context_token;
        if !(reading.is_finite() && reading >= 0.0) {
            return wrong(
                format!("{at}.seconds_per_context_token"),
                "must be a finite number >= 0",
            );
        }
        Ok(DegreeProfile::Steps(StepProfile {
            batches,
            step_seconds: steps,
            seconds_per_context_token: reading,
            prefill_tokens_per_second: known(
                &format!("{at}.prefill_tokens_per_second"),
                self.prefill_tokens_per_second,
            )?,
            kv_tokens: known(&format!("{at}.kv_tokens"), self.kv_tokens)?,
            slots: self.slots,
        }))
    }
}
