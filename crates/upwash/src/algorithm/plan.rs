//! Plans: what a worker sends and what its vectors become, as short linear combinations of vectors.

use crate::compress::Compression;
use crate::ids::WorkerId;

/// A vector that a worker keeps.
///
/// ```
/// use upwash::algorithm::{Outgoing, Vector};
/// assert_eq!(Outgoing::stepped().content, [(Vector::Model, 1.0), (Vector::Step, -1.0)]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vector {
    /// x, the worker's model: where its gradients are evaluated.
    Model,
    /// u, the worker's local step: the learning rate times the optimizer's direction at x.
    Step,
    /// One of the algorithm's [state vectors](super::Algorithm::state_vectors), by index.
    State(usize),
}

/// A vector that an algorithm keeps for every worker besides the model.
///
/// ```
/// use upwash::algorithm::{StateVector, InitialValue};
/// let slow = StateVector { name: "slow momentum", start: InitialValue::Zero };
/// assert_eq!(slow.start, InitialValue::Zero);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateVector {
    /// Its name in checkpoints.
    pub name: &'static str,
    /// Its value before the first round.
    pub start: InitialValue,
}

/// The value of a state vector before the first round.
///
/// ```
/// assert_ne!(upwash::algorithm::InitialValue::Zero, upwash::algorithm::InitialValue::Model);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialValue {
    /// Zero.
    Zero,
    /// The worker's starting model, for a vector that remembers a former position of the model.
    Model,
}

/// A linear combination of a worker's own vectors.
pub type Combination = Vec<(Vector, f64)>;

/// A message that a worker sends: a combination of its own vectors.
///
/// ```
/// use upwash::algorithm::Outgoing;
/// assert!(Outgoing::model().public_copy.is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outgoing {
    /// The vector that is sent.
    pub content: Combination,
    /// For a compressed message: the index of the state vector that is the public copy, which every receiver also
    /// keeps, and the compression. The worker sends the compressed difference between the content and the copy.
    /// Receivers add it to the copy and use the result.
    pub public_copy: Option<(usize, Compression)>,
}

impl Outgoing {
    /// x, the model before the local step.
    ///
    /// ```
    /// # use upwash::algorithm::{Outgoing, Vector};
    /// assert_eq!(Outgoing::model().content, [(Vector::Model, 1.0)]);
    /// ```
    pub fn model() -> Self {
        Self::of([(Vector::Model, 1.0)])
    }

    /// y = x - u, the model after the local step.
    ///
    /// ```
    /// # use upwash::algorithm::Outgoing;
    /// assert_eq!(Outgoing::stepped().content.len(), 2);
    /// ```
    pub fn stepped() -> Self {
        Self::of([(Vector::Model, 1.0), (Vector::Step, -1.0)])
    }

    /// Any combination of the worker's vectors.
    ///
    /// ```
    /// # use upwash::algorithm::{Outgoing, Vector};
    /// assert_eq!(Outgoing::of([(Vector::Model, 1.0)]), Outgoing::model());
    /// ```
    pub fn of(content: impl Into<Combination>) -> Self {
        let (content, public_copy) = (content.into(), None);
        Self { content, public_copy }
    }
}

/// The new value of one vector: a weighted sum of own vectors, of messages, and of the mean of all workers' messages.
///
/// ```
/// use upwash::algorithm::{Assignment, Vector};
/// let keep_step: Assignment = Assignment::of(Vector::State(0), [(Vector::Step, 1.0)]);
/// assert!(keep_step.messages.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment<S = WorkerId> {
    /// The vector that gets the value.
    pub target: Vector,
    /// Own vectors and their weights.
    pub own: Combination,
    /// (sender, weight) of each message, in increasing order of senders. The worker's own message can be among them.
    /// Senders are workers in algorithms and rows in engines.
    pub messages: Vec<(S, f64)>,
    /// Which of each sender's messages is used.
    pub message_index: usize,
    /// The weight of the mean of all workers' messages, as an all-reduce computes it.
    pub mean: f64,
}

impl<S: Copy + Ord> Assignment<S> {
    /// A combination of own vectors only.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let nothing: Assignment = Assignment::of(Vector::Model, []);
    /// assert_eq!(nothing.mean, 0.0);
    /// ```
    pub fn of(target: Vector, own: impl Into<Combination>) -> Self {
        Self { target, own: own.into(), messages: vec![], message_index: 0, mean: 0.0 }
    }

