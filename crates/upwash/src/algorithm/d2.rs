//! D2: D-PSGD without the bias from heterogeneous data.

use super::{
    Algorithm, Assignment, Definition, InitialValue, LocalView, Method, Outgoing, Plan, Preflight, Restart,
    StateVector, Vector,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "d2",
    about: "D-PSGD with a correction for differences between the workers' gradients; exact for heterogeneous data",
    paper: "Tang et al. 2018, D2: Decentralized Training over Decentralized Data",
    build: |options| {
        let lazy = options.flag("lazy", true, "use (I + W)/2, whose eigenvalues are never negative, instead of W")?;
        Ok(Method::Synchronous(Box::new(D2 { lazy })))
    },
};

/// Z = X - U + gamma C, X' = W Z, C' = C + (X' - Z) / gamma.
///
/// C estimates how the workers' gradients differ. At the optimum it is each worker's gradient there, and U - gamma C is
/// 0. At a constant rate this is the published X' = W (2 X - X_before - U + U_before). In this form, a change of the
/// rate scales the correction along with the step. The mean of C stays 0 up to rounding, because its changes are
/// differences between neighbors; the published form integrates every rounding error of the mean twice. While the rate
/// grows, as in a warm-up, the initial differences between models grow with it for a few rounds before mixing removes
/// them.
///
/// ```
/// use upwash::algorithm::{Algorithm, D2};
/// assert_eq!(D2 { lazy: true }.state_vectors().len(), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct D2 {
    /// Whether to use (I + W)/2 instead of W.
    pub lazy: bool,
}

const CORRECTION: Vector = Vector::State(0);

impl Algorithm for D2 {
    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        let mut stepped = Outgoing::stepped();
        stepped.content.push((CORRECTION, view.context.rate));
        vec![stepped]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let row = view.weights(self.lazy);
        let model = Assignment::mixed(Vector::Model, row.clone());
        // Without a step there is no information about gradients.
        if view.context.rate == 0.0 {
            return model.into();
        }
        let mut correction = Assignment::mixed(CORRECTION, row);
        correction.add(view.worker, -1.0);
        correction.scale(1.0 / view.context.rate);
        correction.add_own(CORRECTION, 1.0);
        [correction, model].into()
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        vec![StateVector { name: "gradient correction", start: InitialValue::Zero }]
    }

    /// A worker that leaves takes its correction with it, and the others no longer have the mean 0.
    fn restart(&self) -> Restart {
        Restart { state_vectors: vec![(0, None)], ..Restart::default() }
    }

    fn display_name(&self) -> String {
        "D2".into()
    }

    fn check(&self, preflight: &Preflight<'_>) -> Result<(), String> {
        let first = preflight.schedule.round(0);
        let changes = (1..64).any(|k| preflight.schedule.round(k).mixing() != first.mixing());
        if changes {
            return Err("algorithm.name = \"d2\" needs the same links in every round: remove graph.links and \
                        graph.copies"
                .into());
        }
        let mixing = if self.lazy { first.mixing().lazy() } else { first.mixing().clone() };
        if !mixing.is_symmetric() {
            return Err("graph.links and graph.weights: D2 needs a symmetric W; remove both".into());
        }
        let smallest = mixing.smallest_eigenvalue();
        if smallest > -1.0 / 3.0 {
            return Ok(());
        }
        let (key, remedy) = match self.lazy {
            false => ("algorithm.lazy = false", "set it to true"),
            true => ("graph.weights", "remove it, or set it to \"metropolis\""),
        };
        Err(format!(
            "{key}: D2 diverges unless W's smallest eigenvalue is above -1/3, and here it is \
             {smallest:.4}: {remedy}"
        ))
    }
}
