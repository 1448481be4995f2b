//! Which workers communicate in an exchange, and the plan of each worker.

use super::{Algorithm, ExchangeContext, LocalView, WorkerPlan, WorkerStats};
use crate::ids::WorkerId;

/// The loss of a sender's model on a receiver's batch, by (receiver, sender).
pub(crate) type VerifiedLosses = std::collections::HashMap<(WorkerId, WorkerId), f64>;

/// Which workers communicate in an exchange.
///
/// ```
/// use upwash::algorithm::{Algorithm, AllReduce, Exchange};
/// assert_eq!(AllReduce.exchanges(0), [Exchange::Mean]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exchange {
    /// Every worker sends to its neighbors in the graph of this round.
    Neighbors,
    /// Like `Neighbors`, but messages leave before the round's gradient is known, so that the exchange runs while the
    /// gradient is computed. They carry the loss of the previous round.
    Early,
    /// An all-reduce: workers get the mean of all messages and do not see the individual ones.
    Mean,
    /// Every worker's stats go to all others. Only the messages that plans use are sent.
    Chosen,
    /// Every worker sends to the server, and the server sends to every worker.
    Server,
    /// Every worker sends to the server.
    ToServer,
    /// The server sends to every worker.
    FromServer,
    /// Nothing is sent.
    Nothing,
}

