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
/// assert!(Message::Early.is_before_gradient() && !Message::Model.is_before_gradient());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// x, the model before its local step, sent before the gradient is known: the exchange can run
    /// while it is computed. The loss in it is the last round's.
    Early,
    /// x, sent together with the loss of this round's gradient.
    Model,
    /// y = x - u: the model after its local step.
    Stepped,
}

impl Message {
    /// Whether it leaves before the round's gradient, and so carries the loss of the one before.
    ///
    /// ```
    /// # use upwash::algorithm::Message;
    /// assert!(!Message::Stepped.is_before_gradient());
    /// ```
    pub fn is_before_gradient(self) -> bool {
        self == Self::Early
    }

    /// What a worker adds of its own step to the messages for a whole one: 0 where they have it.
    ///
    /// ```
    /// # use upwash::algorithm::Message;
    /// assert_eq!(Message::Stepped.own_update(), 0.0);
    /// ```
    pub fn own_update(self) -> f64 {
        match self {
            Self::Early | Self::Model => -1.0,
            Self::Stepped => 0.0,
        }
    }
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

impl View<'_> {
    /// Metropolis weights from the degrees that the messages carry: what any vector can be averaged
    /// with that must not get a negative weight.
    ///
    /// ```
    /// # use upwash::algorithm::{Report, View};
    /// # use upwash_topology::{GraphSpec, Schedule, Weights};
    /// # let ring = "ring:4".parse::<GraphSpec>()?.build()?;
    /// # let round = Schedule::fixed(&ring, &Weights::Optimal)?.round(0);
    /// # let report = |degree| Report { loss: None, degree };
    /// let view = View { worker: 0, round: &round, rate: 0.1, own: report(1), received: &[(3, report(3))] };
    /// assert_eq!(view.metropolis().messages, [(0, 0.75), (3, 0.25)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metropolis(&self) -> Plan {
        let mut plan = Plan {
            messages: vec![(self.worker, 1.0)],
            own_update: 0.0,
        };
        for (sender, report) in self.received {
            let weight = 1.0 / (1 + report.degree.max(self.own.degree)) as f64;
            plan.add(*sender, weight);
            plan.add(self.worker, -weight);
        }
        plan
    }
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
        Self {
            messages: vec![(worker, 1.0)],
            own_update: message.own_update(),
        }
    }

    /// Adds to the weight of a message, which becomes part of the plan if it was none.
    pub(crate) fn add(&mut self, sender: usize, weight: f64) {
        match self.messages.binary_search_by_key(&sender, |entry| entry.0) {
            Ok(found) => self.messages[found].1 += weight,
            Err(place) => self.messages.insert(place, (sender, weight)),
        }
    }

    /// The weight of a message: 0 where it is no part of the plan.
    pub(crate) fn weight(&self, sender: usize) -> f64 {
        let found = self.messages.binary_search_by_key(&sender, |entry| entry.0);
        found.map_or(0.0, |place| self.messages[place].1)
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
