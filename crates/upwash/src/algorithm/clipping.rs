//! Self-centered clipping: a worker limits how far each neighbor can move its model in a round.
//!
//! The message m_j of a neighbor counts as m_i + c_ij (m_j - m_i), where m_i is the worker's own message: ClippedGossip of
//! He, Karimireddy and Jaggi (2022), "Byzantine-Robust Decentralized Learning via ClippedGossip". This only lowers the
//! weight of a message, to w_ij c_ij, and adds the difference to the worker's own weight. Plans therefore stay sums, and
//! every engine can carry them out.
//!
//! The paper clips to a radius r_i: c = min(1, r_i / d) at distance d = |m_j - m_i|. A liar then moves its neighbor by
//! w_ij r_i in every round, always in the same direction, while the steps of honest workers partly cancel: a mirrored
//! model cost 3.4 points on `complete:8`, instead of 0.3. Here c = min(1, r_i / d)^2. The radius beyond r_i shrinks as
//! r_i^2 / d, so the farther a lie is, the less it moves.
//!
//! The radius follows the spread of the distances, as in the authors' code, which takes the second largest distance: here
//! it is the (b + 1)-th largest, where b = max(1, n / 4) of n neighbors may lie. A quarter is what "three honest
//! neighbors for each liar" means. If at most b neighbors lie, r_i is at most the largest distance of an honest neighbor,
//! whatever the liars send.

use super::{Algorithm, Exchange, LocalView, Options, Outgoing, Plan, Preflight};
use crate::config::ConfigError;
use crate::ids::WorkerId;

/// How many neighbors a worker needs, so that three honest ones are left if one of them lies.
const MIN_NEIGHBORS: usize = 4;
/// How many rounds are searched for a worker with too few neighbors.
const SEARCHED_ROUNDS: u64 = 100;

/// The radius for neighbors at these distances. NaN, the distance of a message that is not finite, counts as the
/// largest.
///
/// ```
/// use upwash::algorithm::clipping_radius;
/// assert_eq!(clipping_radius(&[2.0, 900.0, 1.0, 3.0]), 3.0);
/// assert_eq!(clipping_radius(&[5.0]), 5.0); // a single neighbor is trusted
/// ```
pub fn clipping_radius(distances: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = distances.iter().map(|x| if x.is_nan() { f64::INFINITY } else { *x }).collect();
    sorted.sort_by(f64::total_cmp);
    let liars = (sorted.len() / MIN_NEIGHBORS).max(1);
    let index = sorted.len().saturating_sub(1 + liars);
    sorted.get(index).copied().unwrap_or(0.0)
}

/// Clips the messages of a worker's plan whose senders are farther away than the radius.
pub(crate) fn clip(plan: &mut Plan, worker: WorkerId, distances: &[(WorkerId, f64)]) {
    let radius = clipping_radius(&distances.iter().map(|entry| entry.1).collect::<Vec<_>>());
    for assignment in &mut plan.assignments {
        let mut removed = 0.0;
        for (sender, weight) in &mut assignment.messages {
            let Some((_, distance)) = distances.iter().find(|entry| entry.0 == *sender) else {
                continue;
            };
            let factor = match *distance {
                distance if distance <= radius => 1.0,
                distance if distance.is_finite() => (radius / distance).powi(2),
                _ => 0.0,
            };
            removed += *weight * (1.0 - factor);
            *weight *= factor;
        }
        if removed != 0.0 {
            assignment.add(worker, removed);
        }
    }
}

/// An algorithm whose workers clip what they receive.
#[derive(Debug)]
pub(super) struct Clipped {
    base: Box<dyn Algorithm>,
}

impl Clipped {
    /// Reads the option `robust`, and wraps the algorithm if it asks for clipping.
    pub(super) fn wrap(base: Box<dyn Algorithm>, options: &mut Options<'_>) -> Result<Box<dyn Algorithm>, ConfigError> {
        if !base.supports_clipping() {
            if options.is_given("robust") {
                let must = format!(
                    "not supported by {}, in which a clipped message would break an invariant or workers do not see \
                     their neighbors' models; use dpsgd, matcha or qg-momentum, or al-dsgd over one of them",
                    base.display_name()
                );
                return Err(options.refuse("robust", must));
            }
            return Ok(base);
        }
        let choices = [("none", false), ("clip", true)];
        let about = "clip: limit how far a neighbor can move a worker's model in a round (self-centered clipping)";
        match options.choice("robust", &choices, about)? {
            true => Ok(Box::new(Self { base })),
            false => Ok(base),
        }
    }
}

impl Algorithm for Clipped {
    fn base(&self) -> Option<&dyn Algorithm> {
        Some(&*self.base)
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        self.base.plan(view)
    }

    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        self.base.messages(view)
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        self.base.exchanges(round)
    }

    fn display_name(&self) -> String {
        format!("{}, clipped", self.base.display_name())
    }

    fn clips(&self) -> bool {
        true
    }

    /// Between workers that start far apart, an honest message cannot be told from a lie.
    fn starts_equal(&self) -> bool {
        true
    }

    fn warnings(&self, preflight: &Preflight<'_>) -> Vec<String> {
        let mut warnings = self.base.warnings(preflight);
        let schedule = preflight.schedule;
        let mut fewest = vec![usize::MAX; schedule.nodes()];
        for round in (0..SEARCHED_ROUNDS).map(|round| schedule.round(round)) {
            for (worker, fewest) in fewest.iter_mut().enumerate() {
                *fewest = (*fewest).min(round.senders(worker).count());
            }
        }
        let weak: Vec<usize> = (0..fewest.len()).filter(|worker| fewest[*worker] < MIN_NEIGHBORS).collect();
        if !weak.is_empty() {
            warnings.push(format!(
                "algorithm.robust = \"clip\" protects a worker from one liar if it has {MIN_NEIGHBORS} or more neighbors \
                 in every round, so that three are honest: workers {weak:?} have fewer. Use a graph with more links."
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::algorithm::{Assignment, Vector};
    use crate::ids::with_ids;

    #[test]
    fn liars_do_not_widen_the_radius() {
        let honest = [1.0, 3.0, 2.0];
        for lie in [0.0, 2.5, 1e30, f64::INFINITY, f64::NAN] {
            let all: Vec<f64> = honest.into_iter().chain([lie]).collect();
            assert!(clipping_radius(&all) <= 3.0, "{lie}");
        }
        // Two of eight may lie.
        assert_eq!(clipping_radius(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1e9, 1e9]), 6.0);
        assert_eq!(clipping_radius(&[]), 0.0);
    }

    #[test]
    fn far_messages_lose_weight_to_the_own_one() {
        let mixed = Assignment::mixed(Vector::Model, WorkerId::all(4).map(|sender| (sender, 0.25)).collect());
        let mut plan = Plan::from(mixed);
        clip(&mut plan, WorkerId(1), &with_ids([(0, 2.0), (2, 8.0), (3, f64::NAN)]));
        // Three neighbors, of whom the farthest may lie: the radius is 8, and 2 keeps its weight.
        assert_eq!(plan.assignments[0].messages, with_ids([(0, 0.25), (1, 0.5), (2, 0.25), (3, 0.0)]));
        clip(&mut plan, WorkerId(1), &with_ids([(0, 2.0), (2, 8.0)]));
        // Of two neighbors, too: the radius is 2, and the weight of the one at 8 falls to a sixteenth.
        let expected = with_ids([(0, 0.25), (1, 0.5 + 0.25 * 15.0 / 16.0), (2, 0.25 / 16.0), (3, 0.0)]);
        assert_eq!(plan.assignments[0].messages, expected);
    }
}
