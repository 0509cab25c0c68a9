//! Who speaks in a message.

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `system`.
    System,
    /// `developer`.
    Developer,
    /// `user`.
    User,
    /// `assistant`.
    Assistant,
    /// `tool`, or the older `function`.
    Tool,
    /// Anything else.
    Other,
}

impl Role {
    pub(crate) fn from_name(name: &[u8]) -> Self {
        match name {
            b"system" => Self::System,
            b"developer" => Self::Developer,
            b"user" => Self::User,
            b"assistant" => Self::Assistant,
            b"tool" | b"function" => Self::Tool,
            _ => Self::Other,
        }
    }

    /// The name in the request, `other` for unknown ones.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Other => "other",
        }
    }
}
