//! The tokens of a request, cut where the prefix tree may branch.

/// Whose tokens a run holds, and behind what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// The prompt that a group shares, without its last token.
    Prompt(u64),
    /// The last token of that prompt. A request for the prompt alone has to compute it, to sample from it, and so does
    /// not use it: in the prefix tree it becomes a node of its own.
    PromptEnd(u64),
    /// What one trajectory has beyond it.
    Trajectory(u64),
}

/// Which tokens a request is about: the first `shared` are its group's, the rest are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The group; `shared` is 0 without one.
    pub group: u64,
    /// Tokens that all of the group begin with.
    pub shared: u64,
    /// The trajectory.
    pub trajectory: u64,
}

/// A part of a path that has a run of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub owner: Owner,
    pub start: u64,
    /// Most tokens it can have.
    pub size: u64,
}

impl Path {
    /// From the start of the tokens on.
    fn parts(&self) -> [Part; 3] {
        let end = self.shared.saturating_sub(1);
        [
            Part {
                owner: Owner::Prompt(self.group),
                start: 0,
                size: end,
            },
            Part {
                owner: Owner::PromptEnd(self.group),
                start: end,
                size: self.shared - end,
            },
            Part {
                owner: Owner::Trajectory(self.trajectory),
                start: self.shared,
                size: u64::MAX - self.shared,
            },
        ]
    }

    /// The parts that the first `length` tokens reach into.
    pub(super) fn parts_within(&self, length: u64) -> impl Iterator<Item = Part> {
        let parts = self.parts().into_iter();
        parts.filter(move |part| part.size > 0 && part.start < length)
    }
}
