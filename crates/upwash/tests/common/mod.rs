//! Algorithms in double precision, by the definition of their plans: one number a worker.

// Not every test file uses all of it.
#![allow(dead_code)]

use upwash::algorithm::{
    Algorithm, AsyncStep, Asynchronous, ExchangeContext, InitialValue, Outgoing, Vector, WorkerPlan, WorkerStats,
};
use upwash_topology::{Round, Schedule};

/// Worker i has F_i(x) = a_i (x - b_i)^2 / 2, with exact gradients.
#[derive(Clone)]
pub struct Quadratics {
    pub a: Vec<f64>,
    pub b: Vec<f64>,
}

impl Quadratics {
    pub fn gradient(&self, i: usize, x: f64) -> f64 {
        self.a[i] * (x - self.b[i])
    }

    pub fn loss(&self, i: usize, x: f64) -> f64 {
        self.a[i] * (x - self.b[i]).powi(2) / 2.0
    }

    /// Where the sum of all is least.
    pub fn optimum(&self) -> f64 {
        let weighted: f64 = self.a.iter().zip(&self.b).map(|(a, b)| a * b).sum();
        weighted / self.a.iter().sum::<f64>()
    }
}

/// Everyone's vectors.
#[derive(Clone, Debug)]
pub struct Machine {
    pub x: Vec<f64>,
    pub u: Vec<f64>,
    pub state_vectors: Vec<Vec<f64>>,
    pub scalars: Vec<f64>,
    pub server: Option<usize>,
    pub momentum: f64,
    /// The last round's rate.
    pub previous_rate: Option<f64>,
}

impl Machine {
    pub fn new(algorithm: &dyn Algorithm, x: &[f64]) -> Self {
        let extra = |start| match start {
            InitialValue::Zero => vec![0.0; x.len()],
            InitialValue::Model => x.to_vec(),
        };
        let state_vectors = algorithm.state_vectors();
        Self { state_vectors: state_vectors.iter().map(|e| extra(e.start)).collect(), ..Self::plain(x) }
    }

    pub fn plain(x: &[f64]) -> Self {
        Self {
            x: x.to_vec(),
            u: vec![0.0; x.len()],
            state_vectors: vec![],
            scalars: vec![1.0; x.len()],
            server: None,
            momentum: 0.0,
            previous_rate: None,
        }
    }

    fn own(&self, worker: usize, vector: Vector) -> f64 {
        match vector {
            Vector::Model => self.x[worker],
            Vector::Step => self.u[worker],
            Vector::State(k) => self.state_vectors[k][worker],
        }
    }

    fn sum(&self, worker: usize, content: &[(Vector, f64)]) -> f64 {
        let term = |(vector, weight): &(Vector, f64)| weight * self.own(worker, *vector);
        content.iter().map(term).sum()
    }

    /// What arrives of a message; compression of a single number is none.
    fn arrives(&mut self, worker: usize, message: &Outgoing) -> f64 {
        let value = self.sum(worker, &message.content);
        if let Some((copy, _)) = message.public_copy {
            self.state_vectors[copy][worker] = value;
        }
        value
    }

    pub fn carry_out(&mut self, parts: &[WorkerPlan]) {
        let sent: Vec<(usize, Vec<f64>)> = parts
            .iter()
            .map(|part| {
                let all = part.messages.iter();
                let all = all.map(|message| self.arrives(part.worker, message));
                (part.worker, all.collect())
            })
            .collect();
        let sent = |worker: usize, number: usize| {
            let found = sent.iter().find(|entry| entry.0 == worker);
            found.unwrap_or_else(|| panic!("worker {worker} is not here")).1[number]
        };
        for part in parts {
            for assignment in &part.plan.assignments {
                let heard = assignment.messages.iter();
                let heard: f64 = heard.map(|&(j, w)| w * sent(j, assignment.message_index)).sum();
                let counted = parts.iter().filter(|p| Some(p.worker) != self.server);
                let all: Vec<f64> = match assignment.mean {
                    0.0 => vec![0.0],
                    _ => counted.map(|p| sent(p.worker, assignment.message_index)).collect(),
                };
                let mean = all.iter().sum::<f64>() / all.len() as f64;
                let own = self.sum(part.worker, &assignment.own);
                let value = own + heard + assignment.mean * mean;
                match assignment.target {
                    Vector::Model => self.x[part.worker] = value,
                    Vector::State(k) => self.state_vectors[k][part.worker] = value,
                    Vector::Step => panic!("steps are the optimizer's"),
                }
            }
            if let Some(number) = part.plan.scalar {
                self.scalars[part.worker] = number;
            }
        }
    }

    /// The exchanges of a round, with the steps u as they are.
    pub fn exchange(&mut self, algorithm: &dyn Algorithm, up: &Round, rate: f64, losses: &[f64]) {
        let degrees = up.receiver_counts();
        for (index, exchange) in algorithm.exchanges(up.index()).into_iter().enumerate() {
            let report = |i: usize| WorkerStats { loss: Some(losses[i]), degree: degrees[i], scalar: self.scalars[i] };
            let reports: Vec<WorkerStats> = (0..self.x.len()).map(report).collect();
            let context = ExchangeContext {
                exchange: index,
                momentum: self.momentum,
                server: self.server,
                previous_rate: self.previous_rate.unwrap_or(rate),
                ..ExchangeContext::new(up, rate)
            };
            self.carry_out(&exchange.parts(algorithm, &context, &reports));
        }
        self.previous_rate = Some(rate);
    }

    /// A whole round on quadratics.
    pub fn round(&mut self, algorithm: &dyn Algorithm, schedule: &Schedule, k: u64, rate: f64, problem: &Quadratics) {
        for i in 0..self.x.len() {
            let trains = Some(i) != self.server;
            let step = if trains { problem.gradient(i, self.x[i]) } else { 0.0 };
            self.u[i] = rate * step;
        }
        let losses = (0..self.x.len()).map(|i| problem.loss(i, self.x[i]));
        let losses: Vec<f64> = losses.collect();
        self.exchange(algorithm, &schedule.round(k), rate, &losses);
    }

    /// One worker's turn of an asynchronous algorithm, with its step u as it is.
    pub fn turn(&mut self, algorithm: &dyn Asynchronous, worker: usize, step: u64, graph: &[usize]) {
        let turn = AsyncStep {
            worker,
            step,
            neighbors: graph,
            server: self.server,
            training: self.x.len() - usize::from(self.server.is_some()),
            scalar: self.scalars[worker],
            seed: 1,
        };
        let partner = algorithm.partner(&turn);
        let partner = partner.map(|partner| (partner, self.scalars[partner]));
        self.carry_out(&algorithm.update(&turn, partner).plans);
    }
}
