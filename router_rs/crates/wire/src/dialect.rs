//! The request dialects of the data path.

/// Which API a body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `SGLang`'s native `/generate`.
    Generate,
    /// vLLM's `/inference/v1/generate`: token ids in, token ids out.
    Tokens,
    /// Anthropic's `/v1/messages`.
    Messages,
    /// `OpenAI`'s `/v1/responses`.
    Responses,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Chat,
        Self::Completions,
        Self::Generate,
        Self::Tokens,
        Self::Messages,
        Self::Responses,
    ];

    /// The name used in records and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Generate => "generate",
            Self::Tokens => "tokens",
            Self::Messages => "messages",
            Self::Responses => "responses",
        }
    }

    /// The dialect with this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// Its prompt is a list of messages, and an answer is one more of them.
    pub const fn has_messages(self) -> bool {
        matches!(self, Self::Chat | Self::Messages | Self::Responses)
    }

    /// Its streams report usage in a chunk of its own, and only when asked to.
    pub const fn asks_usage(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// The body member that names the request at the worker. In `Responses` it is the answer's id as well; `SGLang`
    /// and vLLM take it alike (`ResponsesRequest.request_id`). `Tokens`: vLLM's `GenerateRequest.request_id`.
    pub const fn rid_member(self) -> &'static str {
        match self {
            Self::Responses | Self::Tokens => "request_id",
            _ => "rid",
        }
    }
}
