//! Arguments of tool calls: JSON inside a string, which clients parse and write anew.

use crate::cursor::{Cursor, JsonError};
use crate::hash;

/// Hash of the arguments' meaning; of the plain text where they are no JSON (models do write such).
pub fn hash_text(text: &[u8], scratch: &mut Vec<u8>) -> u64 {
    let text = text.trim_ascii();
    // A call without arguments comes as "", as "{}" or not at all.
    let json = if text.is_empty() { b"{}" } else { text };
    let mut cursor = Cursor::new(json);
    match hash::canonical(&mut cursor, &[], scratch)
        .and_then(|value| cursor.finish().map(|()| value))
    {
        Ok(value) => value,
        Err(_) => hash::bytes(text),
    }
}

/// Reads a value that holds arguments: the usual string, or, from some clients, the object itself.
pub fn hash_value(cursor: &mut Cursor<'_>, scratch: &mut Scratch) -> Result<u64, JsonError> {
    match cursor.peek()? {
        b'"' => {
            let text = cursor.string()?.decode(&mut scratch.text);
            Ok(hash_text(text, &mut scratch.escapes))
        }
        b'n' => cursor.null().map(|()| hash_text(b"", &mut scratch.escapes)),
        _ => hash::canonical(cursor, &[], &mut scratch.escapes),
    }
}

/// Buffers kept from call to call.
#[derive(Default)]
pub struct Scratch {
    text: Vec<u8>,
    escapes: Vec<u8>,
}
