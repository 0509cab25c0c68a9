//! Random planning problems under the size-only cost, what holds of every plan, and the problem's definition enumerated.

// Each test program uses its part of this.
#![allow(dead_code)]

pub mod brute;

use heddle_core::solver::{Cooling, CostKind, Plan, Profile, Request, SolverKind, Workload};

/// xorshift64*: the instances are the same on every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn unit(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 53) as f64
    }
}

/// To a multiple of 2^-10: such a number survives JSON bit by bit.
pub fn short(value: f64) -> f64 {
    (value * 1024.0).round().max(1.0) / 1024.0
}

/// One random problem under the size-only cost.
pub struct Instance {
    pub lengths: Vec<f64>,
    pub gpus: u32,
    /// Highest first.
    pub degrees: Vec<u32>,
    pub t: Vec<f64>,
    pub f: Vec<Vec<f64>>,
}

impl Instance {
    /// `strict`: lengths differ and F rises strictly, so that the lexicographic optimum is unique.
    /// Otherwise ties and flat stretches of F are common, and a higher degree need not be faster.
    pub fn random(random: &mut Random, most: u64, strict: bool) -> Self {
        let n = 1 + random.below(most) as usize;
        let whole_numbers = !strict && random.below(2) == 0;
        let lengths = (0..n)
            .map(|_| {
                if whole_numbers {
                    (1 + random.below(6)) as f64
                } else {
                    1.0 + 1000.0 * random.unit().powi(3)
                }
            })
            .collect();
        let mut degrees: Vec<u32> = [8, 4, 3, 2, 1]
            .into_iter()
            .filter(|_| random.below(2) == 0)
            .collect();
        if degrees.is_empty() {
            degrees.push(1);
        }
        let smallest = degrees[degrees.len() - 1];
        let gpus = smallest + random.below(8) as u32;
        degrees.retain(|&degree| degree <= gpus);
        let t = degrees
            .iter()
            .map(|&degree| {
                short(if random.below(3) == 0 {
                    0.01 + random.unit()
                } else {
                    1.0 / f64::from(degree).sqrt()
                })
            })
            .collect();
        let f = degrees
            .iter()
            .map(|_| {
                let entries = if strict {
                    n
                } else {
                    1 + random.below(n as u64) as usize
                };
                let mut factor = 1.0;
                (0..entries)
                    .map(|_| {
                        let now = factor;
                        if strict || random.below(3) > 0 {
                            factor += short(0.01 + random.unit().powi(2));
                        }
                        now
                    })
                    .collect()
            })
            .collect();
        Self {
            lengths,
            gpus,
            degrees,
            t,
            f,
        }
    }

    pub fn profile(&self) -> Profile {
        let degrees: serde_json::Map<String, serde_json::Value> = self
            .degrees
            .iter()
            .zip(self.t.iter().zip(&self.f))
            .map(|(degree, (t, f))| (degree.to_string(), serde_json::json!({"T": t, "F": f})))
            .collect();
        Profile::parse(&serde_json::json!({ "degrees": degrees }).to_string())
            .expect("the profile is valid")
    }

    pub fn request(&self, solver: SolverKind) -> Request<'_> {
        Request {
            lengths: &self.lengths,
            sigmas: &[],
            gpus: self.gpus,
            degrees: &self.degrees,
            workers: &[],
            solver,
            cost: CostKind::SizeOnly,
            workload: Workload::default(),
            aggregate_below: 0.0,
            seed: 7,
            cooling: Cooling::default(),
        }
    }

    /// The paper's cost, written out.
    pub fn cost(&self, longest: f64, size: usize, shape: usize) -> f64 {
        let factors = &self.f[shape];
        longest * (self.t[shape] * factors[size.min(factors.len()) - 1])
    }

    pub fn group_costs(&self) -> Vec<Vec<f64>> {
        (0..1usize << self.lengths.len())
            .map(|group| {
                let members = (0..self.lengths.len()).filter(|member| group & (1 << member) != 0);
                let longest = members
                    .map(|member| self.lengths[member])
                    .fold(0.0, f64::max);
                let size = group.count_ones() as usize;
                (0..self.degrees.len())
                    .map(|shape| {
                        if size == 0 {
                            0.0
                        } else {
                            self.cost(longest, size, shape)
                        }
                    })
                    .collect()
            })
            .collect()
    }

    /// A random multiset of the degrees that fits into the GPUs, at least one worker.
    pub fn some_workers(&self, random: &mut Random) -> Vec<u32> {
        let mut left = self.gpus;
        let mut workers = Vec::new();
        loop {
            let fitting: Vec<u32> = self
                .degrees
                .iter()
                .copied()
                .filter(|&degree| degree <= left)
                .collect();
            if fitting.is_empty() || (!workers.is_empty() && random.below(5) == 0) {
                return workers;
            }
            let degree = fitting[random.below(fitting.len() as u64) as usize];
            left -= degree;
            workers.push(degree);
        }
    }
}

/// What holds of every plan: each trajectory once, costs as defined, consecutive ranks, GPUs within
/// the limit.
pub fn check(instance: &Instance, plan: &Plan, at: &str) {
    let mut seen = vec![false; instance.lengths.len()];
    let mut last = f64::INFINITY;
    for worker in plan
        .workers
        .iter()
        .filter(|worker| !worker.members.is_empty())
    {
        let shape = instance
            .degrees
            .iter()
            .position(|&degree| degree == worker.degree)
            .expect("an allowed degree");
        let longest = instance.lengths[worker.members[0] as usize];
        assert_eq!(
            worker.cost.to_bits(),
            instance
                .cost(longest, worker.members.len(), shape)
                .to_bits(),
            "{at}: cost"
        );
        for &member in &worker.members {
            assert!(
                !std::mem::replace(&mut seen[member as usize], true),
                "{at}: {member} is placed twice"
            );
            assert!(
                instance.lengths[member as usize] <= last,
                "{at}: ranks are not consecutive"
            );
            last = instance.lengths[member as usize];
        }
    }
    assert!(
        seen.iter().all(|&seen| seen),
        "{at}: a trajectory is left out"
    );
    assert_eq!(
        plan.gpus_used,
        plan.workers.iter().map(|worker| worker.degree).sum::<u32>()
    );
    assert!(plan.gpus_used <= instance.gpus, "{at}: too many GPUs");
    let most = plan
        .workers
        .iter()
        .map(|worker| worker.cost)
        .fold(0.0, f64::max);
    assert_eq!(plan.makespan.to_bits(), most.to_bits());
}

pub fn sorted_costs(plan: &Plan) -> Vec<f64> {
    let mut costs: Vec<f64> = plan
        .workers
        .iter()
        .map(|worker| worker.cost)
        .filter(|&cost| cost > 0.0)
        .collect();
    costs.sort_by(|a, b| b.total_cmp(a));
    costs
}
