//! Algorithms as rounds.
//!
//! Stack the workers' models as the rows of X, and their local steps (learning rate times the
//! optimizer's direction) as U. A synchronous algorithm is X' = A X - C U, with small sparse A and C
//! that change from round to round, and an [`Algorithm`] says what worker i's rows of them are. It
//! knows numbers only: it never touches a tensor, a thread or a socket, and it computes worker i's
//! row from what worker i knows (the schedule, and the messages that it got), so that it runs
//! unchanged in one process and over a network.

mod al_dsgd;
mod dpsgd;

pub use al_dsgd::{AlDsgd, LeaderScope, Pull, Variant};
pub use dpsgd::Dpsgd;

use upwash_topology::Round;

/// What a worker sends to its neighbours: one vector made of its own.
///
/// ```
/// use upwash::algorithm::Message;
/// assert_ne!(Message::Model, Message::Stepped);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// x: the model before its local step. It can leave while the gradient is computed.
    Model,
    /// y = x - u: the model after its local step.
    Stepped,
}

/// What a message says of its sender beside the vector.
///
/// ```
/// use upwash::algorithm::Report;
/// let report = Report { loss: Some(0.7), degree: 3 };
/// assert_eq!(report.degree, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The sender's loss on its batch: of this round, or of the one before where the message leaves
    /// before the gradient; none where there was no such round.
    pub loss: Option<f64>,
    /// How many links of the sender are up in this round.
    pub degree: usize,
}

/// What worker `worker` knows when it mixes.
///
/// ```
/// use upwash::algorithm::{Report, View};
/// use upwash_topology::{GraphSpec, Schedule, Weights};
/// let ring = "ring:4".parse::<GraphSpec>()?.build()?;
/// let round = Schedule::fixed(&ring, &Weights::Optimal)?.round(0);
/// let report = Report { loss: Some(1.0), degree: 2 };
/// let view = View { worker: 0, round: &round, rate: 0.1, own: report, received: &[(1, report), (3, report)] };
/// assert_eq!(view.received.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Who mixes.
    pub worker: usize,
    /// The links and weights in force.
    pub round: &'a Round,
    /// gamma, the learning rate of this round.
    pub rate: f64,
    /// Its own report, as it sent it.
    pub own: Report,
    /// The reports of the messages that it got, by sender, in increasing order.
    pub received: &'a [(usize, Report)],
}

/// Worker i's rows of A and C, in the terms of what it has: its new model is the weighted sum of
/// the messages (its own included), plus `own_update` times its own u.
///
/// ```
/// use upwash::algorithm::Plan;
/// // Worker 2 of a pair adapts, then combines: the mean of both stepped models.
/// let plan = Plan { messages: vec![(2, 0.5), (5, 0.5)], own_update: 0.0 };
/// assert_eq!(plan.messages.len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// (sender, weight), in increasing order of the sender; the worker's own message is one of them.
    pub messages: Vec<(usize, f64)>,
    /// What is added of the worker's own step: -1 where the messages are models before theirs.
    pub own_update: f64,
}

impl Plan {
    /// The worker keeps to itself: a plain local step.
    ///
    /// ```
    /// use upwash::algorithm::{Message, Plan};
    /// assert_eq!(Plan::alone(3, Message::Stepped).messages, [(3, 1.0)]);
    /// assert_eq!(Plan::alone(3, Message::Model).own_update, -1.0);
    /// ```
    pub fn alone(worker: usize, message: Message) -> Self {
        let own_update = match message {
            Message::Model => -1.0,
            Message::Stepped => 0.0,
        };
        Self {
            messages: vec![(worker, 1.0)],
            own_update,
        }
    }

    /// Adds to the weight of a message, which becomes part of the plan if it was none.
    pub(crate) fn add(&mut self, sender: usize, weight: f64) {
        match self.messages.binary_search_by_key(&sender, |entry| entry.0) {
            Ok(found) => self.messages[found].1 += weight,
            Err(place) => self.messages.insert(place, (sender, weight)),
        }
    }

    /// Multiplies the weights of all messages.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.messages.iter_mut().for_each(|entry| entry.1 *= factor);
    }
}

/// A synchronous algorithm.
///
/// ```
/// use upwash::algorithm::{Algorithm, Message, Plan, View};
///
/// /// Everyone averages with whoever reports the lowest loss.
/// #[derive(Debug)]
/// struct FollowTheBest;
///
/// impl Algorithm for FollowTheBest {
///     fn message(&self) -> Message {
///         Message::Stepped
///     }
///     fn plan(&self, view: &View<'_>) -> Plan {
///         let best = view.received.iter().min_by(|a, b| a.1.loss.partial_cmp(&b.1.loss).unwrap());
///         let mut messages = vec![(view.worker, if best.is_some() { 0.5 } else { 1.0 })];
///         messages.extend(best.map(|&(sender, _)| (sender, 0.5)));
///         messages.sort_by_key(|entry| entry.0);
///         Plan { messages, own_update: 0.0 }
///     }
/// }
/// ```
pub trait Algorithm: std::fmt::Debug + Send + Sync {
    /// What everyone sends.
    fn message(&self) -> Message;

    /// Worker `view.worker`'s rows in this round.
    fn plan(&self, view: &View<'_>) -> Plan;
}
