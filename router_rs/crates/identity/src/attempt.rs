//! What a client's SDK says of its repeats.

/// How often the SDKs of `OpenAI` and Anthropic repeat by default.
const SDK_REPEATS: usize = 2;

/// What `x-stainless-retry-count` says of a request. The SDKs of `OpenAI` and Anthropic always send it; they repeat
/// what failed before its first byte, twice, and never a stream that broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attempt {
    /// No such header, or no number in it.
    Unmarked,
    /// 0.
    First,
    /// 1.
    Repeat,
    /// 2 or more.
    LastRepeat,
}

impl Attempt {
    /// Reads the header's value.
    pub fn of(count: Option<&str>) -> Self {
        let Some(digits) = count else {
            return Self::Unmarked;
        };
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Self::Unmarked;
        }
        // More digits than a number holds are many repeats.
        match digits
            .parse::<usize>()
            .unwrap_or(usize::MAX)
            .min(SDK_REPEATS)
        {
            0 => Self::First,
            1 => Self::Repeat,
            _ => Self::LastRepeat,
        }
    }

    /// Whether the SDK says that it tries again.
    pub fn is_repeat(self) -> bool {
        self >= Self::Repeat
    }
}
