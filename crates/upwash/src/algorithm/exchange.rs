//! Who talks to whom in an exchange, and everyone's part in it.

use super::{Algorithm, ExchangeContext, LocalView, WorkerPlan, WorkerStats};

/// Who talks to whom in an exchange.
///
/// ```
/// use upwash::algorithm::{Algorithm, AllReduce, Exchange};
/// assert_eq!(AllReduce.exchanges(0), [Exchange::Mean]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exchange {
    /// Everyone sends to its neighbors in the graph in force.
    Neighbors,
    /// The same, but messages leave before the round's gradient is known, so that the exchange runs
    /// while it is computed; the loss in them is the last round's.
    Early,
    /// Everyone's messages are averaged: an all-reduce. Nobody sees whose message was what.
    Mean,
    /// Every worker's stats go to all others; of the messages, only those travel that plans use.
    Chosen,
    /// Everyone sends to the server, and the server to everyone.
    Server,
    /// Everyone sends to the server.
    ToCentre,
    /// The server sends to everyone.
    FromCentre,
    /// Nothing is sent.
    Nothing,
}

impl Exchange {
    /// Whom a worker hears, in increasing order.
    ///
    /// ```
    /// # use upwash::algorithm::{Exchange, ExchangeContext};
    /// let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
    /// let context = ExchangeContext { server: Some(0), ..ExchangeContext::new(&round, 0.1) };
    /// assert_eq!(Exchange::Neighbors.senders(1, &context).collect::<Vec<_>>(), [0]);
    /// assert_eq!(Exchange::ToCentre.senders(0, &context).collect::<Vec<_>>(), [1, 2, 3]);
    /// ```
    pub fn senders<'a>(self, worker: usize, context: &ExchangeContext<'a>) -> Box<dyn Iterator<Item = usize> + 'a> {
        let others = (0..context.workers()).filter(move |&other| other != worker);
        let is_centre = context.server == Some(worker);
        match self {
            Self::Neighbors | Self::Early => Box::new(context.round.senders(worker)),
            Self::Chosen => Box::new(others),
            Self::Server | Self::ToCentre if is_centre => Box::new(others),
            Self::Server | Self::FromCentre if !is_centre => Box::new(context.server.into_iter()),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// Everyone's part, each from what it knows.
    ///
    /// ```
    /// # use upwash::algorithm::{Dpsgd, Exchange, WorkerStats, ExchangeContext};
    /// let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
    /// let stats = WorkerStats { loss: Some(1.0), degree: 1, scalar: 1.0 };
    /// let parts = Exchange::Neighbors.parts(&Dpsgd::default(), &ExchangeContext::new(&round, 0.1), &[stats; 4]);
    /// assert_eq!(parts[1].plan.assignments[0].messages, [(0, 0.5), (1, 0.5)]);
    /// ```
    pub fn parts(
        self,
        algorithm: &dyn Algorithm,
        context: &ExchangeContext<'_>,
        stats: &[WorkerStats],
    ) -> Vec<WorkerPlan> {
        self.parts_of(0..stats.len(), algorithm, context, stats)
    }

    /// The parts of some workers; of the stats, theirs and those of whom they hear are read.
    pub(crate) fn parts_of(
        self,
        workers: std::ops::Range<usize>,
        algorithm: &dyn Algorithm,
        context: &ExchangeContext<'_>,
        stats: &[WorkerStats],
    ) -> Vec<WorkerPlan> {
        let mut received = Vec::new();
        let part = |worker: usize| {
            let alone = LocalView { worker, context: *context, own: stats[worker], received: &[] };
            let messages = algorithm.messages(&alone);
            received.clear();
            let senders = self.senders(worker, context);
            received.extend(senders.map(|sender| (sender, stats[sender])));
            let plan = algorithm.plan(&LocalView { received: &received, ..alone });
            WorkerPlan { worker, messages, plan }
        };
        workers.map(part).collect()
    }

    /// What any vector can be averaged with that must not get a negative weight: for each worker,
    /// Metropolis weights from how many each hears, or the mean of all that have data.
    pub(crate) fn safe_weights(self, context: &ExchangeContext<'_>) -> Vec<Vec<(usize, f64)>> {
        let workers = context.workers();
        let counted = || (0..workers).filter(|worker| Some(*worker) != context.server);
        let degree = |worker| self.senders(worker, context).count();
        let degrees: Vec<usize> = (0..workers).map(degree).collect();
        let part = 1.0 / counted().count().max(1) as f64;
        let row = |worker: usize| {
            if self == Self::Mean {
                return counted().map(|sender| (sender, part)).collect();
            }
            let (mut own, mut row) = (1.0, Vec::new());
            for sender in self.senders(worker, context) {
                let most = degrees[sender].max(degrees[worker]);
                let weight = 1.0 / (1 + most) as f64;
                own -= weight;
                row.push((sender, weight));
            }
            let place = row.partition_point(|entry: &(usize, f64)| entry.0 < worker);
            row.insert(place, (worker, own));
            row
        };
        (0..workers).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use upwash_topology::Schedule;

    #[test]
    fn safe_weights_are_metropolis_s() {
        let round = Schedule::directed(4, &[(3, 0), (0, 1), (1, 3), (2, 3)]).unwrap().round(0);
        let context = ExchangeContext { server: Some(2), ..ExchangeContext::new(&round, 0.1) };
        let rows = Exchange::Neighbors.safe_weights(&context);
        assert_eq!(rows[0], [(0, 1.0 - 1.0 / 3.0), (3, 1.0 / 3.0)]); // worker 3 hears two
        assert_eq!(rows[1], [(0, 0.5), (1, 0.5)]);
        let part = 1.0 / 3.0;
        assert_eq!(Exchange::Mean.safe_weights(&context)[1], [(0, part), (1, part), (3, part)]);
        // The server hears three, the others it.
        let server = Exchange::Server.safe_weights(&context);
        assert_eq!(server[2], [(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)]);
        assert_eq!(server[0], [(0, 0.75), (2, 0.25)]);
        assert_eq!(Exchange::Nothing.safe_weights(&context)[0], [(0, 1.0)]);
    }
}