    /// A weighted sum of the first messages of some senders.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let pair = Assignment::mixed(Vector::Model, vec![(2, 0.5), (5, 0.5)]);
    /// assert_eq!(pair.messages.len(), 2);
    /// ```
    pub fn mixed(target: Vector, messages: Vec<(S, f64)>) -> Self {
        Self { messages, ..Self::of(target, []) }
    }

    /// The mean of all workers' messages with index `message_index`.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let mean: Assignment = Assignment::averaged(Vector::Model, 0);
    /// assert_eq!(mean.mean, 1.0);
    /// ```
    pub fn averaged(target: Vector, message_index: usize) -> Self {
        Self { mean: 1.0, message_index, ..Self::of(target, []) }
    }

    /// Multiplies every weight by a factor.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let mut half: Assignment = Assignment::averaged(Vector::Model, 0);
    /// half.scale(0.5);
    /// assert_eq!(half.mean, 0.5);
    /// ```
    pub fn scale(&mut self, factor: f64) {
        let own = self.own.iter_mut().map(|entry| &mut entry.1);
        let weights = self.messages.iter_mut().map(|entry| &mut entry.1);
        own.chain(weights).for_each(|weight| *weight *= factor);
        self.mean *= factor;
    }

    /// Adds to the weight of a sender's message.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let mut sum = Assignment::mixed(Vector::Model, vec![(2, 0.5)]);
    /// sum.add(1, 0.25);
    /// assert_eq!(sum.messages, [(1, 0.25), (2, 0.5)]);
    /// ```
    pub fn add(&mut self, sender: S, weight: f64) {
        match self.messages.binary_search_by_key(&sender, |entry| entry.0) {
            Ok(found) => self.messages[found].1 += weight,
            Err(index) => self.messages.insert(index, (sender, weight)),
        }
    }

    /// Adds to the weight of an own vector.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let mut sum: Assignment = Assignment::of(Vector::Model, [(Vector::Step, -1.0)]);
    /// sum.add_own(Vector::Model, 1.0);
    /// assert_eq!(sum.own.len(), 2);
    /// ```
    pub fn add_own(&mut self, vector: Vector, weight: f64) {
        match self.own.iter_mut().find(|entry| entry.0 == vector) {
            Some(entry) => entry.1 += weight,
            None => self.own.push((vector, weight)),
        }
    }

    /// The sum of the messages, written as differences from the message of `worker`, or from the first message with a
    /// nonzero weight if that of `worker` is not among them. `None` if there are no messages.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let copied = Assignment::mixed(Vector::Model, vec![(2, 1.0)]).differences(0);
    /// assert!(copied.is_some_and(|copied| copied.reference == 2 && copied.others.is_empty()));
    /// ```
    pub fn differences(&self, worker: S) -> Option<Differences<S>> {
        let listed = self.messages.iter().any(|entry| entry.0 == worker);
        let used = self.messages.iter().find(|entry| entry.1 != 0.0);
        let reference = match listed {
            true => worker,
            false => used?.0,
        };
        Some(Differences::from(reference, &self.messages))
    }

    /// The weight of a sender's message.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// assert_eq!(Assignment::mixed(Vector::Model, vec![(2, 0.5)]).weight(2), 0.5);
    /// ```
    pub fn weight(&self, sender: S) -> f64 {
        self.messages.binary_search_by_key(&sender, |entry| entry.0).map_or(0.0, |found| self.messages[found].1)
    }
}

/// A weighted sum of messages, written as differences from one of them, the reference r:
/// `weight` m_r + sum_j w_j (m_j - m_r), where `weight` is the sum of all weights.
///
/// Weights that sum to 1 no longer do so after each is rounded to single precision. In this form a row of a mixing
/// matrix counts the reference exactly once, and two workers with the same weight for each other exchange exactly
/// opposite differences. Rounding a weight therefore neither scales nor moves the mean of all models, in any number of
/// rounds.
///
/// ```
/// use upwash::algorithm::{Assignment, Differences, Vector};
/// let third = 1.0 / 3.0;
/// let row = Assignment::mixed(Vector::Model, vec![(1, third), (2, third), (5, third)]);
/// let known = Differences { reference: 2, weight: 1.0, others: vec![(1, third), (5, third)] };
/// assert_eq!(row.differences(2), Some(known));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Differences<S = WorkerId> {
    /// The sender of the reference message.
    pub reference: S,
    /// The weight of the reference message itself.
    pub weight: f64,
    /// (sender, weight) of the difference between its message and the reference.
    pub others: Vec<(S, f64)>,
}

