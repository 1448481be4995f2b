//! Stochastic gradient push: averaging over directed links.

use super::{Algorithm, Assignment, Definition, LocalView, Method, Outgoing, Plan, Preflight, Restart, Vector};

pub(super) const DEFINITION: Definition = Definition {
    name: "sgp",
    about: "push-sum: exact averages over directed links, with a weight that is sent along",
    paper: "Assran et al. 2019, Stochastic Gradient Push for Distributed Deep Learning",
    build: |_| Ok(Method::Synchronous(Box::new(Sgp))),
};

/// Sender j gives 1/(1 + receivers) of its sum s_j and weight w_j to each receiver and to itself. Gradients are
/// evaluated at z = s / w, which is the model here. In terms of z, with y_j = z_j - u_j / w_j: w'_i = sum P_ij w_j and
/// z'_i = sum P_ij w_j / w'_i y_j.
///
/// ```
/// use upwash::algorithm::{Algorithm, Sgp};
/// assert!(Sgp.supports_directed());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sgp;

impl Algorithm for Sgp {
    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        let part = -1.0 / view.own.scalar;
        vec![Outgoing::of([(Vector::Model, 1.0), (Vector::Step, part)])]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let mut model = Assignment::mixed(Vector::Model, vec![]);
        for (sender, stats) in view.received.iter().copied().chain([(view.worker, view.own)]) {
            model.add(sender, stats.scalar / (1 + stats.degree) as f64);
        }
        let weight: f64 = model.messages.iter().map(|entry| entry.1).sum();
        model.scale(1.0 / weight);
        Plan { scalar: Some(weight), ..model.into() }
    }

    /// Messages that do not arrive take weight with them. Workers that leave or return do so, too.
    fn restart(&self) -> Restart {
        Restart { scalars: true, ..Restart::default() }
    }

    fn display_name(&self) -> String {
        "SGP".into()
    }

    fn supports_directed(&self) -> bool {
        true
    }

    fn check(&self, preflight: &Preflight<'_>) -> Result<(), String> {
        match preflight.unreachable_pair() {
            None => Ok(()),
            Some((from, to)) => Err(format!(
                "algorithm.name = \"sgp\": nothing that worker {from} sends ever reaches worker {to}, \
                 so push-sum has no average: add links to graph.directed_edges (or graph.topology)"
            )),
        }
    }
}
