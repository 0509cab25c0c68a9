//! Workers: they start, report, are lost and come back; what they say is passed on.

use heddle_core::event::{LinkSpec, WorkerUp};
use heddle_core::{Event, WorkerId};

use super::{Cluster, Due, micros, seconds};
use crate::engine::Engine;
use crate::report::WorkerTrace;

/// One worker: the engine while it lives, and what its former lives did.
pub(super) struct Machine {
    pub degree: u32,
    pub engine: Option<Engine>,
    pub generation: u64,
    pub ask: u64,
    pub trace: WorkerTrace,
}

impl Machine {
    /// Ends a life of the worker; what it did is kept.
    pub(super) fn bury(&mut self) {
        if let Some(engine) = self.engine.take() {
            self.trace.totals.add(&engine.totals());
            self.trace.most_kv_used = self.trace.most_kv_used.max(engine.most_used());
            self.trace.evicted += engine.evicted();
        }
    }
}

impl Cluster<'_> {
    pub(super) fn start_worker(&mut self, worker: usize) {
        let machine = &mut self.machines[worker];
        let truth = &self.spec.truth[&machine.degree];
        let costs = self.spec.true_costs(truth);
        machine.generation += 1;
        machine.engine = Some(Engine::new(
            costs,
            truth.slots,
            truth.kv_tokens,
            self.spec.engine.clone(),
        ));
        let believed = self.spec.beliefs.get(&machine.degree).cloned();
        self.inbox.push_back(Event::WorkerUp(WorkerUp {
            worker: worker as WorkerId,
            generation: machine.generation,
            degree: machine.degree,
            slots: truth.slots,
            kv_tokens: truth.kv_tokens,
            has_priority: self.spec.engine.priority,
            profile: Some(believed.unwrap_or_else(|| truth.costs.belief(truth.slots))),
            link: truth.link.map(|link| LinkSpec {
                tokens_per_s: link.tokens_per_s,
                setup_us: (link.setup_s * 1e6).ceil() as u64,
            }),
            weights: 0,
        }));
    }

    pub(super) fn lose_worker(&mut self, worker: usize) {
        self.lose_transfers(worker);
        let machine = &mut self.machines[worker];
        machine.bury();
        self.inbox.push_back(Event::WorkerDown {
            worker: worker as WorkerId,
            generation: machine.generation,
        });
    }

    /// Load reports as they are now; they arrive when they are old.
    pub(super) fn survey(&mut self) {
        let arrives = self.now + micros(self.spec.report_delay_s);
        for worker in 0..self.machines.len() {
            let machine = &mut self.machines[worker];
            let Some(engine) = &mut machine.engine else {
                continue;
            };
            engine.advance(seconds(self.now));
            let (running, waiting, kv_used) = engine.load();
            let generation = machine.generation;
            self.touched.push(worker);
            let report = Due::Report {
                worker,
                generation,
                running,
                waiting,
                kv_used,
            };
            self.schedule(arrives, report);
        }
        self.schedule(self.now + micros(self.spec.report_interval_s), Due::Survey);
    }

    /// Takes in what an engine has to say and asks it when its batch changes next.
    pub(super) fn look_at(&mut self, worker: usize) {
        let machine = &mut self.machines[worker];
        let Some(engine) = &mut machine.engine else {
            return;
        };
        let notices = engine.take_notices();
        machine.ask += 1;
        let next = engine.next_event().map(|at| (micros(at), machine.ask));
        if let Some((at, ask)) = next {
            self.schedule(at.max(self.now), Due::Boundary { worker, ask });
        }
        for notice in notices {
            self.take(worker, notice);
        }
    }
}
