//! Quasi-global momentum: momentum along the way that the models went together.

use super::{
    Algorithm, Assignment, Definition, Extra, ExtraStart, Message, Method, Plan, Vector, View,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "qg-momentum",
    about: "D-PSGD whose momentum follows the mixed models, not the local gradients",
    paper: "Lin et al. 2021, Quasi-Global Momentum (QG-DSGDm)",
    build: |options| {
        let lazy = options.flag("lazy", false, "(I + W)/2 for W")?;
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
    /// (I + W)/2 for W.
    pub lazy: bool,
}

const MOMENTUM: Vector = Vector::Extra(0);

impl Algorithm for QgMomentum {
    fn messages(&self, view: &View<'_>) -> Vec<Message> {
        let mut stepped = Message::stepped();
        let part = -view.setting.rate * view.setting.momentum;
        stepped.content.push((MOMENTUM, part));
        vec![stepped]
    }

    fn plan(&self, view: &View<'_>) -> Plan {
        let model = Assignment::mixed(Vector::Model, view.weights(self.lazy));
        let (rate, beta) = (view.setting.rate, view.setting.momentum);
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

    fn extras(&self) -> Vec<Extra> {
        vec![Extra {
            name: "quasi-global momentum",
            start: ExtraStart::Zero,
        }]
    }

    fn words(&self) -> String {
        "QG-DSGDm".into()
    }

    fn can_be_led(&self) -> bool {
        true
    }

    fn owns_momentum(&self) -> bool {
        true
    }
}
