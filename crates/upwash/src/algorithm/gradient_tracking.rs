//! Gradient tracking: every worker follows an estimate of the mean gradient of all workers.

use super::{
    Algorithm, Assignment, Definition, InitialValue, LocalView, Method, Outgoing, Plan, Restart, StateVector, Vector,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "gradient-tracking",
    about: "every worker steps along a running estimate of the mean gradient; two messages per round",
    paper: "Di Lorenzo and Scutari 2016, NEXT; Nedic et al. 2017, DIGing",
    build: |options| {
        let lazy = options.flag("lazy", false, "use (I + W)/2 instead of W")?;
        Ok(Method::Synchronous(Box::new(GradientTracking { lazy })))
    },
};

/// With gradients G = U / gamma: S = T + G - G_before, X' = W (X - gamma S), T' = W S. In every round the mean of S is
/// the mean of G, also when the rate changes.
///
/// ```
/// use upwash::algorithm::{Algorithm, GradientTracking};
/// assert_eq!(GradientTracking { lazy: false }.state_vectors().len(), 2);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GradientTracking {
    /// Whether to use (I + W)/2 instead of W.
    pub lazy: bool,
}

const TRACKED: Vector = Vector::State(0);
const GRADIENT_BEFORE: Vector = Vector::State(1);

impl Algorithm for GradientTracking {
    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        let rate = view.context.rate;
        if rate == 0.0 {
            // Without a step the gradient is unknown. Both averages continue.
            return vec![Outgoing::model(), Outgoing::of([(TRACKED, 1.0)])];
        }
        let mut model = Outgoing::stepped();
        let tracked = [(TRACKED, -rate), (GRADIENT_BEFORE, rate)];
        model.content.extend(tracked);
        let gradient = [(TRACKED, 1.0), (Vector::Step, 1.0 / rate), (GRADIENT_BEFORE, -1.0)];
        vec![model, Outgoing::of(gradient)]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let (row, rate) = (view.weights(self.lazy), view.context.rate);
        let model = Assignment::mixed(Vector::Model, row.clone());
        let tracked = Assignment { message_index: 1, ..Assignment::mixed(TRACKED, row) };
        if rate == 0.0 {
            return [model, tracked].into();
        }
        let before = Assignment::of(GRADIENT_BEFORE, [(Vector::Step, 1.0 / rate)]);
        [model, tracked, before].into()
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        let zero = |name| StateVector { name, start: InitialValue::Zero };
        vec![zero("tracked gradient"), zero("gradient before")]
    }

    /// A worker that leaves takes part of the tracked gradients with it. Each worker starts again from its own gradient.
    fn restart(&self) -> Restart {
        Restart { state_vectors: vec![(0, Some(1))], ..Restart::default() }
    }

    fn display_name(&self) -> String {
        "gradient tracking".into()
    }
}
