//! Reading request and answer bytes without changing them.
//!
//! Every request body and every answer passes through here once, as bytes:
//!
//! * [`scan_body`] reads what routing needs (model, stream, sizes, identity strings, a hash of each message)
//!   and remembers where the top-level members lie;
//! * [`splice`] uses those spans to set `rid`, `priority` and `include_usage` and leaves every other byte alone;
//! * [`StreamTap`] reads an event stream beside the bytes that go to the client;
//! * [`read_answer`] does the same for a whole answer;
//! * [`Scan::to_bytes`] and [`Answer::to_bytes`] hand what was read to another process;
//! * [`plain_request`] and [`plain_answer`] read HTTP messages of the plain kind, [`forward_lines`] and [`answer_lines`]
//!   say which of their headers go on.
//!
//! A message in a request and the answer it came from hash to the same number ([`hash`]), which is how a
//! conversation is recognised without any tag. Nothing here validates types: what is wrong but is JSON goes
//! to the worker, and the worker decides.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod anthropic;
mod arguments;
mod cursor;
mod dialect;
mod fields;
pub mod hash;
mod headers;
mod http1;
mod message;
mod parcel;
mod prompt;
mod reply;
mod reply_messages;
mod reply_responses;
mod responses;
mod role;
mod scan;
mod splice;
mod sse;
mod tap;
mod turns;
mod usage;

pub use answer::Answer;
pub use cursor::{JsonError, Reason};
pub use dialect::Dialect;
pub use headers::{Header, answer_lines, forward_lines};
pub use http1::{LowerHeaders, PlainAnswer, PlainRequest, plain_answer, plain_request};
pub use parcel::ParcelError;
pub use prompt::{Prompt, TEXT_BLOCK, TOKEN_BLOCK};
pub use reply::read_answer;
pub use role::Role;
pub use scan::{Scan, Unit, message_anchors, scan_body};
pub use splice::{Edits, splice};
pub use tap::{Output, StreamTap};
pub use turns::AFTER_STORED;
