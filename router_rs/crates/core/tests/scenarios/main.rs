//! The core from outside: events in, actions out, every action checked by the driver's books.

mod cluster;
mod driver;
mod random_events;
mod rollout;
