//! Random requests, endings and forgettings: what the book holds stays bounded, and nothing is left behind.

#![allow(clippy::unwrap_used)]

use heddle_identity::{Attempt, Book, Identity, Limits, Request, Told};
use heddle_wire::{Answer, Dialect, read_answer, scan_body};
use proptest::prelude::*;

const CAPACITY: usize = 6;

#[derive(Clone, Debug)]
enum Act {
    /// Asks with the history of this many exchanges about this task.
    Ask {
        task: u8,
        exchanges: u8,
        attempt: u8,
        named: bool,
        tokens: bool,
    },
    /// The oldest step in flight ends, answered or not.
    End {
        done: bool,
    },
    /// Its client leaves before.
    Leave,
    Forget {
        task: u8,
    },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..3_u8, 0..4_u8, 0..4_u8, prop::bool::weighted(0.2), prop::bool::weighted(0.2)).prop_map(
            |(task, exchanges, attempt, named, tokens)| Act::Ask { task, exchanges, attempt, named, tokens },
        ),
        5 => any::<bool>().prop_map(|done| Act::End { done }),
        1 => Just(Act::Leave),
        1 => (0..3_u8).prop_map(|task| Act::Forget { task }),
    ]
}

fn body_of(task: u8, exchanges: u8, tokens: bool) -> (Vec<u8>, Dialect) {
    if tokens {
        let ids = vec![u32::from(task); 40 + usize::from(exchanges) * 40];
        return (
            format!("{{\"input_ids\": {ids:?}}}").into_bytes(),
            Dialect::Generate,
        );
    }
    let mut messages = vec![format!(r#"{{"role":"user","content":"task {task}"}}"#)];
    for at in 0..exchanges {
        messages.push(format!(r#"{{"role":"assistant","content":"answer {at}"}}"#));
        messages.push(r#"{"role":"user","content":"go on"}"#.into());
    }
    let messages = messages.join(",");
    (
        format!(r#"{{"model":"m","messages":[{messages}]}}"#).into_bytes(),
        Dialect::Chat,
    )
}

fn answer_of(exchanges: u8) -> Answer {
    let said = format!(
        r#"{{"choices":[{{"index":0,"message":{{"role":"assistant","content":"answer {exchanges}"}}}}]}}"#
    );
    read_answer(said.as_bytes(), Dialect::Chat).unwrap()
}

struct World {
    book: Book,
    running: Vec<(Identity, u8)>,
    named: u64,
    now: f64,
}

impl World {
    fn new() -> Self {
        Self {
            book: Book::new(Limits {
                capacity: CAPACITY,
                idle_ttl_s: 50.0,
            }),
            running: Vec::new(),
            named: 0,
            now: 0.0,
        }
    }

    fn carry_out(&mut self, act: &Act) {
        self.now += 0.4;
        match *act {
            Act::Ask {
                task,
                exchanges,
                attempt,
                named,
                tokens,
            } => {
                let name = format!("agent {task}");
                let (body, dialect) = body_of(task, exchanges, tokens);
                let scan = scan_body(&body, dialect).unwrap();
                let request = Request {
                    tenant: "",
                    scan: &scan,
                    body: &body,
                    attempt: Attempt::of(["", "0", "1", "2"].get(usize::from(attempt)).copied()),
                    received_at: self.now,
                    told: Told {
                        trajectory_id: named.then_some(name.as_str()),
                        ..Told::default()
                    },
                };
                self.named += 1;
                let held = (self.book.len(), self.book.keys_held());
                let mut who = self
                    .book
                    .resolve(&request, || format!("auto {}", self.named));
                assert_eq!(
                    held,
                    (self.book.len(), self.book.keys_held()),
                    "resolve changed the book"
                );
                self.book.step_started(&mut who).unwrap();
                assert!(self.book.step_started(&mut who).is_err());
                self.running.push((who, exchanges));
            }
            Act::End { done } => self.end(done),
            Act::Leave => {
                if let Some((who, _)) = self.running.first_mut() {
                    // A second time is an error, and changes nothing.
                    let _ = self.book.client_left(who, None, self.now);
                }
            }
            Act::Forget { task } => self.book.forget("", &format!("agent {task}")),
        }
    }

    fn end(&mut self, done: bool) {
        if self.running.is_empty() {
            return;
        }
        let (mut who, exchanges) = self.running.remove(0);
        let answer = done.then(|| answer_of(exchanges));
        self.book
            .step_ended(&mut who, done, answer.as_ref(), self.now)
            .unwrap();
        assert!(
            self.book
                .step_ended(&mut who, done, None, self.now)
                .is_err()
        );
    }
}

proptest! {
    #[test]
    fn nothing_is_left_behind(acts in prop::collection::vec(act(), 1..200)) {
        let mut world = World::new();
        let mut most_running = 0;
        for act in &acts {
            world.carry_out(act);
            // Those in flight are kept beyond the capacity, and dropped as others begin.
            most_running = most_running.max(world.running.len());
            prop_assert!(world.book.len() <= CAPACITY + most_running);
        }
        while !world.running.is_empty() {
            world.end(true);
        }
        for number in 0..=world.named {
            world.book.forget("", &format!("auto {number}"));
        }
        for task in 0..3 {
            world.book.forget("", &format!("agent {task}"));
        }
        prop_assert_eq!((world.book.len(), world.book.keys_held()), (0, 0));
    }
}
