//! Leader SGD: workers in groups, pulled toward the best worker of their group and the best of all.

use super::{Algorithm, Assignment, Definition, Exchange, Links, LocalView, Method, Outgoing, Plan, Preflight, Vector};
use crate::ids::WorkerId;

pub(super) const DEFINITION: Definition = Definition {
    name: "lsgd",
    about: "every worker is pulled toward the best worker of its group and the best of all",
    paper: "Teng et al. 2019, Leader Stochastic Gradient Descent for Distributed Training",
    build: |options| {
        let any = 0.0..=1.0;
        let lsgd = Lsgd {
            groups: options.count("groups", 2, "the number of groups, each with a leader")? as usize,
            local: options.number(
                "pull_local",
                0.1,
                any.clone(),
                "the strength of the pull toward the leader of the group",
            )?,
            global: options.number("pull_global", 0.1, any, "the strength of the pull toward the leader of all")?,
            period: options.count("period", 4, "the number of rounds between pulls")?,
        };
        if lsgd.local + lsgd.global > 1.0 {
            return Err(options.refuse("pull_local", "the sum of pull_local and pull_global must be at most 1"));
        }
        Ok(Method::Synchronous(Box::new(lsgd)))
    },
};

/// x_i' = x_i - u_i - l (x_i - x_leader of the group) - g (x_i - x_leader of all), every `period`-th round. A leader is
/// the worker with the lowest loss on its batch. Groups consist of consecutive workers.
///
/// ```
/// use upwash::algorithm::Lsgd;
/// let pairs = Lsgd { groups: 4, local: 0.1, global: 0.1, period: 1 };
/// assert_eq!([0, 1, 2, 7].map(|worker| pairs.group(worker.into(), 8)), [0, 0, 1, 3]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lsgd {
    /// The number of groups.
    pub groups: usize,
    /// The strength of the pull toward the leader of the group.
    pub local: f64,
    /// The strength of the pull toward the leader of all workers.
    pub global: f64,
    /// The number of rounds between pulls.
    pub period: u64,
}

impl Lsgd {
    /// The group of a worker.
    ///
    /// ```
    /// # use upwash::algorithm::Lsgd;
    /// assert_eq!(Lsgd { groups: 2, local: 0.1, global: 0.1, period: 1 }.group(4.into(), 8), 1);
    /// ```
    pub fn group(&self, worker: WorkerId, workers: usize) -> usize {
        worker.0 * self.groups.min(workers) / workers
    }
}

impl Algorithm for Lsgd {
    fn needs_losses(&self) -> bool {
        true
    }

    fn messages(&self, _: &LocalView<'_>) -> Vec<Outgoing> {
        vec![Outgoing::model()]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        if view.received.is_empty() {
            return Plan::alone();
        }
        let group = |worker| self.group(worker, view.context.workers());
        let all = || view.received.iter().copied().chain([(view.worker, view.own)]);
        let best = |is_candidate: &dyn Fn(WorkerId) -> bool| {
            let candidates = all().filter(|(worker, _)| is_candidate(*worker));
            candidates.min_by(|a, b| a.1.by_loss(&b.1).then(a.0.cmp(&b.0))).map_or(view.worker, |(worker, _)| worker)
        };
        let of_group = best(&|worker| group(worker) == group(view.worker));
        let mut model = Assignment::of(Vector::Model, Outgoing::stepped().content);
        let leaders = [of_group, best(&|_| true)];
        for (leader, pull) in leaders.into_iter().zip([self.local, self.global]) {
            if leader != view.worker {
                model.add(leader, pull);
                model.add(view.worker, -pull);
            }
        }
        Plan { leaders: Some(leaders), ..model.into() }
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        vec![if (round + 1).is_multiple_of(self.period) { Exchange::Chosen } else { Exchange::Nothing }]
    }

    fn links(&self) -> Links {
        Links::None
    }

    fn check(&self, preflight: &Preflight<'_>) -> Result<(), String> {
        let workers = preflight.graph.nodes();
        // The default of two groups is allowed for a single worker, too.
        match self.groups > workers.max(2) {
            true => Err(format!(
                "algorithm.groups = {}: there are only {workers} workers, and each is in one group; set it to at most \
                 {workers}",
                self.groups
            )),
            false => Ok(()),
        }
    }

    fn display_name(&self) -> String {
        format!("LSGD ({} groups, period {})", self.groups, self.period)
    }
}
