//! What a worker sends, and what its vectors become: small combinations of vectors.

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
    /// x, its model: where its gradients are taken.
    Model,
    /// u, its local step: the learning rate times the optimizer's direction at x.
    Step,
    /// One of the algorithm's [extra](super::Algorithm::state_vectors) ones, by its number.
    State(usize),
}

/// A vector that an algorithm keeps for every worker beside the model.
///
/// ```
/// use upwash::algorithm::{StateVector, InitialValue};
/// let slow = StateVector { name: "slow momentum", start: InitialValue::Zero };
/// assert_eq!(slow.start, InitialValue::Zero);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateVector {
    /// What it is called in checkpoints.
    pub name: &'static str,
    /// What it is before the first round.
    pub start: InitialValue,
}

/// What an extra vector is before the first round.
///
/// ```
/// assert_ne!(upwash::algorithm::InitialValue::Zero, upwash::algorithm::InitialValue::Model);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialValue {
    /// Zero.
    Zero,
    /// The worker's starting model: the vector is a place that models have been at.
    Model,
}

/// A combination of a worker's own vectors.
pub type Combination = Vec<(Vector, f64)>;

/// A vector that a worker sends to its neighbors, made of its own ones.
///
/// ```
/// use upwash::algorithm::Outgoing;
/// assert!(Outgoing::model().public_copy.is_none());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// What is sent.
    pub content: Combination,
    /// Where it is sent compressed: the extra vector that everyone who hears this worker has a copy
    /// of. What travels is the compressed difference between the content and the copy, and what is
    /// received is the copy with that added.
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

    /// y = x - u, the model after it.
    ///
    /// ```
    /// # use upwash::algorithm::Outgoing;
    /// assert_eq!(Outgoing::stepped().content.len(), 2);
    /// ```
    pub fn stepped() -> Self {
        Self::of([(Vector::Model, 1.0), (Vector::Step, -1.0)])
    }

    /// Any combination.
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

/// One vector's new value: a sum of own vectors, of messages, and of the mean of everyone's message.
///
/// ```
/// use upwash::algorithm::{Assignment, Vector};
/// let keep_step: Assignment = Assignment::of(Vector::State(0), [(Vector::Step, 1.0)]);
/// assert!(keep_step.messages.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment<S = WorkerId> {
    /// Which vector.
    pub target: Vector,
    /// Own vectors and their weights.
    pub own: Combination,
    /// (sender, weight) of its message `number`, in increasing order of the sender; the worker's own
    /// message can be one of them. Algorithms name workers, engines rows.
    pub messages: Vec<(S, f64)>,
    /// Which of the senders' messages.
    pub message_index: usize,
    /// Weight of the mean of everyone's message: what an all-reduce gives.
    pub mean: f64,
}

impl<S: Copy + Ord> Assignment<S> {
    /// From own vectors alone.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let nothing: Assignment = Assignment::of(Vector::Model, []);
    /// assert_eq!(nothing.mean, 0.0);
    /// ```
    pub fn of(target: Vector, own: impl Into<Combination>) -> Self {
        Self { target, own: own.into(), messages: vec![], message_index: 0, mean: 0.0 }
    }

    /// From the first message of some senders.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let pair = Assignment::mixed(Vector::Model, vec![(2, 0.5), (5, 0.5)]);
    /// assert_eq!(pair.messages.len(), 2);
    /// ```
    pub fn mixed(target: Vector, messages: Vec<(S, f64)>) -> Self {
        Self { messages, ..Self::of(target, []) }
    }

    /// The mean of everyone's message `number`.
    ///
    /// ```
    /// # use upwash::algorithm::{Assignment, Vector};
    /// let mean: Assignment = Assignment::averaged(Vector::Model, 0);
    /// assert_eq!(mean.mean, 1.0);
    /// ```
    pub fn averaged(target: Vector, message_index: usize) -> Self {
        Self { mean: 1.0, message_index, ..Self::of(target, []) }
    }

