//! A reference implementation of plans in double precision: every vector is a single number.

// Not every test file uses all items.
#![allow(dead_code)]

use upwash::WorkerId;
use upwash::algorithm::{
    Algorithm, AsyncStep, Asynchronous, ExchangeContext, InitialValue, Outgoing, Vector, WorkerPlan, WorkerStats,
};
use upwash_topology::{Round, Schedule};

/// Worker i minimizes F_i(x) = a_i (x - b_i)^2 / 2, with exact gradients.
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

    /// The minimizer of the sum of all F_i.
    pub fn optimum(&self) -> f64 {
        let weighted: f64 = self.a.iter().zip(&self.b).map(|(a, b)| a * b).sum();
        weighted / self.a.iter().sum::<f64>()
    }
}

/// The vectors of all workers.
#[derive(Clone, Debug)]
pub struct Simulation {
    pub x: Vec<f64>,
    pub u: Vec<f64>,
    pub state_vectors: Vec<Vec<f64>>,
    pub scalars: Vec<f64>,
    pub server: Option<WorkerId>,
    pub momentum: f64,
    /// The learning rate of the previous round.
    pub previous_rate: Option<f64>,
}

impl Simulation {
    pub fn new(algorithm: &dyn Algorithm, x: &[f64]) -> Self {
        let initial = |start| match start {
            InitialValue::Zero => vec![0.0; x.len()],
            InitialValue::Model => x.to_vec(),
        };
        let state_vectors = algorithm.state_vectors();
        Self { state_vectors: state_vectors.iter().map(|vector| initial(vector.start)).collect(), ..Self::plain(x) }
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

    fn own(&self, worker: WorkerId, vector: Vector) -> f64 {
        match vector {
            Vector::Model => self.x[worker],
            Vector::Step => self.u[worker],
            Vector::State(k) => self.state_vectors[k][worker],
        }
    }

    fn sum(&self, worker: WorkerId, content: &[(Vector, f64)]) -> f64 {
        let term = |(vector, weight): &(Vector, f64)| weight * self.own(worker, *vector);
        content.iter().map(term).sum()
    }

    /// The value that receivers get of a message. Compression does not change a single number.
    fn send(&mut self, worker: WorkerId, message: &Outgoing) -> f64 {
        let value = self.sum(worker, &message.content);
        if let Some((copy, _)) = message.public_copy {
            self.state_vectors[copy][worker] = value;
        }
        value
    }

    pub fn carry_out(&mut self, plans: &[WorkerPlan]) {
        let sent: Vec<(WorkerId, Vec<f64>)> = plans
            .iter()
            .map(|plan| {
                let all = plan.messages.iter();
                let all = all.map(|message| self.send(plan.worker, message));
                (plan.worker, all.collect())
            })
            .collect();
        let sent = |worker: WorkerId, index: usize| {
            let found = sent.iter().find(|entry| entry.0 == worker);
            found.unwrap_or_else(|| panic!("worker {worker} has no plan")).1[index]
        };
        for plan in plans {
            for assignment in &plan.plan.assignments {
                let received = assignment.messages.iter();
                let received: f64 = received.map(|&(j, w)| w * sent(j, assignment.message_index)).sum();
                let counted = plans.iter().filter(|p| Some(p.worker) != self.server);
                let all: Vec<f64> = match assignment.mean {
                    0.0 => vec![0.0],
                    _ => counted.map(|p| sent(p.worker, assignment.message_index)).collect(),
                };
                let mean = all.iter().sum::<f64>() / all.len() as f64;
                let own = self.sum(plan.worker, &assignment.own);
                let value = own + received + assignment.mean * mean;
                match assignment.target {
                    Vector::Model => self.x[plan.worker] = value,
                    Vector::State(k) => self.state_vectors[k][plan.worker] = value,
                    Vector::Step => panic!("algorithms do not assign steps"),
                }
            }
            if let Some(scalar) = plan.plan.scalar {
                self.scalars[plan.worker] = scalar;
            }
        }
    }

    /// Carries out the exchanges of a round with the current steps u.
    pub fn exchange(&mut self, algorithm: &dyn Algorithm, round: &Round, rate: f64, losses: &[f64]) {
        let degrees = round.receiver_counts();
        for (index, exchange) in algorithm.exchanges(round.index()).into_iter().enumerate() {
            let stats = |i: usize| WorkerStats { loss: Some(losses[i]), degree: degrees[i], scalar: self.scalars[i] };
            let stats: Vec<WorkerStats> = (0..self.x.len()).map(stats).collect();
            let context = ExchangeContext {
                exchange: index,
                momentum: self.momentum,
                server: self.server,
                previous_rate: self.previous_rate.unwrap_or(rate),
                ..ExchangeContext::new(round, rate)
            };
            self.carry_out(&exchange.plans(algorithm, &context, &stats));
        }
        self.previous_rate = Some(rate);
    }

    /// Carries out a whole round on quadratics.
    pub fn round(&mut self, algorithm: &dyn Algorithm, schedule: &Schedule, k: u64, rate: f64, problem: &Quadratics) {
        for i in 0..self.x.len() {
            let trains = Some(WorkerId(i)) != self.server;
            let step = if trains { problem.gradient(i, self.x[i]) } else { 0.0 };
            self.u[i] = rate * step;
        }
        let losses = (0..self.x.len()).map(|i| problem.loss(i, self.x[i]));
        let losses: Vec<f64> = losses.collect();
        self.exchange(algorithm, &schedule.round(k), rate, &losses);
    }

    /// Carries out one step of a worker in an asynchronous algorithm, with its current step u.
    pub fn async_step(&mut self, algorithm: &dyn Asynchronous, worker: usize, step: u64, neighbors: &[usize]) {
        let worker = WorkerId(worker);
        let step = AsyncStep {
            worker,
            step,
            neighbors,
            server: self.server,
            training: self.x.len() - usize::from(self.server.is_some()),
            scalar: self.scalars[worker],
            seed: 1,
        };
        let partner = algorithm.partner(&step);
        let partner = partner.map(|partner| (partner, self.scalars[partner]));
        self.carry_out(&algorithm.update(&step, partner).plans);
    }
}
