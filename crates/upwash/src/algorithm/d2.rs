//! D2: D-PSGD without the bias that unlike data give it.

use super::{
    Algorithm, Assignment, Definition, Extra, ExtraStart, Ground, Message, Method, Plan, Vector,
    View,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "d2",
    about: "D-PSGD with the last round's model and step, exact where workers' data differ",
    paper: "Tang et al. 2018, D2: Decentralized Training over Decentralized Data",
    build: |options| {
        let lazy = options.flag(
            "lazy",
            true,
            "(I + W)/2 for W, whose eigenvalues are never negative",
        )?;
        Ok(Method::Synchronous(Box::new(D2 { lazy })))
    },
};

/// X' = W (2 X - X_before - U + U_before); the first round is D-PSGD's.
///
/// ```
/// use upwash::algorithm::{Algorithm, D2};
/// assert_eq!(D2 { lazy: true }.extras().len(), 2);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct D2 {
    /// (I + W)/2 for W.
    pub lazy: bool,
}

const MODEL_BEFORE: Vector = Vector::Extra(0);
const STEP_BEFORE: Vector = Vector::Extra(1);

impl Algorithm for D2 {
    fn messages(&self, _: &View<'_>) -> Vec<Message> {
        vec![Message::of([
            (Vector::Model, 2.0),
            (MODEL_BEFORE, -1.0),
            (Vector::Step, -1.0),
            (STEP_BEFORE, 1.0),
        ])]
    }

    fn plan(&self, view: &View<'_>) -> Plan {
        [
            Assignment::of(MODEL_BEFORE, [(Vector::Model, 1.0)]),
            Assignment::of(STEP_BEFORE, [(Vector::Step, 1.0)]),
            Assignment::mixed(Vector::Model, view.weights(self.lazy)),
        ]
        .into()
    }

    fn extras(&self) -> Vec<Extra> {
        let extra = |(name, start)| Extra { name, start };
        [
            ("model before", ExtraStart::Model),
            ("step before", ExtraStart::Zero),
        ]
        .map(extra)
        .to_vec()
    }

    fn words(&self) -> String {
        "D2".into()
    }

    fn check(&self, ground: &Ground<'_>) -> Result<(), String> {
        let first = ground.schedule.round(0);
        let changes = (1..64).any(|k| ground.schedule.round(k).mixing() != first.mixing());
        if changes {
            return Err(
                "algorithm.name = \"d2\" needs the same links in every round: leave \
                        graph.links and graph.copies out"
                    .into(),
            );
        }
        let mixing = if self.lazy {
            first.mixing().lazy()
        } else {
            first.mixing().clone()
        };
        if !mixing.is_symmetric() {
            return Err(
                "graph.links and graph.weights: D2 needs a symmetric W; leave both out".into(),
            );
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
