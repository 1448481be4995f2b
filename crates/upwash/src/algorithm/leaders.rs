//! The leaders of AL-DSGD: how they are chosen and how strongly they pull.

use super::{Algorithm, Assignment, Exchange, LocalView, Options, Preflight, Vector, WorkerStats};
use crate::config::ConfigError;
use crate::ids::WorkerId;
use std::cmp::Ordering;

/// The strengths of the pulls. `best` refers to the neighbor with the lowest loss, `degree` to the neighbor with the
/// most links.
///
/// ```
/// use upwash::algorithm::{LeaderCoefficients, Variant};
/// assert_eq!(LeaderCoefficients::default_of(Variant::Sound).w_best, 0.1);
/// assert_eq!(LeaderCoefficients::default_of(Variant::Released).w_best, 0.3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeaderCoefficients {
    /// w_N: extra weight of the best neighbor in the average.
    pub w_best: f64,
    /// w_T: extra weight of the best-connected neighbor in the average.
    pub w_degree: f64,
    /// lambda_N: corrective force toward the best neighbor (times the learning rate, except in `released`).
    pub lambda_best: f64,
    /// lambda_T: corrective force toward the best-connected neighbor.
    pub lambda_degree: f64,
}

impl LeaderCoefficients {
    /// 0.1 each, as in the paper; for `released`, the four values of the authors' code.
    ///
    /// ```
    /// # use upwash::algorithm::{LeaderCoefficients, Variant};
    /// assert_eq!(LeaderCoefficients::default_of(Variant::Written).lambda_degree, 0.1);
    /// ```
    pub fn default_of(variant: Variant) -> Self {
        match variant {
            Variant::Released => Self { w_best: 0.3, w_degree: 0.1, lambda_best: 0.2, lambda_degree: 0.2 },
            _ => Self { w_best: 0.1, w_degree: 0.1, lambda_best: 0.1, lambda_degree: 0.1 },
        }
    }
}

/// The three rules that are called AL-DSGD.
///
/// ```
/// use upwash::algorithm::Variant;
/// assert_eq!(Variant::default(), Variant::Sound);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// The paper's idea, with the full local step: step, exchange, average, pull.
    #[default]
    Sound,
    /// The paper's Algorithm 1, literally. It scales worker i's step by (1 - w) W_ii, so a worker with a negative own
    /// weight ascends its own loss.
    Written,
    /// The rule in the code that the authors released.
    Released,
}

/// Which workers can lead a worker.
///
/// ```
/// use upwash::algorithm::LeaderScope;
/// assert_eq!(LeaderScope::default(), LeaderScope::Closed);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaderScope {
    /// The senders of the models that the worker receives, and the worker itself (the paper's Figure 3).
    #[default]
    Closed,
    /// The senders of the models that the worker receives.
    NeighborsOnly,
    /// Like `Closed`, but the worker computes the losses itself: it evaluates each model that it receives, and its own,
    /// on its own batch.
    Verified,
}

impl LeaderCoefficients {
    /// Reads the coefficients. The defaults are those of the variant.
    pub(super) fn read(options: &mut Options<'_>, variant: Variant) -> Result<Self, ConfigError> {
        let default = Self::default_of(variant);
        let any = 0.0..=f64::MAX;
        let best = "extra weight of the best neighbor";
        let degree = "extra weight of the best-connected neighbor";
        let pull = Self {
            w_best: options.number("w_best", default.w_best, any.clone(), best)?,
            w_degree: options.number("w_degree", default.w_degree, any.clone(), degree)?,
            lambda_best: options.number(
                "lambda_best",
                default.lambda_best,
                any.clone(),
                "force toward the best neighbor",
            )?,
            lambda_degree: options.number(
                "lambda_degree",
                default.lambda_degree,
                any,
                "force toward the best-connected neighbor",
            )?,
        };
        if pull.w_best + pull.w_degree > 1.0 {
            let sum = pull.w_best + pull.w_degree;
            return Err(
                options.refuse("w_best", format!("the sum of w_best and w_degree must be at most 1, not {sum}"))
            );
        }
        let forces = pull.lambda_best + pull.lambda_degree;
        if variant == Variant::Released && forces > 1.0 {
            let must = "the sum of lambda_best and lambda_degree must be at most 1 for `released`, whose forces are \
                        fractions of the distance to a leader";
            return Err(options.refuse("lambda_best", must));
        }
        Ok(pull)
    }
}

