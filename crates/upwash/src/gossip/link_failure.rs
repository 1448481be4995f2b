//! Rounds in which links have failed: which links are down, and the mixing weights that remain.

use super::exchange::{ExchangeJob, Gossip};
use super::inbox::Inbox;
use crate::algorithm::WorkerStats;
use crate::ids::WorkerId;
use crate::transport::Transport;
use upwash_topology::Round;

impl Gossip<'_> {
    /// Counts the links that are up: adjusts the degrees of local workers, and marks those with failed links.
    pub(crate) fn observe_links(
        &mut self,
        job: &ExchangeJob<'_>,
        stats: &mut [WorkerStats],
        transport: &dyn Transport,
    ) {
        self.degraded.clear();
        if !transport.capabilities().survives_loss {
            return;
        }
        for worker in self.placement.own() {
            let lost = |other: &WorkerId| !self.is_local(*other) && !transport.is_link_up(*other);
            let misses_sender = self.senders(worker, job).iter().any(lost);
            let round = job.context.round;
            let receives = |other: WorkerId| round.mixing().row(other.0).iter().any(|e| e.0 == worker.0);
            let workers = WorkerId::all(self.placement.workers());
            let lost_receivers = workers.filter(|&other| other != worker && receives(other));
            let lost_receivers = lost_receivers.filter(lost).count();
            if misses_sender || lost_receivers > 0 {
                self.degraded.insert(worker);
            }
            stats[worker].degree -= lost_receivers.min(stats[worker].degree);
        }
    }

    /// The round with adjusted weights if links have failed; `None` if all are up.
    ///
    /// If an end of a link does not have all of its links up, the link gets the smaller of its configured and its
    /// Metropolis weight. Each end knows this about both, so both use the same weight, and no eigenvalue of W leaves
    /// the range that the configured weights guarantee.
    pub(crate) fn reweighted(
        &self,
        scheduled: &Round,
        stats: &[WorkerStats],
        inbox: &Inbox,
        transport: &dyn Transport,
    ) -> Option<Round> {
        if !transport.capabilities().survives_loss {
            return None;
        }
        let mut rows = Vec::new();
        for worker in self.placement.own() {
            let is_intact = !self.degraded.contains(&worker);
            let (mut row, mut own) = (Vec::new(), 1.0);
            for &(other, weight) in scheduled.mixing().row(worker.0) {
                let other = WorkerId(other);
                if other == worker {
                    continue;
                }
                let weight = match (self.is_local(other), inbox.received_stats.get(&other)) {
                    (true, _) => weight,
                    (_, Some(_)) if is_intact && inbox.intact.contains(&other) => weight,
                    (_, Some(other_stats)) => {
                        let max_degree = other_stats.degree.max(stats[worker].degree);
                        weight.min(1.0 / (1 + max_degree) as f64)
                    }
                    (_, None) => continue,
                };
                own -= weight;
                row.push((other.0, weight));
            }
            let position = row.partition_point(|entry: &(usize, f64)| entry.0 < worker.0);
            row.insert(position, (worker.0, own));
            let configured = scheduled.mixing().row(worker.0);
            let is_unchanged = |(a, b): (&(usize, f64), &(usize, f64))| a.0 == b.0 && (a.0 == worker.0 || a.1 == b.1);
            if row.len() != configured.len() || !row.iter().zip(configured).all(is_unchanged) {
                rows.push((worker.0, row));
            }
        }
        (!rows.is_empty()).then(|| scheduled.with_rows(rows))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::algorithm::{Exchange, ExchangeContext};
    use crate::config::Config;
    use crate::engine::MixOptions;
    use crate::experiment::{DataPaths, Experiment};
    use crate::transport::{
        Capabilities, Collectives, InProcess, Membership, MessageExchange, Placement, RoundStart, TransportError,
    };
    use upwash_topology::random::Stream;

    /// A transport that knows which links are up, and sends nothing.
    struct Links {
        placement: Placement,
        up: Vec<bool>,
    }

    impl Membership for Links {
        fn capabilities(&self) -> Capabilities {
            Capabilities { survives_loss: true, ..InProcess::new(1).capabilities() }
        }

        fn placement(&self) -> &Placement {
            &self.placement
        }

        fn is_link_up(&self, worker: WorkerId) -> bool {
            self.up[worker]
        }

        fn may_begin(&mut self, _: u64, _: bool) -> Result<RoundStart, TransportError> {
            Ok(RoundStart::Go)
        }
    }

    impl MessageExchange for Links {}

    impl Collectives for Links {}

    /// The rows of all workers when some links have failed. Each is computed from what its worker knows.
    fn reweighted(experiment: &Experiment, up: &Round, is_up: &dyn Fn(usize, usize) -> bool) -> Round {
        let workers = experiment.workers();
        let algorithm = experiment.method.synchronous().unwrap();
        let job = ExchangeJob {
            algorithm,
            exchange: Exchange::Neighbors,
            context: ExchangeContext::new(up, 0.1),
            options: MixOptions::default(),
            statistics: false,
        };
        let degrees = up.receiver_counts();
        let mut stats: Vec<WorkerStats> =
            (0..workers).map(|worker| WorkerStats { loss: None, degree: degrees[worker], scalar: 1.0 }).collect();
        // What each worker observes about itself and reports in its messages.
        let mut processes: Vec<(Gossip<'_>, Links)> = (0..workers)
            .map(|worker| {
                let placement = Placement::new(workers, workers, worker);
                let up = (0..workers).map(|other| is_up(worker, other)).collect();
                let links = Links { placement: placement.clone(), up };
                (Gossip::new(experiment, placement), links)
            })
            .collect();
        for (process, links) in &mut processes {
            process.observe_links(&job, &mut stats, links);
        }
        let is_intact: Vec<bool> = processes.iter().map(|(process, _)| process.degraded.is_empty()).collect();
        let row = |worker: usize| {
            let (process, links) = &processes[worker];
            let mut inbox = Inbox::default();
            for sender in up.senders(worker).filter(|&sender| is_up(worker, sender)) {
                inbox.received_stats.insert(sender.into(), stats[sender]);
                if is_intact[sender] {
                    inbox.intact.insert(sender.into());
                }
            }
            let round = process.reweighted(up, &stats, &inbox, links);
            let round = round.as_ref().unwrap_or(up);
            (worker, round.mixing().row(worker).to_vec())
        };
        up.with_rows((0..workers).map(row).collect::<Vec<_>>())
    }

    /// W stays symmetric, its rows sum to 1, and no eigenvalue leaves the range of the configured W.
    #[test]
    fn reweighted_matrix_stays_symmetric_and_stochastic_with_eigenvalues_in_range() {
        let mut stream = Stream::new(7, "links", &[]);
        let mut failures = 0;
        for weights in ["optimal", "metropolis"] {
            for graph in ["paper:L1", "ring:6", "erdos-renyi:12,p=0.4,seed=3,connected", "star:7"] {
                let text = format!(
                    "[data]\nname = \"synthetic:shape=1x1x1,train=24,test=1\"\npartition = \"iid\"\n\
                     [graph]\ntopology = \"{graph}\"\nweights = \"{weights}\"\n[algorithm]\nname = \"dpsgd\"\n\
                     [training]\nbatch_size = 1\n"
                );
                let config = Config::parse(&text, &[]).unwrap();
                let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
                let up = experiment.schedule.round(0);
                let configured = up.mixing().smallest_eigenvalue();
                for _ in 0..40 {
                    let links = up.links().to_vec();
                    let fraction = stream.below(4) as f64 / 4.0;
                    let lost: Vec<bool> =
                        links.iter().map(|_| (stream.below(1000) as f64) < 1000.0 * fraction).collect();
                    failures += lost.iter().filter(|lost| **lost).count();
                    let is_up = |a: usize, b: usize| {
                        let at = links.iter().position(|link| [(link.0, link.1), (link.1, link.0)].contains(&(a, b)));
                        at.is_none_or(|at| !lost[at])
                    };
                    let left = reweighted(&experiment, &up, &is_up);
                    let w = left.mixing();
                    assert!(w.is_symmetric(), "{graph}, {weights}");
                    for worker in 0..experiment.workers() {
                        let sum: f64 = w.row(worker).iter().map(|entry| entry.1).sum();
                        assert!((sum - 1.0).abs() < 1e-12, "{graph}, {weights}");
                        let others = w.row(worker).iter().filter(|entry| entry.0 != worker);
                        assert!(others.clone().all(|entry| entry.1 > 0.0));
                        assert!(others.clone().all(|entry| is_up(worker, entry.0)));
                    }
                    let smallest = w.smallest_eigenvalue();
                    assert!(smallest >= configured - 1e-9, "{graph}, {weights}: {smallest}");
                }
            }
        }
        assert!(failures > 500, "only {failures} links failed");
    }
}
