//! Quasi-global momentum: momentum along the common direction of the mixed models.

use super::{Algorithm, Assignment, Definition, InitialValue, LocalView, Method, Outgoing, Plan, StateVector, Vector};

pub(super) const DEFINITION: Definition = Definition {
    name: "qg-momentum",
    about: "D-PSGD whose momentum follows the mixed models, not the local gradients",
    paper: "Lin et al. 2021, Quasi-Global Momentum (QG-DSGDm)",
    build: |options| {
        let lazy = options.flag("lazy", false, "use (I + W)/2 instead of W")?;
        Ok(Method::Synchronous(Box::new(QgMomentum { lazy })))
    },
};

/// With beta = training.momentum: Y = X - U - gamma beta M, X' = W Y, and
/// M' = beta M + (1 - beta) (X - X') / gamma.
///
/// ```
/// use upwash::algorithm::{Algorithm, QgMomentum};
/// assert!(QgMomentum { lazy: false }.owns_momentum());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QgMomentum {
    /// Whether to use (I + W)/2 instead of W.
    pub lazy: bool,
}

const MOMENTUM: Vector = Vector::State(0);

impl Algorithm for QgMomentum {
    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        let mut stepped = Outgoing::stepped();
        let part = -view.context.rate * view.context.momentum;
        stepped.content.push((MOMENTUM, part));
        vec![stepped]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let model = Assignment::mixed(Vector::Model, view.weights(self.lazy));
        let (rate, beta) = (view.context.rate, view.context.momentum);
        if rate == 0.0 {
            return model.into();
        }
        let part = (1.0 - beta) / rate;
        [
            Assignment::of(MOMENTUM, [(MOMENTUM, beta), (Vector::Model, part)]),
            model,
            Assignment::of(MOMENTUM, [(MOMENTUM, 1.0), (Vector::Model, -part)]),
        ]
        .into()
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        vec![StateVector { name: "quasi-global momentum", start: InitialValue::Zero }]
    }

    fn display_name(&self) -> String {
        "QG-DSGDm".into()
    }

    fn supports_leaders(&self) -> bool {
        true
    }

    fn supports_clipping(&self) -> bool {
        true
    }

    fn owns_momentum(&self) -> bool {
        true
    }
}
