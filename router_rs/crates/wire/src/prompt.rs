//! Prompts of the text dialects: a text, a list of token ids, or a batch of them.

use crate::cursor::{Cursor, JsonError};
use crate::hash;

/// Bytes of text per link of a prompt's hash chain.
pub const TEXT_BLOCK: usize = 256;
/// Tokens per link of a prompt's hash chain.
pub const TOKEN_BLOCK: usize = 64;

const TEXT_SEED: u64 = 0x7465_7874;
const TOKEN_SEED: u64 = 0x746F_6B73;

/// The prompt of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// One text, decoded.
    Text(Vec<u8>),
    /// One list of token ids.
    Tokens(Vec<u32>),
    /// Several prompts in one call: an opaque whole, its size in tokens (estimated for texts).
    Batch {
        /// Hash of the whole.
        hash: u64,
        /// Number of prompts.
        count: usize,
        /// All their tokens.
        tokens: u64,
    },
}

impl Prompt {
    /// Reads the value of `prompt`, `text` or `input_ids`; `None` for a value that is no prompt.
    pub fn read(cursor: &mut Cursor<'_>) -> Result<Option<Self>, JsonError> {
        match cursor.peek()? {
            b'"' => {
                let mut text = Vec::new();
                cursor.string_into(&mut text)?;
                Ok(Some(Self::Text(text)))
            }
            b'[' => Self::read_list(cursor),
            _ => cursor.skip().map(|()| None),
        }
    }

    fn read_list(cursor: &mut Cursor<'_>) -> Result<Option<Self>, JsonError> {
        let mut ids = Vec::new();
        let mut members = Vec::new();
        let mut other = false;
        cursor.elements(|cursor| {
            match cursor.peek()? {
                b'0'..=b'9' => match cursor.number()?.parse() {
                    Ok(id) => ids.push(id),
                    Err(_) => other = true,
                },
                b'"' | b'[' => members.extend(Self::read(cursor)?),
                _ => {
                    other = true;
                    cursor.skip()?;
                }
            }
            Ok(())
        })?;
        if other || (!ids.is_empty() && !members.is_empty()) {
            return Ok(None);
        }
        if members.is_empty() {
            return Ok((!ids.is_empty()).then_some(Self::Tokens(ids)));
        }
        if members.len() == 1 {
            return Ok(members.pop());
        }
        let tokens = members.iter().map(Self::token_estimate).sum();
        let hash = members
            .iter()
            .fold(0, |chain, member| hash::link(chain, member.full_hash()));
        Ok(Some(Self::Batch {
            hash,
            count: members.len(),
            tokens,
        }))
    }

    /// Length in the prompt's own unit: bytes of text, or tokens. 0 for a batch, which has no prefixes.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(ids) => ids.len(),
            Self::Batch { .. } => 0,
        }
    }

    /// Whether there is no prefix to speak of.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens, estimated at four bytes each for text.
    pub fn token_estimate(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64 / 4,
            Self::Tokens(ids) => ids.len() as u64,
            Self::Batch { tokens, .. } => *tokens,
        }
    }

    /// Hashes of the prefixes of 1, 2, ... whole blocks.
    pub fn chain(&self) -> Vec<u64> {
        let blocks = |hashes: &mut dyn Iterator<Item = u64>, seed: u64| {
            hashes
                .scan(seed, |chain, block| {
                    *chain = hash::link(*chain, block);
                    Some(*chain)
                })
                .collect()
        };
        match self {
            Self::Text(text) => blocks(
                &mut text.chunks_exact(TEXT_BLOCK).map(hash::bytes),
                TEXT_SEED,
            ),
            Self::Tokens(ids) => blocks(
                &mut ids.chunks_exact(TOKEN_BLOCK).map(hash::tokens),
                TOKEN_SEED,
            ),
            Self::Batch { hash, .. } => vec![*hash],
        }
    }

    /// Hash of the first `length` units; `chain` is this prompt's own. `None` beyond the end, and for a batch.
    pub fn prefix_hash(&self, chain: &[u64], length: usize) -> Option<u64> {
        if length > self.len() {
            return None;
        }
        let (block, seed) = match self {
            Self::Text(_) => (TEXT_BLOCK, TEXT_SEED),
            Self::Tokens(_) => (TOKEN_BLOCK, TOKEN_SEED),
            Self::Batch { .. } => return None,
        };
        let whole = length / block;
        let head = if whole == 0 {
            seed
        } else {
            *chain.get(whole - 1)?
        };
        Some(hash::link(
            head,
            self.span_hash(whole * block, length - whole * block)?,
        ))
    }

    /// Hash of `length` units from `start`: equal to the hash of an answer of the same text or tokens.
    pub fn span_hash(&self, start: usize, length: usize) -> Option<u64> {
        let end = start.checked_add(length)?;
        match self {
            Self::Text(text) => text.get(start..end).map(hash::bytes),
            Self::Tokens(ids) => ids.get(start..end).map(hash::tokens),
            Self::Batch { .. } => None,
        }
    }

    fn full_hash(&self) -> u64 {
        match self {
            Self::Batch { hash, .. } => *hash,
            _ => self.span_hash(0, self.len()).unwrap_or_default(),
        }
    }
}
