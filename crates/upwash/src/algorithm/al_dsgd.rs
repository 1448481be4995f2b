//! AL-DSGD (He, Wang, Choromanska 2024) over any base: its plan, and a pull towards two leaders.

use super::{Algorithm, Message, Plan, Report, View};

/// How strong the pulls are. `best` is for the neighbour of the lowest loss, `degree` for the one
/// with the most links.
///
/// ```
/// use upwash::algorithm::{Pull, Variant};
/// assert_eq!(Pull::default_of(Variant::Sound).w_best, 0.1);
/// assert_eq!(Pull::default_of(Variant::Released).w_best, 0.3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pull {
    /// w_N: extra weight of the best when averaging.
    pub w_best: f64,
    /// w_T: extra weight of the best-connected when averaging.
    pub w_degree: f64,
    /// lambda_N: corrective force towards the best (times the learning rate, but for `released`).
    pub lambda_best: f64,
    /// lambda_T: corrective force towards the best-connected.
    pub lambda_degree: f64,
}

impl Pull {
    /// 0.1 each, as in the paper; for `released` the four numbers of the authors' code.
    ///
    /// ```
    /// # use upwash::algorithm::{Pull, Variant};
    /// assert_eq!(Pull::default_of(Variant::Written).lambda_degree, 0.1);
    /// ```
    pub fn default_of(variant: Variant) -> Self {
        match variant {
            Variant::Released => Self {
                w_best: 0.3,
                w_degree: 0.1,
                lambda_best: 0.2,
                lambda_degree: 0.2,
            },
            _ => Self {
                w_best: 0.1,
                w_degree: 0.1,
                lambda_best: 0.1,
                lambda_degree: 0.1,
            },
        }
    }
}

/// Which of the three rules that go by the name of AL-DSGD.
///
/// ```
/// use upwash::algorithm::Variant;
/// assert_eq!(Variant::default(), Variant::Sound);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// The paper's idea with the local step whole: step, exchange, average, pull.
    #[default]
    Sound,
    /// The paper's Algorithm 1 to the letter. It scales worker i's step by (1 - w) W_ii, so that a
    /// worker whose own weight is negative climbs its own loss.
    Written,
    /// The rule of the code that the authors released.
    Released,
}

/// Who can be a worker's leader.
///
/// ```
/// use upwash::algorithm::LeaderScope;
/// assert_eq!(LeaderScope::default(), LeaderScope::Closed);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaderScope {
    /// Those whose models the worker gets, and the worker itself (the paper's Figure 3).
    #[default]
    Closed,
    /// Those whose models the worker gets.
    NeighboursOnly,
}

/// The decorator.
///
/// ```
/// use upwash::algorithm::{AlDsgd, Algorithm, Dpsgd, Message, Variant};
/// let sound = AlDsgd::new(Box::new(Dpsgd::default()), Variant::Sound);
/// assert_eq!(sound.message(), Message::Stepped);
/// let written = AlDsgd::new(Box::new(Dpsgd::default()), Variant::Written);
/// assert_eq!(written.message(), Message::Model);
/// ```
#[derive(Debug)]
pub struct AlDsgd {
    /// The algorithm that is led.
    pub base: Box<dyn Algorithm>,
    /// The rule.
    pub variant: Variant,
    /// The strength.
    pub pull: Pull,
    /// The candidates.
    pub scope: LeaderScope,
}

impl AlDsgd {
    /// With the variant's default strength, and every worker a candidate of its own.
    ///
    /// ```
    /// # use upwash::algorithm::{AlDsgd, Dpsgd, Variant};
    /// let over_dpsgd = AlDsgd::new(Box::new(Dpsgd::default()), Variant::Released);
    /// assert_eq!(over_dpsgd.pull.lambda_best, 0.2);
    /// ```
    pub fn new(base: Box<dyn Algorithm>, variant: Variant) -> Self {
        Self {
            base,
            variant,
            pull: Pull::default_of(variant),
            scope: LeaderScope::default(),
        }
    }

    /// The best and the best-connected candidate. Where a loss is not known yet, every worker is
    /// its own best. Ties go to the lowest index; for `released`, to the worker itself first.
    fn leaders(&self, view: &View<'_>) -> (usize, usize) {
        let own = (view.worker, view.own);
        let own = (self.scope == LeaderScope::Closed).then_some(own);
        let candidates = || view.received.iter().copied().chain(own);
        let rank = |worker: usize| {
            (
                self.variant != Variant::Released || worker != view.worker,
                worker,
            )
        };
        let first = |cost: &dyn Fn(&Report) -> f64| {
            let by_cost = |a: &(usize, Report), b: &(usize, Report)| {
                cost(&a.1)
                    .total_cmp(&cost(&b.1))
                    .then(rank(a.0).cmp(&rank(b.0)))
            };
            candidates()
                .min_by(by_cost)
                .map_or(view.worker, |(worker, _)| worker)
        };
        let known = candidates().all(|(_, report)| report.loss.is_some());
        let loss = |report: &Report| report.loss.unwrap_or(f64::INFINITY);
        let best = if known { first(&loss) } else { view.worker };
        (best, first(&|report| -(report.degree as f64)))
    }
}

impl Algorithm for AlDsgd {
    fn message(&self) -> Message {
        match self.variant {
            Variant::Written if self.base.message().is_before_gradient() => Message::Early,
            Variant::Written => Message::Model,
            Variant::Released => Message::Stepped,
            Variant::Sound => self.base.message(),
        }
    }

    fn plan(&self, view: &View<'_>) -> Plan {
        if view.received.is_empty() {
            return Plan::alone(view.worker, self.message());
        }
        let mut plan = self.base.plan(view);
        let (best, degree) = self.leaders(view);
        let Pull {
            w_best,
            w_degree,
            lambda_best,
            lambda_degree,
        } = self.pull;
        let w = w_best + w_degree;
        match self.variant {
            // x' = (1 - w) sum W_ij y_j + w_N y_N + w_T y_T
            //      - gamma lambda_N (y_i - y_N) - gamma lambda_T (y_i - y_T)
            Variant::Sound => {
                let (force_best, force_degree) =
                    (view.rate * lambda_best, view.rate * lambda_degree);
                plan.scale(1.0 - w);
                plan.add(best, w_best + force_best);
                plan.add(degree, w_degree + force_degree);
                plan.add(view.worker, -force_best - force_degree);
            }
            // x_half = x_i - u_i - gamma lambda_N (x_i - x_N) - gamma lambda_T (x_i - x_T)
            // x'     = (1 - w) (W_ii x_half + sum_{j != i} W_ij x_j) + w_N x_N + w_T x_T
            Variant::Written => {
                plan.scale(1.0 - w);
                let own = plan.weight(view.worker);
                let (force_best, force_degree) = (
                    own * view.rate * lambda_best,
                    own * view.rate * lambda_degree,
                );
                plan.add(best, w_best + force_best);
                plan.add(degree, w_degree + force_degree);
                plan.add(view.worker, -force_best - force_degree);
                plan.own_update = -own;
            }
            // b  = (1 - c1 - c2) a + c1 y_best + c2 y_degree, a the base's average
            // x' = b - p1 (b - y_best) - p2 (b - y_degree)
            Variant::Released => {
                let kept = 1.0 - lambda_best - lambda_degree;
                plan.scale(kept * (1.0 - w));
                plan.add(best, kept * w_best + lambda_best);
                plan.add(degree, kept * w_degree + lambda_degree);
            }
        }
        plan
    }
}