impl<S: Copy + PartialEq> Differences<S> {
    /// The sum of these messages, relative to the message of `reference`, which is one of the senders.
    ///
    /// ```
    /// # use upwash::algorithm::Differences;
    /// let pulled = Differences::from(0, &[(0, -0.1), (3, 0.1)]); // 0.1 of the way from 0 to 3
    /// assert_eq!((pulled.weight, pulled.others), (0.0, vec![(3, 0.1)]));
    /// ```
    pub fn from(reference: S, messages: &[(S, f64)]) -> Self {
        let sum: f64 = messages.iter().map(|entry| entry.1).sum();
        let size: f64 = messages.iter().map(|entry| entry.1.abs()).sum();
        // A sum that is an integer up to rounding counts as that integer.
        let is_integer = (sum - sum.round()).abs() <= 1e-12 * size;
        let others = messages.iter().filter(|e| e.0 != reference && e.1 != 0.0);
        Self { reference, weight: if is_integer { sum.round() } else { sum }, others: others.copied().collect() }
    }
}

/// The new values of a worker's vectors in an exchange: assignments, carried out in order.
///
/// ```
/// use upwash::WorkerId;
/// use upwash::algorithm::{Assignment, Plan, Vector};
/// // Worker 2 of a pair adapts, then combines: the mean of both stepped models.
/// let pair = [WorkerId(2), WorkerId(5)].map(|sender| (sender, 0.5));
/// let plan = Plan::from(Assignment::mixed(Vector::Model, pair.into()));
/// assert_eq!(plan.assignments.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S = WorkerId> {
    /// The assignments in order. Each may use the results of earlier ones.
    pub assignments: Vec<Assignment<S>>,
    /// The worker's new [scalar](super::WorkerStats::scalar), if it changes.
    pub scalar: Option<f64>,
    /// The leaders of the worker, for events and observers: its best and its best-connected neighbor, or the leaders of
    /// its group and of all workers.
    pub leaders: Option<[WorkerId; 2]>,
}

/// A plan that changes nothing.
impl<S> Default for Plan<S> {
    fn default() -> Self {
        Self { assignments: vec![], scalar: None, leaders: None }
    }
}

impl<S> From<Assignment<S>> for Plan<S> {
    fn from(assignment: Assignment<S>) -> Self {
        [assignment].into()
    }
}

impl<S, const N: usize> From<[Assignment<S>; N]> for Plan<S> {
    fn from(assignments: [Assignment<S>; N]) -> Self {
        let assignments = assignments.into();
        Self { assignments, scalar: None, leaders: None }
    }
}

impl<S: Copy + Ord> Plan<S> {
    /// The worker takes its step alone: x' = x - u.
    ///
    /// ```
    /// # use upwash::algorithm::Plan;
    /// let alone: Plan = Plan::alone();
    /// assert!(alone.assignments[0].messages.is_empty());
    /// ```
    pub fn alone() -> Self {
        Assignment::of(Vector::Model, Outgoing::stepped().content).into()
    }

    /// The last assignment of the model, for modification. If there is none, adds one that leaves the model unchanged.
    ///
    /// ```
    /// # use upwash::algorithm::Plan;
    /// Plan::alone().model().add(3, 0.1);
    /// ```
    pub fn model(&mut self) -> &mut Assignment<S> {
        let found = |assignment: &Assignment<S>| assignment.target == Vector::Model;
        let index = match self.assignments.iter().rposition(found) {
            Some(index) => index,
            None => {
                let unchanged = Assignment::of(Vector::Model, [(Vector::Model, 1.0)]);
                self.assignments.push(unchanged);
                self.assignments.len() - 1
            }
        };
        &mut self.assignments[index]
    }
}

/// The messages and the plan of one worker in an exchange.
///
/// ```
/// use upwash::algorithm::{Outgoing, WorkerPlan, Plan};
/// let part = WorkerPlan { worker: 3.into(), messages: vec![Outgoing::model()], plan: Plan::alone() };
/// assert_eq!(part.worker.to_string(), "3");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerPlan {
    /// The worker.
    pub worker: WorkerId,
    /// The messages that it sends.
    pub messages: Vec<Outgoing>,
    /// The new values of its vectors.
    pub plan: Plan,
}
