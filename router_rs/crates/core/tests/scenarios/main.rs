//! The core from outside: events in, actions out, every action checked by the driver's books.

mod admissions;
mod adoptions;
mod announcements;
mod cluster;
mod driver;
mod gathering;
mod idle_engines;
mod migrations;
mod patience;
mod placements;
mod predictions;
mod queues;
mod random_events;
mod rollout;
mod speeds;
mod steps;
mod workers;
