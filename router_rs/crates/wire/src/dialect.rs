//! The three request dialects of the data path.

/// Which API a body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `SGLang`'s native `/generate`.
    Generate,
}

impl Dialect {
    /// The name used in records and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Generate => "generate",
        }
    }

    /// The dialect with this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Chat, Self::Completions, Self::Generate]
            .into_iter()
            .find(|dialect| dialect.name() == name)
    }
}
