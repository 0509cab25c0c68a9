//! Agents: their requests come in, their answers send them into their tools.

use heddle_core::event::{Outcome, StepArrived};
use heddle_core::{Event, StepId};

use super::{Cluster, Due, ended, micros, seconds};
use crate::bound::decode_alone_s;
use crate::engine::{Notice, What};
use crate::report::Stay;

impl Cluster<'_> {
    pub(super) fn arrive(&mut self, trajectory: usize) {
        let step = self.owners.len() as StepId;
        self.owners.push(trajectory);
        let now = seconds(self.now);
        let agent = &mut self.agents[trajectory];
        agent.step = step;
        agent.arrived_at = now;
        agent.dispatched = false;
        let (turn, prompt_tokens) = (agent.turn, agent.prompt);
        if turn == 0 {
            self.traces[trajectory].began_at = now;
        }
        let group = self.workload.scripts()[trajectory].group;
        let chain = if self.reads_chain {
            self.chain(trajectory, turn)
        } else {
            Vec::new()
        };
        self.inbox.push_back(Event::StepArrived(StepArrived {
            step,
            trajectory: trajectory as u64,
            group,
            prompt_tokens,
            chain,
            pinned_worker: None,
            bound: false,
        }));
        if turn == 0 {
            self.predict(trajectory);
        }
    }

    /// Chained hashes of the prompt's messages: the prompt of the first step, then an answer and a tool result a step.
    pub(super) fn chain(&self, trajectory: usize, turn: usize) -> Vec<u64> {
        let shared = self.workload.shared_prompt(trajectory);
        let own = (trajectory as u64 + 1) << 20;
        let prompt = match self.workload.scripts()[trajectory].group {
            Some(group) if shared > 0 => (1 << 63) | group,
            _ => own,
        };
        let messages = 1..=2 * turn as u64;
        std::iter::once(prompt)
            .chain(messages.map(|message| own | message))
            .collect()
    }

    pub(super) fn predict(&mut self, trajectory: usize) {
        if let Some(predictions) = &self.predictions {
            let estimate = predictions.before_step(trajectory, self.agents[trajectory].turn);
            self.inbox.push_back(Event::Predicted {
                trajectory: trajectory as u64,
                mean: estimate.mean,
                sigma: estimate.sigma,
                gap_us: None,
            });
        }
    }

    pub(super) fn take(&mut self, worker: usize, notice: Notice) {
        let trajectory = self.owners[notice.step as usize];
        let agent = &mut self.agents[trajectory];
        let script = &self.workload.scripts()[trajectory];
        let (turn, prompt) = (script.turns[agent.turn], agent.prompt);
        match notice.what {
            What::Began => {
                agent.began_at = notice.at;
                if self.spec.streaming {
                    self.inbox.push_back(Event::FirstByte { step: notice.step });
                }
            }
            What::Refused => {
                self.inbox
                    .push_back(ended(notice.step, Outcome::ClientError, prompt, 0, 0));
                self.traces[trajectory].refused = true;
                self.over(trajectory, notice.at);
            }
            What::Done {
                cached,
                admitted_at,
            } => {
                let degree = self.machines[worker].degree;
                let costs = self.spec.true_costs(&self.spec.truth[&degree]);
                let known = if agent.turn == 0 {
                    0
                } else {
                    prompt - turn.input - 1
                };
                let trace = &mut self.traces[trajectory];
                trace.output += turn.output;
                trace.queued_s += admitted_at - agent.arrived_at;
                trace.decode_s += notice.at - agent.began_at;
                trace.decode_alone_s += decode_alone_s(&costs, prompt, turn.output);
                trace.recomputed += known.saturating_sub(cached);
                if self.spec.timeline {
                    self.timeline.push(Stay {
                        worker,
                        trajectory,
                        step: agent.turn,
                        from_s: admitted_at,
                        to_s: notice.at,
                    });
                }
                if !self.spec.streaming {
                    self.inbox.push_back(Event::FirstByte { step: notice.step });
                }
                self.inbox.push_back(ended(
                    notice.step,
                    Outcome::Done,
                    prompt,
                    turn.output,
                    cached,
                ));
                agent.turn += 1;
                agent.step = 0;
                match script.turns.get(agent.turn) {
                    Some(next) => {
                        agent.prompt = prompt + turn.output + next.input;
                        self.predict(trajectory);
                        self.schedule(
                            micros(notice.at + turn.tool_s).max(self.now),
                            Due::Arrival(trajectory),
                        );
                    }
                    None => self.over(trajectory, notice.at),
                }
            }
        }
    }

    pub(super) fn over(&mut self, trajectory: usize, at: f64) {
        self.agents[trajectory].step = 0;
        self.traces[trajectory].ended_at = Some(at);
        self.left -= 1;
        self.note_end(trajectory);
        if self.spec.end_signal {
            self.inbox.push_back(Event::TrajectoryFinished {
                trajectory: trajectory as u64,
            });
        }
    }
}
