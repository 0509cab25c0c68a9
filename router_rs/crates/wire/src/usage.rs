//! The usage object of an answer, as `OpenAI`'s families write it: the same counts under other names.

use crate::answer::Usage;
use crate::cursor::{Cursor, JsonError};

/// Names of the counts.
pub(crate) struct Names {
    prompt: &'static [u8],
    output: &'static [u8],
    /// An object that has `cached_tokens`, a part of the prompt's.
    prompt_details: &'static [u8],
}

/// Chat and text completions.
pub(crate) const COMPLETIONS: Names = Names {
    prompt: b"prompt_tokens",
    output: b"completion_tokens",
    prompt_details: b"prompt_tokens_details",
};

/// The Responses API.
pub(crate) const RESPONSES: Names = Names {
    prompt: b"input_tokens",
    output: b"output_tokens",
    prompt_details: b"input_tokens_details",
};

/// Reads the object at `cursor`.
pub(crate) fn read(cursor: &mut Cursor<'_>, names: &Names) -> Result<Usage, JsonError> {
    let mut usage = Usage::default();
    let mut scratch = Vec::new();
    cursor.members(|cursor, key| {
        let key = key.decode(&mut scratch);
        if key == names.prompt {
            usage.prompt = cursor.count_or_skip()?;
        } else if key == names.output {
            usage.output = cursor.count_or_skip()?;
        } else if key == names.prompt_details {
            cursor.members(|cursor, key| {
                if key.decode(&mut scratch) == b"cached_tokens" {
                    usage.cached = cursor.count_or_skip()?;
                    return Ok(());
                }
                cursor.skip()
            })?;
        } else {
            cursor.skip()?;
        }
        Ok(())
    })?;
    Ok(usage)
}
