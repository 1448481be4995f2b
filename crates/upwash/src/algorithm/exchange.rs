//! Who talks to whom in an exchange, and everyone's part in it.

use super::{Algorithm, Part, Report, Setting, View};

/// Who talks to whom in an exchange.
///
/// ```
/// use upwash::algorithm::{Algorithm, AllReduce, Exchange};
/// assert_eq!(AllReduce.exchanges(0), [Exchange::Mean]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exchange {
    /// Everyone sends to its neighbours in the graph in force.
    Neighbours,
    /// The same, but messages leave before the round's gradient is known, so that the exchange runs
    /// while it is computed; the loss in them is the last round's.
    Early,
    /// Everyone's messages are averaged: an all-reduce. Nobody sees whose message was what.
    Mean,
    /// Everyone's report goes to everyone; of the messages, only those travel that plans use.
    Chosen,
    /// Everyone sends to the centre, and the centre to everyone.
    Centre,
    /// Everyone sends to the centre.
    ToCentre,
    /// The centre sends to everyone.
    FromCentre,
    /// Nothing is sent.
    Nothing,
}

impl Exchange {
    /// Whom a worker hears, in increasing order.
    ///
    /// ```
    /// # use upwash::algorithm::{Exchange, Setting};
    /// let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
    /// let setting = Setting { centre: Some(0), ..Setting::new(&round, 0.1) };
    /// assert_eq!(Exchange::Neighbours.senders(1, &setting).collect::<Vec<_>>(), [0]);
    /// assert_eq!(Exchange::ToCentre.senders(0, &setting).collect::<Vec<_>>(), [1, 2, 3]);
    /// ```
    pub fn senders<'a>(
        self,
        worker: usize,
        setting: &Setting<'a>,
    ) -> Box<dyn Iterator<Item = usize> + 'a> {
        let others = (0..setting.workers()).filter(move |&other| other != worker);
        let is_centre = setting.centre == Some(worker);
        match self {
            Self::Neighbours | Self::Early => Box::new(setting.round.senders(worker)),
            Self::Chosen => Box::new(others),
            Self::Centre | Self::ToCentre if is_centre => Box::new(others),
            Self::Centre | Self::FromCentre if !is_centre => Box::new(setting.centre.into_iter()),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// Everyone's part, each from what it knows.
    ///
    /// ```
    /// # use upwash::algorithm::{Dpsgd, Exchange, Report, Setting};
    /// let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
    /// let report = Report { loss: Some(1.0), degree: 1, number: 1.0 };
    /// let parts = Exchange::Neighbours.parts(&Dpsgd::default(), &Setting::new(&round, 0.1), &[report; 4]);
    /// assert_eq!(parts[1].plan.assignments[0].messages, [(0, 0.5), (1, 0.5)]);
    /// ```
    pub fn parts(
        self,
        algorithm: &dyn Algorithm,
        setting: &Setting<'_>,
        reports: &[Report],
    ) -> Vec<Part> {
        self.parts_of(0..reports.len(), algorithm, setting, reports)
    }

    /// The parts of some workers; of the reports, theirs and those of whom they hear are read.
    pub(crate) fn parts_of(
        self,
        workers: std::ops::Range<usize>,
        algorithm: &dyn Algorithm,
        setting: &Setting<'_>,
        reports: &[Report],
    ) -> Vec<Part> {
        let mut received = Vec::new();
        let part = |worker: usize| {
            let alone = View {
                worker,
                setting: *setting,
                own: reports[worker],
                received: &[],
            };
            let messages = algorithm.messages(&alone);
            received.clear();
            let senders = self.senders(worker, setting);
            received.extend(senders.map(|sender| (sender, reports[sender])));
            let plan = algorithm.plan(&View {
                received: &received,
                ..alone
            });
            Part {
                worker,
                messages,
                plan,
            }
        };
        workers.map(part).collect()
    }

    /// What any vector can be averaged with that must not get a negative weight: for each worker,
    /// Metropolis weights from how many each hears, or the mean of all that have data.
    pub(crate) fn safe_weights(self, setting: &Setting<'_>) -> Vec<Vec<(usize, f64)>> {
        let workers = setting.workers();
        let counted = || (0..workers).filter(|worker| Some(*worker) != setting.centre);
        let degree = |worker| self.senders(worker, setting).count();
        let degrees: Vec<usize> = (0..workers).map(degree).collect();
        let part = 1.0 / counted().count().max(1) as f64;
        let row = |worker: usize| {
            if self == Self::Mean {
                return counted().map(|sender| (sender, part)).collect();
            }
            let (mut own, mut row) = (1.0, Vec::new());
            for sender in self.senders(worker, setting) {
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
        let round = Schedule::directed(4, &[(3, 0), (0, 1), (1, 3), (2, 3)])
            .unwrap()
            .round(0);
        let setting = Setting {
            centre: Some(2),
            ..Setting::new(&round, 0.1)
        };
        let rows = Exchange::Neighbours.safe_weights(&setting);
        assert_eq!(rows[0], [(0, 1.0 - 1.0 / 3.0), (3, 1.0 / 3.0)]); // worker 3 hears two
        assert_eq!(rows[1], [(0, 0.5), (1, 0.5)]);
        let part = 1.0 / 3.0;
        assert_eq!(
            Exchange::Mean.safe_weights(&setting)[1],
            [(0, part), (1, part), (3, part)]
        );
        // The centre hears three, the others it.
        let centre = Exchange::Centre.safe_weights(&setting);
        assert_eq!(centre[2], [(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)]);
        assert_eq!(centre[0], [(0, 0.75), (2, 0.25)]);
        assert_eq!(Exchange::Nothing.safe_weights(&setting)[0], [(0, 1.0)]);
    }
}
