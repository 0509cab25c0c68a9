//! What a tool is for, by words in its name.

/// Kinds of tools; the last is of those that no word tells.
pub const KINDS: [&str; 9] = [
    "run", "read", "search", "edit", "plan", "agent", "person", "finish", "other",
];
/// Index of `person` in `KINDS`.
pub const PERSON: usize = 6;
const OTHER: usize = 8;

/// The first kind one of whose words is in a tool's name is its kind.
const WORDS: [(usize, &[&str]); 8] = [
    (
        7,
        &[
            "finish",
            "submit",
            "complete_task",
            "final_answer",
            "done_task",
            "end_task",
            "transfer",
        ],
    ),
    (4, &["todo", "plan", "think", "note", "memory"]),
    (5, &["agent", "task", "delegate", "spawn"]),
    (
        PERSON,
        &["user", "respond", "ask", "human", "message", "reply"],
    ),
    (
        2,
        &[
            "search", "grep", "glob", "find", "lookup", "list", "query", "browse",
        ],
    ),
    (
        3,
        &[
            "edit", "write", "replace", "patch", "insert", "create", "update", "book", "cancel",
            "delete",
        ],
    ),
    (
        1,
        &[
            "read", "view", "open", "cat", "get", "fetch", "show", "click", "scroll",
        ],
    ),
    (
        0,
        &[
            "bash", "run", "exec", "shell", "python", "terminal", "test", "command", "calc",
            "compute",
        ],
    ),
];

/// Index of a tool's kind in `KINDS`.
pub fn kind(tool: &str) -> usize {
    let name = tool.to_lowercase();
    WORDS
        .iter()
        .find(|(_, words)| words.iter().any(|word| name.contains(word)))
        .map_or(OTHER, |(kind, _)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_tools_name_say_its_kind() {
        for (name, wanted) in [
            ("bash_execute", "run"),
            ("Grep", "search"),
            ("edit_file", "edit"),
            ("ask_user", "person"),
            ("TodoWrite", "plan"),
            ("submit", "finish"),
            ("Task", "agent"),
            ("get_user_details", "person"),
            ("fetch", "read"),
            ("x", "other"),
        ] {
            assert_eq!(KINDS[kind(name)], wanted, "{name}");
        }
    }
}
