//! D2: D-PSGD without the bias that unlike data give it.

use super::{
    Algorithm, Assignment, Definition, InitialValue, LocalView, Method, Outgoing, Plan, Preflight, StateVector, Vector,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "d2",
    about: "D-PSGD that corrects for how workers' gradients differ, exact where their data do",
    paper: "Tang et al. 2018, D2: Decentralized Training over Decentralized Data",
    build: |options| {
        let lazy = options.flag("lazy", true, "(I + W)/2 for W, whose eigenvalues are never negative")?;
        Ok(Method::Synchronous(Box::new(D2 { lazy })))
    },
};

/// Z = X - U + gamma C, X' = W Z, C' = C + (X' - Z) / gamma.
///
/// C is what worker's gradients differ by, as far as it is known: at the optimum it is each one's gradient
/// there, and U - gamma C is 0. With a rate that stays the same this is the published X' = W (2 X -
/// X_before - U + U_before). Written so, a change of the rate scales what is corrected along with the step,
/// and the mean of C stays 0 but for rounding, because its changes are differences between neighbors: the
/// published form integrates every rounding error of the mean twice. While a rate grows, as in a warm-up, what models
/// differ by at the start grows with it for a few rounds before it is mixed away.
///
/// ```
/// use upwash::algorithm::{Algorithm, D2};
/// assert_eq!(D2 { lazy: true }.state_vectors().len(), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct D2 {
    /// (I + W)/2 for W.
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
        // Without a step there is nothing to learn about gradients.
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

    fn display_name(&self) -> String {
        "D2".into()
    }

    fn check(&self, preflight: &Preflight<'_>) -> Result<(), String> {
        let first = preflight.schedule.round(0);
        let changes = (1..64).any(|k| preflight.schedule.round(k).mixing() != first.mixing());
        if changes {
            return Err("algorithm.name = \"d2\" needs the same links in every round: leave \
                        graph.links and graph.copies out"
                .into());
        }
        let mixing = if self.lazy { first.mixing().lazy() } else { first.mixing().clone() };
        if !mixing.is_symmetric() {
            return Err("graph.links and graph.weights: D2 needs a symmetric W; leave both out".into());
        }
        let smallest = mixing.smallest_eigenvalue();
        if smallest > -1.0 / 3.0 {
            return Ok(());
        }
        let (key, remedy) = match self.lazy {
            false => ("algorithm.lazy = false", "set it to true"),
            true => ("graph.weights", "leave it out, or set it to \"metropolis\""),
        };
        Err(format!(
            "{key}: D2 diverges unless W's smallest eigenvalue is above -1/3, and here it is \
             {smallest:.4}: {remedy}"
        ))
    }
}
