//! The core from outside: events in, actions out, every action checked by the driver's books.

mod driver;
mod random_events;
