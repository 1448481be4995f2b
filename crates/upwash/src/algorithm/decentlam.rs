//! DecentLaM: momentum without the bias that it has in D-PSGD.

use super::{Algorithm, Assignment, Definition, InitialValue, LocalView, Method, Plan, StateVector, Vector};

pub(super) const DEFINITION: Definition = Definition {
    name: "decentlam",
    about: "D-PSGD whose momentum includes the disagreement with the neighbors, which removes its bias",
    paper: "Yuan et al. 2021, DecentLaM: Decentralized Momentum SGD for Large-batch Deep Training",
    build: |options| {
        let lazy = options.flag("lazy", true, "use (I + W)/2 instead of W, as the paper does")?;
        Ok(Method::Synchronous(Box::new(DecentLaM { lazy })))
    },
};

/// With beta = training.momentum: G = (X - W (X - U)) / gamma, M' = beta M + G, X' = X - gamma M'.
///
/// ```
/// use upwash::algorithm::{Algorithm, DecentLaM};
/// assert!(DecentLaM { lazy: true }.owns_momentum());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DecentLaM {
    /// Whether to use (I + W)/2 instead of W.
    pub lazy: bool,
}

const MOMENTUM: Vector = Vector::State(0);

impl Algorithm for DecentLaM {
    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let (rate, beta) = (view.context.rate, view.context.momentum);
        if rate == 0.0 {
            return Assignment::mixed(Vector::Model, view.weights(self.lazy)).into();
        }
        let mut momentum = Assignment::mixed(MOMENTUM, view.weights(self.lazy));
        momentum.scale(-1.0 / rate);
        momentum.own = vec![(MOMENTUM, beta), (Vector::Model, 1.0 / rate)];
        [momentum, Assignment::of(Vector::Model, [(Vector::Model, 1.0), (MOMENTUM, -rate)])].into()
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        vec![StateVector { name: "momentum with disagreement", start: InitialValue::Zero }]
    }

    fn display_name(&self) -> String {
        "DecentLaM".into()
    }

    fn owns_momentum(&self) -> bool {
        true
    }
}
