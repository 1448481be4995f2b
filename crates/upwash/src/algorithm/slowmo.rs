//! SlowMo: slow momentum on top of any synchronous algorithm.

use super::{
    Algorithm, Assignment, Combination, Definition, Exchange, InitialValue, LocalView, Method, Outgoing, Plan,
    StateVector, Vector,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "slowmo",
    about: "any base, with a periodic exact average and a step with slow momentum",
    paper: "Wang et al. 2020, SlowMo: Improving Communication-Efficient Distributed SGD",
    build: |options| {
        let base = options.base("local-sgd")?;
        if base.state_vectors().iter().any(|vector| vector.name == "anchor") {
            return Err(options.refuse("base", "must be a synchronous algorithm other than slowmo and diloco"));
        }
        Ok(Method::Synchronous(Box::new(SlowMo {
            base,
            rate: options.number("slow_rate", 1.0, 1e-9..=f64::MAX, "alpha, the slow learning rate")?,
            momentum: options.number("slow_momentum", 0.5, 0.0..=0.999, "beta, the slow momentum")?,
            period: options.count("slow_period", 8, "tau, the number of rounds between slow steps")?,
        })))
    },
};

/// SlowMo takes a slow step after every `period` rounds of the base. Let a be the anchor, gamma the current rate, and v
/// the mean model that would result if every step since the anchor had been taken with the rate gamma. The slow
/// momentum becomes s' = beta s + (a - v) / gamma. The model becomes a - alpha gamma s', which is also the next anchor.
///
/// While the rate is constant, v is the mean model. For changing rates, each worker keeps a reference b, initially the
/// anchor, such that (b - x) / gamma is the sum of all steps since the anchor, each divided by its own rate. Then v is
/// the mean of a - (b - x). Only a change of the rate moves b.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct SlowMo {
    pub base: Box<dyn Algorithm>,
    pub rate: f64,
    pub momentum: f64,
    pub period: u64,
}

impl SlowMo {
    fn is_slow_step(&self, view: &LocalView<'_>) -> bool {
        let round = view.context.round.index();
        let last = self.exchanges(round).len() - 1;
        (round + 1).is_multiple_of(self.period) && view.context.exchange == last
    }

    /// Whether the base averages all models in this round. The slow step then uses that average.
    fn base_averages(&self, round: u64) -> bool {
        self.base.exchanges(round) == [Exchange::Mean]
    }
}

impl SlowMo {
    /// The state vectors: the anchor, the slow momentum and the reference.
    fn vectors(&self) -> [Vector; 3] {
        let first = self.base.state_vectors().len();
        [first, first + 1, first + 2].map(Vector::State)
    }

    /// The reference b in this exchange. After a change of the rate it is b' = x + (gamma / gamma_before) (b - x),
    /// which keeps (b - x) / gamma unchanged. With a rate of 0 there are no steps to rescale.
    fn reference(&self, view: &LocalView<'_>) -> Combination {
        let [_, _, reference] = self.vectors();
        let (rate, before) = (view.context.rate, view.context.previous_rate);
        if view.context.exchange > 0 || rate == before || rate == 0.0 || before == 0.0 {
            return vec![(reference, 1.0)];
        }
        let ratio = rate / before;
        let model = (1.0 - ratio) * view.own.scalar;
        vec![(reference, ratio), (Vector::Model, model)]
    }

    fn slow_step(&self, view: &LocalView<'_>) -> Vec<Assignment> {
        let ([anchor, slow, reference], model) = (self.vectors(), Vector::Model);
        // State vectors of the base that store a position of the model move with the model.
        let state_vectors = self.base.state_vectors();
        let is_position = |index: &usize| state_vectors[*index].start == InitialValue::Model;
        let positions = (0..state_vectors.len()).filter(is_position).map(Vector::State);
        let positions: Vec<Vector> = positions.collect();
        let moved = |position: &Vector, weight| Assignment::of(*position, [(*position, 1.0), (model, weight)]);
        let mut all: Vec<Assignment> = positions.iter().map(|position| moved(position, -1.0)).collect();
        let rate = view.context.rate;
        all.push(Assignment::averaged(model, 0));
        if rate > 0.0 {
            let (beta, inverse) = (self.momentum, 1.0 / rate);
            let momentum = [(slow, beta), (anchor, inverse), (model, -inverse)];
            all.push(Assignment::of(slow, momentum));
            let step = [(anchor, 1.0), (slow, -self.rate * rate)];
            all.push(Assignment::of(model, step));
        }
        all.push(Assignment::of(anchor, [(model, 1.0)]));
        all.push(Assignment::of(reference, [(model, 1.0)]));
        all.extend(positions.iter().map(|position| moved(position, 1.0)));
        all
    }
}

impl Algorithm for SlowMo {
    fn base(&self) -> Option<&dyn Algorithm> {
        Some(&*self.base)
    }

    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        if !self.is_slow_step(view) {
            return self.base.messages(view);
        }
        let message = match self.base_averages(view.context.round.index()) {
            true => self.base.messages(view).swap_remove(0),
            // Models with push-sum weights are averaged with these weights, whose mean is 1.
            false => Outgoing::of([(Vector::Model, view.own.scalar)]),
        };
        if view.context.rate == 0.0 {
            return vec![message];
        }
        // a - b comes first: while the rate is constant, it is exactly 0.
        let [anchor, ..] = self.vectors();
        let reference = self.reference(view);
        let reference = reference.into_iter().map(|(vector, weight)| (vector, -weight));
        let offset = [(anchor, 1.0)].into_iter().chain(reference);
        vec![Outgoing::of(offset.chain(message.content).collect::<Vec<_>>())]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        if self.is_slow_step(view) {
            return Plan { assignments: self.slow_step(view), scalar: Some(1.0), leaders: None };
        }
        let mut plan = self.base.plan(view);
        let moved = self.reference(view);
        if moved.len() > 1 {
            let [_, _, reference] = self.vectors();
            plan.assignments.insert(0, Assignment::of(reference, moved));
        }
        plan
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        let mut exchanges = self.base.exchanges(round);
        if (round + 1).is_multiple_of(self.period) && !self.base_averages(round) {
            exchanges.push(Exchange::Mean);
        }
        exchanges
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        let vector = |name, start| StateVector { name, start };
        let mut state_vectors = self.base.state_vectors();
        state_vectors.push(vector("anchor", InitialValue::Model));
        state_vectors.push(vector("slow momentum", InitialValue::Zero));
        state_vectors.push(vector("period reference", InitialValue::Model));
        state_vectors
    }

    fn display_name(&self) -> String {
        format!("SlowMo (period {}) over {}", self.period, self.base.display_name())
    }

    fn starts_equal(&self) -> bool {
        true
    }
}