    /// Multiplies every weight.
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
            Err(place) => self.messages.insert(place, (sender, weight)),
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

    /// The sum of the messages that `worker` hears, as differences from its own message, or from the
    /// first one where its own is not among them; none where there are no messages.
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
/// Weights that sum to 1 do not when each is rounded to single precision. In this form a row of a mixing
/// matrix counts the reference exactly once, and workers that weigh each other alike exchange exactly
/// opposite differences: rounding a weight neither grows nor moves the mean of all models, however many
/// rounds it is repeated for.
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
    /// The sender that the others are compared with.
    pub reference: S,
    /// What its message counts by itself.
    pub weight: f64,
    /// (sender, weight) of the difference between its message and the reference.
    pub others: Vec<(S, f64)>,
}

impl<S: Copy + PartialEq> Differences<S> {
    /// The sum of these messages, relative to that of `reference`, which is one of them.
    ///
    /// ```
    /// # use upwash::algorithm::Differences;
    /// let pulled = Differences::from(0, &[(0, -0.1), (3, 0.1)]); // 0.1 of the way from 0 to 3
    /// assert_eq!((pulled.weight, pulled.others), (0.0, vec![(3, 0.1)]));
    /// ```
    pub fn from(reference: S, messages: &[(S, f64)]) -> Self {
        let sum: f64 = messages.iter().map(|entry| entry.1).sum();
        let size: f64 = messages.iter().map(|entry| entry.1.abs()).sum();
        // A sum that is whole but for rounding is whole.
        let whole = (sum - sum.round()).abs() <= 1e-12 * size;
        let others = messages.iter().filter(|e| e.0 != reference && e.1 != 0.0);
        Self { reference, weight: if whole { sum.round() } else { sum }, others: others.copied().collect() }
    }
}

/// What becomes of a worker's vectors in an exchange: assignments, carried out in order.
///
/// ```
/// use upwash::algorithm::{Assignment, Plan, Vector};
/// // Worker 2 of a pair adapts, then combines: the mean of both stepped models.
/// let plan = Plan::from(Assignment::mixed(Vector::Model, vec![(2, 0.5), (5, 0.5)]));
/// assert_eq!(plan.assignments.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S = WorkerId> {
    /// In their order: one may use what an earlier one made.
    pub assignments: Vec<Assignment<S>>,
    /// The worker's new [number](super::WorkerStats::number), where it changes.
    pub scalar: Option<f64>,
    /// Whom the worker follows, for those who watch: its best neighbor and its best-connected one, or
    /// the leaders of its group and of all.
    pub leaders: Option<[WorkerId; 2]>,
}

/// Nothing changes.
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
    /// The worker keeps to itself: x' = x - u.
    ///
    /// ```
    /// # use upwash::algorithm::Plan;
    /// let alone: Plan = Plan::alone();
    /// assert!(alone.assignments[0].messages.is_empty());
    /// ```
    pub fn alone() -> Self {
        Assignment::of(Vector::Model, Outgoing::stepped().content).into()
    }

    /// The assignment that makes the model, for what is added to it. A plan that has none gets one
    /// that leaves the model as it is.
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
                let same = Assignment::of(Vector::Model, [(Vector::Model, 1.0)]);
                self.assignments.push(same);
                self.assignments.len() - 1
            }
        };
        &mut self.assignments[index]
    }
}

/// A worker's part in an exchange.
///
/// ```
/// use upwash::algorithm::{Outgoing, WorkerPlan, Plan};
/// let part = WorkerPlan { worker: 3, messages: vec![Outgoing::model()], plan: Plan::alone() };
/// assert_eq!(part.worker, 3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerPlan {
    /// Whose.
    pub worker: WorkerId,
    /// What it sends.
    pub messages: Vec<Outgoing>,
    /// What its vectors become.
    pub plan: Plan,
}
