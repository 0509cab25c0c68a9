//! Running figures of a quantity that may be unknown at some steps. What nobody knows is NaN.

/// Weight of the newest step in running means of recent steps: about the last five count.
pub const RECENT: f64 = 0.35;

/// `ln(1 + value)`, of what is not negative; NaN stays NaN.
pub fn log(value: f64) -> f64 {
    if value.is_nan() {
        return f64::NAN;
    }
    value.max(0.0).ln_1p()
}

/// Mean, recent mean, last and largest.
#[derive(Clone, Debug)]
pub struct Running {
    pub count: u64,
    pub total: f64,
    pub recent: f64,
    pub last: f64,
    pub largest: f64,
    log_total: f64,
    log_squares: f64,
}

impl Default for Running {
    fn default() -> Self {
        Self {
            count: 0,
            total: 0.0,
            recent: f64::NAN,
            last: f64::NAN,
            largest: f64::NAN,
            log_total: 0.0,
            log_squares: 0.0,
        }
    }
}

impl Running {
    pub fn add(&mut self, value: Option<f64>) {
        let Some(value) = value else {
            self.last = f64::NAN;
            return;
        };
        let value = value.max(0.0);
        self.count += 1;
        self.total += value;
        self.last = value;
        if self.count == 1 {
            self.recent = value;
            self.largest = value;
        } else {
            self.recent += RECENT * (value - self.recent);
            self.largest = self.largest.max(value);
        }
        let log = value.ln_1p();
        self.log_total += log;
        self.log_squares += log * log;
    }

    pub fn mean(&self) -> f64 {
        if self.count == 0 {
            return f64::NAN;
        }
        self.total / self.count as f64
    }

    /// Standard deviation of the logarithm; NaN for fewer than two.
    pub fn log_spread(&self) -> f64 {
        if self.count < 2 {
            return f64::NAN;
        }
        let count = self.count as f64;
        let mean = self.log_total / count;
        (self.log_squares / count - mean * mean).max(0.0).sqrt()
    }
}