impl Exchange {
    /// The workers that a worker receives messages from, in increasing order.
    ///
    /// ```
    /// # use upwash::{WorkerId, algorithm::{Exchange, ExchangeContext}};
    /// let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
    /// let context = ExchangeContext { server: Some(WorkerId(0)), ..ExchangeContext::new(&round, 0.1) };
    /// assert_eq!(Exchange::Neighbors.senders(WorkerId(1), &context).collect::<Vec<_>>(), [WorkerId(0)]);
    /// assert_eq!(Exchange::ToServer.senders(WorkerId(0), &context).count(), 3);
    /// ```
    pub fn senders<'a>(
        self,
        worker: WorkerId,
        context: &ExchangeContext<'a>,
    ) -> Box<dyn Iterator<Item = WorkerId> + 'a> {
        let others = WorkerId::all(context.workers()).filter(move |&other| other != worker);
        let is_server = context.server == Some(worker);
        match self {
            Self::Neighbors | Self::Early => Box::new(context.round.senders(worker.0).map(WorkerId)),
            Self::Chosen => Box::new(others),
            Self::Server | Self::ToServer if is_server => Box::new(others),
            Self::Server | Self::FromServer if !is_server => Box::new(context.server.into_iter()),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// The plan of every worker, each computed from what that worker knows.
    ///
    /// ```
    /// # use upwash::{WorkerId, algorithm::{Dpsgd, Exchange, WorkerStats, ExchangeContext}};
    /// let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
    /// let stats = WorkerStats { loss: Some(1.0), degree: 1, scalar: 1.0 };
    /// let plans = Exchange::Neighbors.plans(&Dpsgd::default(), &ExchangeContext::new(&round, 0.1), &[stats; 4]);
    /// assert_eq!(plans[1].plan.assignments[0].messages, [(WorkerId(0), 0.5), (WorkerId(1), 0.5)]);
    /// ```
    pub fn plans(
        self,
        algorithm: &dyn Algorithm,
        context: &ExchangeContext<'_>,
        stats: &[WorkerStats],
    ) -> Vec<WorkerPlan> {
        self.plans_of(WorkerId::all(stats.len()), algorithm, context, stats, None)
    }

    /// The plans of some workers. Reads only their stats and those of their senders. Losses that the workers measured
    /// replace those that were claimed.
    pub(crate) fn plans_of(
        self,
        workers: impl Iterator<Item = WorkerId>,
        algorithm: &dyn Algorithm,
        context: &ExchangeContext<'_>,
        stats: &[WorkerStats],
        verified: Option<&VerifiedLosses>,
    ) -> Vec<WorkerPlan> {
        let mut received = Vec::new();
        let known = |worker: WorkerId, sender: WorkerId| match verified {
            None => stats[sender],
            // A sender cannot have more links than the schedule gives it.
            Some(losses) => WorkerStats {
                loss: losses.get(&(worker, sender)).copied(),
                degree: stats[sender].degree.min(context.round.degree(sender.0)),
                ..stats[sender]
            },
        };
        let plan = |worker: WorkerId| {
            let alone = LocalView { worker, context: *context, own: known(worker, worker), received: &[] };
            let messages = algorithm.messages(&alone);
            received.clear();
            let senders = self.senders(worker, context);
            received.extend(senders.map(|sender| (sender, known(worker, sender))));
            let plan = algorithm.plan(&LocalView { received: &received, ..alone });
            WorkerPlan { worker, messages, plan }
        };
        workers.map(plan).collect()
    }

    /// Weights for averaging vectors that must not get a negative weight. For each worker: Metropolis weights from the
    /// numbers of senders or, for an all-reduce, equal weights of all workers with data.
    pub(crate) fn safe_weights(self, context: &ExchangeContext<'_>) -> Vec<Vec<(WorkerId, f64)>> {
        let workers = WorkerId::all(context.workers());
        let counted = || workers.clone().filter(|worker| Some(*worker) != context.server);
        let degree = |worker| self.senders(worker, context).count();
        let degrees: Vec<usize> = workers.clone().map(degree).collect();
        let equal = 1.0 / counted().count().max(1) as f64;
        let row = |worker: WorkerId| {
            if self == Self::Mean {
                return counted().map(|sender| (sender, equal)).collect();
            }
            let (mut own, mut row) = (1.0, Vec::new());
            for sender in self.senders(worker, context) {
                let largest = degrees[sender].max(degrees[worker]);
                let weight = 1.0 / (1 + largest) as f64;
                own -= weight;
                row.push((sender, weight));
            }
            let index = row.partition_point(|entry: &(WorkerId, f64)| entry.0 < worker);
            row.insert(index, (worker, own));
            row
        };
        workers.clone().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::with_ids;
    use upwash_topology::Schedule;

    /// A claimed loss and a claimed number of links do not make a leader of workers that verify.
    #[test]
    fn measured_losses_replace_claims() {
        use crate::algorithm::{AlDsgd, Dpsgd, Variant};
        let ring = upwash_topology::Graph::new(4, [(0, 1), (1, 2), (2, 3), (0, 3)]).unwrap();
        let round = Schedule::fixed(&ring, &upwash_topology::Weights::Metropolis).unwrap().round(0);
        let mut stats = [WorkerStats { loss: Some(0.5), degree: 2, scalar: 1.0 }; 4];
        stats[1] = WorkerStats { loss: Some(0.0), degree: 99, scalar: 1.0 };
        let algorithm = AlDsgd::new(Box::new(Dpsgd::default()), Variant::Sound);
        let context = ExchangeContext::new(&round, 0.1);
        let leaders = |verified: Option<&VerifiedLosses>| {
            Exchange::Neighbors.plans_of(WorkerId::all(1), &algorithm, &context, &stats, verified)[0].plan.leaders
        };
        assert_eq!(leaders(None), Some([1, 1].map(WorkerId)));
        let measured = VerifiedLosses::from_iter(
            with_ids([(0, 0.4), (1, 9.0), (3, 0.3)]).map(|(sender, loss)| ((WorkerId(0), sender), loss)),
        );
        assert_eq!(leaders(Some(&measured)), Some([3, 0].map(WorkerId)));
    }

    #[test]
    fn safe_weights_are_metropolis_weights() {
        let round = Schedule::directed(4, &[(3, 0), (0, 1), (1, 3), (2, 3)]).unwrap().round(0);
        let context = ExchangeContext { server: Some(WorkerId(2)), ..ExchangeContext::new(&round, 0.1) };
        let rows = Exchange::Neighbors.safe_weights(&context);
        assert_eq!(rows[0], with_ids([(0, 1.0 - 1.0 / 3.0), (3, 1.0 / 3.0)])); // worker 3 has two senders
        assert_eq!(rows[1], with_ids([(0, 0.5), (1, 0.5)]));
        let third = 1.0 / 3.0;
        assert_eq!(Exchange::Mean.safe_weights(&context)[1], with_ids([(0, third), (1, third), (3, third)]));
        // The server has three senders, and each worker has one: the server.
        let server = Exchange::Server.safe_weights(&context);
        assert_eq!(server[2], with_ids([(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)]));
        assert_eq!(server[0], with_ids([(0, 0.75), (2, 0.25)]));
        assert_eq!(Exchange::Nothing.safe_weights(&context)[0], with_ids([(0, 1.0)]));
    }
}
