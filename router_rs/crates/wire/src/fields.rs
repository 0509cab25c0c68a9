//! Strings in a request body that may name a trajectory, as flat dotted paths.
//!
//! Only paths in the two tables below are picked up; which of them counts, and in which order, is decided by
//! the gateway's identity rules.

use crate::cursor::{Cursor, JsonError};

/// Longest value taken. Longer ones are no ids.
const MAX_VALUE: usize = 1024;
/// Most values taken from one body.
const MAX_FIELDS: usize = 64;

/// Single values.
const LEAVES: &[&str] = &[
    "program_id",
    "session_id",
    "user_id",
    "user",
    "litellm_session_id",
    "litellm_trace_id",
    "prompt_cache_key",
    "previous_response_id",
    "conversation",
    "conversation.id",
    "_proxy_session_id",
    "cache_salt",
    "extra_body.program_id",
    "extra_body.session_id",
    "metadata.session_id",
    "metadata.user_id",
    "metadata.trajectory_id",
    "litellm_metadata.session_id",
    "session_params.session_id",
    "session_params.id",
    "kv_transfer_params.uni_agent.trajectory_id",
];

/// Objects of which every string, number and boolean is taken.
const FAMILIES: &[&str] = &[
    "agent_hint",
    "vllm_xargs.agentic_context",
    "vllm_xargs.agent_hint",
    "nvext.agent_context",
    "nvext.agent_hints",
];

/// Whether the object or value at `name` can hold anything of interest.
pub fn concerns(name: &str) -> bool {
    let starts = |path: &str| {
        path.strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    LEAVES.iter().any(|path| starts(path)) || FAMILIES.iter().any(|path| starts(path))
}

/// Reads the value at `path` and appends what it holds.
pub fn collect(
    cursor: &mut Cursor<'_>,
    path: &str,
    fields: &mut Vec<(String, String)>,
) -> Result<(), JsonError> {
    match cursor.peek()? {
        b'{' => {
            if !concerns(path) {
                return cursor.skip();
            }
            cursor.members(|cursor, key| {
                collect(cursor, &format!("{path}.{}", key.to_text()), fields)
            })
        }
        b'"' => {
            let text = cursor.string()?.to_text();
            if FAMILIES.contains(&path) && text.starts_with('{') {
                // vllm_xargs carries flat values only, so some clients put the object in as JSON text.
                let mut nested = Vec::new();
                if collect(&mut Cursor::new(text.as_bytes()), path, &mut nested).is_ok() {
                    fields.extend(nested);
                }
            } else {
                keep(path, text, fields);
            }
            Ok(())
        }
        b't' | b'f' => {
            let value = cursor.boolean()?;
            keep(path, value.to_string(), fields);
            Ok(())
        }
        b'-' | b'0'..=b'9' => {
            let text = cursor.number()?;
            keep(path, text.to_owned(), fields);
            Ok(())
        }
        _ => cursor.skip(),
    }
}

/// Directly below a family.
fn in_family(path: &str) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(parent, _)| FAMILIES.contains(&parent))
}

fn keep(path: &str, value: String, fields: &mut Vec<(String, String)>) {
    let wanted = LEAVES.contains(&path) || in_family(path);
    if wanted && !value.is_empty() && value.len() <= MAX_VALUE && fields.len() < MAX_FIELDS {
        fields.push((path.to_owned(), value));
    }
}