impl LeaderCoefficients {
    /// Adds the pulls toward the best and the best-connected neighbor to a worker's new model.
    pub(super) fn apply(
        self,
        variant: Variant,
        model: &mut Assignment,
        view: &LocalView<'_>,
        [best, degree]: [WorkerId; 2],
        base: &dyn Algorithm,
    ) {
        let Self { w_best, w_degree, lambda_best, lambda_degree } = self;
        let (w, rate) = (w_best + w_degree, view.context.rate);
        match variant {
            // x' = (1 - w) sum W_ij y_j + w_N y_N + w_T y_T
            //      - gamma lambda_N (y_i - y_N) - gamma lambda_T (y_i - y_T)
            Variant::Sound => {
                let (force_best, force_degree) = (rate * lambda_best, rate * lambda_degree);
                // If models move only part of the way toward the average, the pulls apply to the average. If messages
                // are models before the step, the step stays unscaled.
                let step = base.consensus_step();
                let (part, kept) = (step.unwrap_or(1.0), step.unwrap_or(0.0));
                let own = std::mem::take(&mut model.own);
                model.add(view.worker, kept);
                model.scale(1.0 - w);
                model.add(view.worker, -kept);
                model.own = own;
                model.add(best, part * (w_best + force_best));
                model.add(degree, part * (w_degree + force_degree));
                model.add(view.worker, part * (-force_best - force_degree));
            }
            // x_half = x_i - u_i - gamma lambda_N (x_i - x_N) - gamma lambda_T (x_i - x_T)
            // x'     = (1 - w) (W_ii x_half + sum_{j != i} W_ij x_j) + w_N x_N + w_T x_T
            Variant::Written => {
                model.scale(1.0 - w);
                let own = model.weight(view.worker);
                let (force_best, force_degree) = (own * rate * lambda_best, own * rate * lambda_degree);
                model.add(best, w_best + force_best);
                model.add(degree, w_degree + force_degree);
                model.add(view.worker, -force_best - force_degree);
                model.own = vec![(Vector::Step, -own)];
            }
            // b  = (1 - c1 - c2) a + c1 y_best + c2 y_degree, where a is the base's average
            // x' = b - p1 (b - y_best) - p2 (b - y_degree)
            Variant::Released => {
                let kept = 1.0 - lambda_best - lambda_degree;
                model.scale(kept * (1.0 - w));
                model.add(best, kept * w_best + lambda_best);
                model.add(degree, kept * w_degree + lambda_degree);
            }
        }
    }
}

impl Variant {
    /// Its name in a configuration.
    ///
    /// ```
    /// assert_eq!(upwash::algorithm::Variant::Sound.name(), "sound");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Written => "written",
            Self::Released => "released",
        }
    }

    /// The option that is incompatible with this base, if any, and what it must be.
    pub(super) fn conflict(self, base: &dyn Algorithm) -> Option<(&'static str, &'static str)> {
        if !base.supports_leaders() {
            let must = "an algorithm whose workers see their neighbors' models and may be pulled \
                        toward one of them: dpsgd, matcha, gossip-pga, choco or qg-momentum";
            return Some(("base", must));
        }
        if self != Self::Sound && !base.state_vectors().is_empty() {
            return Some(("variant", "sound, the only variant for a base that keeps state vectors"));
        }
        let early = base.exchanges(0).contains(&Exchange::Early);
        let must = "false: the released code exchanges after the step";
        (self == Self::Released && early).then_some(("overlap", must))
    }

    /// A warning for the user about this variant on this graph.
    pub(super) fn warning(self, preflight: &Preflight<'_>) -> Option<String> {
        let workers = preflight.nonpositive_self_weight;
        (self == Self::Written && !workers.is_empty()).then(|| {
            format!(
                "workers {workers:?} weigh their own model 0 or less, and the written rule scales their steps by \
                 that weight, so they will not descend. Set graph.weights = \"metropolis\"."
            )
        })
    }

    /// All variants with their names, for [`Options::choice`](super::Options::choice).
    pub(super) const ALL: [(&'static str, Self); 3] =
        [("sound", Self::Sound), ("written", Self::Written), ("released", Self::Released)];
}

impl LeaderScope {
    pub(super) fn read(options: &mut Options<'_>) -> Result<Self, ConfigError> {
        let choices = [("closed", Self::Closed), ("neighbors-only", Self::NeighborsOnly), ("verified", Self::Verified)];
        let about = "which workers can lead: closed (the worker itself too) or neighbors-only; verified: closed, by the \
                     losses of the sent models on the receiver's batch";
        options.choice("leaders", &choices, about)
    }

    /// The best and the best-connected candidate. While a loss is unknown, every worker is its own best. Ties go to the
    /// lowest index; for `released`, to the worker itself first.
    pub(super) fn leaders(self, view: &LocalView<'_>, variant: Variant) -> (WorkerId, WorkerId) {
        let own = (view.worker, view.own);
        let own = (self != Self::NeighborsOnly).then_some(own);
        let candidates = || view.received.iter().copied().chain(own);
        let rank = |worker: WorkerId| (variant != Variant::Released || worker != view.worker, worker);
        let first = |order: &dyn Fn(&WorkerStats, &WorkerStats) -> Ordering| {
            let best = candidates().min_by(|a, b| {
                let tie = rank(a.0).cmp(&rank(b.0));
                order(&a.1, &b.1).then(tie)
            });
            best.map_or(view.worker, |(worker, _)| worker)
        };
        let known = candidates().all(|(_, stats)| stats.loss.is_some());
        let best = if known { first(&WorkerStats::by_loss) } else { view.worker };
        (best, first(&|a, b| b.degree.cmp(&a.degree)))
    }
}
