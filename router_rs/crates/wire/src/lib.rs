//! Reading request and answer bytes without changing them.
