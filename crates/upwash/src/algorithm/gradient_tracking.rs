//! Gradient tracking: every worker follows an estimate of the mean step of all.

use super::{
    Algorithm, Assignment, Definition, Extra, ExtraStart, Message, Method, Plan, Vector, View,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "gradient-tracking",
    about: "everyone steps along a running estimate of the mean step; two messages a round",
    paper: "Di Lorenzo and Scutari 2016, NEXT; Nedic et al. 2017, DIGing",
    build: |options| {
        let lazy = options.flag("lazy", false, "(I + W)/2 for W")?;
        Ok(Method::Synchronous(Box::new(GradientTracking { lazy })))
    },
};

/// S = T + U - U_before, X' = W (X - S), T' = W S. The mean of S is the mean of U in every round.
///
/// ```
/// use upwash::algorithm::{Algorithm, GradientTracking};
/// assert_eq!(GradientTracking { lazy: false }.extras().len(), 2);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GradientTracking {
    /// (I + W)/2 for W.
    pub lazy: bool,
}

const TRACKED: Vector = Vector::Extra(0);
const STEP_BEFORE: Vector = Vector::Extra(1);

impl Algorithm for GradientTracking {
    fn messages(&self, _: &View<'_>) -> Vec<Message> {
        let step = [(TRACKED, 1.0), (Vector::Step, 1.0), (STEP_BEFORE, -1.0)];
        let mut model = vec![(Vector::Model, 1.0)];
        model.extend(step.map(|(vector, weight)| (vector, -weight)));
        vec![Message::of(model), Message::of(step)]
    }

    fn plan(&self, view: &View<'_>) -> Plan {
        let row = view.weights(self.lazy);
        [
            Assignment::mixed(Vector::Model, row.clone()),
            Assignment {
                number: 1,
                ..Assignment::mixed(TRACKED, row)
            },
            Assignment::of(STEP_BEFORE, [(Vector::Step, 1.0)]),
        ]
        .into()
    }

    fn extras(&self) -> Vec<Extra> {
        let zero = |name| Extra {
            name,
            start: ExtraStart::Zero,
        };
        vec![zero("tracked step"), zero("step before")]
    }

    fn words(&self) -> String {
        "gradient tracking".into()
    }
}
