//! KV moves: what the core begins is carried out by the modelled engines and network, as shims do it.
//!
//! A transfer is declined where the source has nothing or what the target lacks would take longer than it is worth, and
//! refused where the target has no room. It ends once: landed, failed at its deadline, cancelled, or with one of its workers.

use heddle_core::action::Migrate;
use heddle_core::event::MigrationFailure;
use heddle_core::{Event, Micros, MigrationId};

use super::{Cluster, Due, micros, seconds};
use crate::kv::{Hold, Path};
use crate::network::End;

/// A transfer under way.
pub(super) struct Moving {
    from: usize,
    to: usize,
    path: Path,
    sent: Hold,
    received: Hold,
    /// Tokens of the path that will be known at the target.
    tokens: u64,
    moved: u64,
    began: Micros,
    deadline: Micros,
}

impl Cluster<'_> {
    pub(super) fn path_of(&self, trajectory: usize) -> Path {
        let script = &self.workload.scripts()[trajectory];
        Path {
            group: script.group.unwrap_or(0),
            shared: self.workload.shared_prompt(trajectory),
            trajectory: trajectory as u64,
        }
    }

    fn end_of(&self, worker: usize) -> Option<End> {
        let host = self.spec.hosts.get(worker).copied().unwrap_or(worker);
        let link = self.spec.true_link(self.machines[worker].degree)?;
        Some(End { worker, host, link })
    }

    pub(super) fn migrate(&mut self, migrate: &Migrate) {
        if let Err(why) = self.begin_transfer(migrate) {
            let migration = migrate.migration;
            self.inbox
                .push_back(Event::MigrationFailed { migration, why });
        }
        self.ask_network();
    }

    fn begin_transfer(&mut self, migrate: &Migrate) -> Result<(), MigrationFailure> {
        let (from, to) = (migrate.from as usize, migrate.to as usize);
        let now = seconds(self.now);
        let path = self.path_of(migrate.trajectory as usize);
        let ends = self.end_of(from).zip(self.end_of(to));
        let Some((here, there)) = ends else {
            return Err(MigrationFailure::Unreachable);
        };
        let Some(source) = &mut self.machines[from].engine else {
            return Err(MigrationFailure::Unreachable);
        };
        let sent = source.begin_sending(now, &path, migrate.tokens);
        self.touched.push(from);
        let begun = match &mut self.machines[to].engine {
            _ if sent.known == 0 => Err(MigrationFailure::Declined),
            None => Err(MigrationFailure::Unreachable),
            Some(target) => {
                self.touched.push(to);
                target
                    .begin_receiving(now, &path, sent.known)
                    .ok_or(MigrationFailure::TargetFull)
            }
        };
        let begun = begun.and_then(|received| {
            let moved = sent.known - received.known;
            let expected = micros(self.network.expected_s(here, there, moved));
            if migrate.worth_us.is_none_or(|worth| expected <= worth) {
                return Ok((received, moved));
            }
            if let Some(target) = &mut self.machines[to].engine {
                target.end_receiving(now, &path, received, None);
            }
            Err(MigrationFailure::Declined)
        });
        let (received, moved) = match begun {
            Ok(begun) => begun,
            Err(why) => {
                if let Some(source) = &mut self.machines[from].engine {
                    source.end_sending(now, &path, sent);
                }
                return Err(why);
            }
        };
        self.network
            .begin(now, migrate.migration, here, there, moved);
        self.moving.insert(
            migrate.migration,
            Moving {
                from,
                to,
                path,
                sent,
                received,
                tokens: sent.known,
                moved,
                began: self.now,
                deadline: self.now + migrate.within_us,
            },
        );
        Ok(())
    }

    /// The core does not want it any more. One that is over is not known here: the core was told of its end.
    pub(super) fn cancel_transfer(&mut self, migration: MigrationId) {
        if self.end_transfer(migration, false).is_some() {
            let why = MigrationFailure::Cancelled;
            self.inbox
                .push_back(Event::MigrationFailed { migration, why });
            self.ask_network();
        }
    }

    /// Takes a transfer off the network and lets go of what its workers hold for it.
    fn end_transfer(&mut self, migration: MigrationId, landed: bool) -> Option<Moving> {
        let moving = self.moving.remove(&migration)?;
        let now = seconds(self.now);
        self.network.stop(now, migration);
        if let Some(target) = &mut self.machines[moving.to].engine {
            let taken = landed.then_some(moving.tokens);
            target.end_receiving(now, &moving.path, moving.received, taken);
            self.touched.push(moving.to);
        }
        if let Some(source) = &mut self.machines[moving.from].engine {
            source.end_sending(now, &moving.path, moving.sent);
            self.touched.push(moving.from);
        }
        Some(moving)
    }

    /// A worker is about to be lost: so is what it sends and receives. The core ends these moves itself.
    pub(super) fn lose_transfers(&mut self, worker: usize) {
        let lost: Vec<MigrationId> = self
            .moving
            .iter()
            .filter(|(_, moving)| moving.from == worker || moving.to == worker)
            .map(|(&migration, _)| migration)
            .collect();
        for migration in lost {
            self.end_transfer(migration, false);
        }
        self.ask_network();
    }

    /// Sees to it that the network is looked at when the next transfer ends.
    fn ask_network(&mut self) {
        self.network_ask += 1;
        let ends = self.network.next_end().map(|(at, _)| micros(at));
        let deadlines = self.moving.values().map(|moving| moving.deadline).min();
        if let Some(at) = ends.into_iter().chain(deadlines).min() {
            let ask = self.network_ask;
            self.schedule(at.max(self.now), Due::Network { ask });
        }
    }

    pub(super) fn look_at_network(&mut self) {
        let now = seconds(self.now);
        while let Some((_, migration)) = self.network.next_end().filter(|&(at, _)| at <= now) {
            if let Some(landed) = self.end_transfer(migration, true) {
                self.carried.tokens += landed.moved;
                self.carried.seconds += seconds(self.now - landed.began);
                self.inbox.push_back(Event::MigrationLanded {
                    migration,
                    tokens: landed.tokens,
                });
            }
        }
        let late: Vec<MigrationId> = self
            .moving
            .iter()
            .filter(|(_, moving)| moving.deadline <= self.now)
            .map(|(&migration, _)| migration)
            .collect();
        for migration in late {
            self.end_transfer(migration, false);
            let why = MigrationFailure::Deadline;
            self.inbox
                .push_back(Event::MigrationFailed { migration, why });
        }
        self.ask_network();
    }
}
