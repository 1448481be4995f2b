//! SlowMo: a slow momentum around any synchronous base.

use super::{
    Algorithm, Assignment, Definition, Exchange, Extra, ExtraStart, Message, Method, Plan, Vector,
    View,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "slowmo",
    about: "any base; every so many rounds an exact average and a step with slow momentum",
    paper: "Wang et al. 2020, SlowMo: Improving Communication-Efficient Distributed SGD",
    build: |options| {
        let base = options.base("local-sgd")?;
        if base.extras().iter().any(|extra| extra.name == "anchor") {
            return Err(options.refuse("base", "another algorithm than slowmo itself"));
        }
        Ok(Method::Synchronous(Box::new(SlowMo {
            base,
            rate: options.number("slow_rate", 1.0, 1e-9..=f64::MAX, "alpha, the slow rate")?,
            momentum: options.number("slow_momentum", 0.5, 0.0..=0.999, "beta, its momentum")?,
            period: options.count("slow_period", 8, "tau, rounds from slow step to slow step")?,
        })))
    },
};

/// After every `period` rounds of the base: x becomes the mean x' of all, the slow momentum
/// s' = beta s + (a - x') / gamma, and the model a - alpha gamma s', which is the next anchor a.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct SlowMo {
    pub base: Box<dyn Algorithm>,
    pub rate: f64,
    pub momentum: f64,
    pub period: u64,
}

impl SlowMo {
    fn is_slow_step(&self, view: &View<'_>) -> bool {
        let round = view.setting.round.index();
        let last = self.exchanges(round).len() - 1;
        (round + 1).is_multiple_of(self.period) && view.setting.exchange == last
    }

    /// Whether the base averages all models anyway: then that is the slow step's average.
    fn base_averages(&self, round: u64) -> bool {
        self.base.exchanges(round) == [Exchange::Mean]
    }
}

impl Algorithm for SlowMo {
    fn base(&self) -> Option<&dyn Algorithm> {
        Some(&*self.base)
    }

    fn messages(&self, view: &View<'_>) -> Vec<Message> {
        if self.is_slow_step(view) && !self.base_averages(view.setting.round.index()) {
            // Where models have weights (push-sum), their mean has them too; the weights' mean is 1.
            return vec![Message::of([(Vector::Model, view.own.number)])];
        }
        self.base.messages(view)
    }

    fn plan(&self, view: &View<'_>) -> Plan {
        if !self.is_slow_step(view) {
            return self.base.plan(view);
        }
        let extras = self.base.extras();
        let (anchor, slow) = (Vector::Extra(extras.len()), Vector::Extra(extras.len() + 1));
        let (model, rate) = (Vector::Model, view.setting.rate);
        // What the base remembers as a place of the model moves with the model.
        let is_place = |index: &usize| extras[*index].start == ExtraStart::Model;
        let places = (0..extras.len()).filter(is_place).map(Vector::Extra);
        let places: Vec<Vector> = places.collect();
        let moved =
            |place: &Vector, weight| Assignment::of(*place, [(*place, 1.0), (model, weight)]);
        let mut all: Vec<Assignment> = places.iter().map(|place| moved(place, -1.0)).collect();
        all.push(Assignment::averaged(model, 0));
        if rate > 0.0 {
            let (beta, inverse) = (self.momentum, 1.0 / rate);
            let step = [(slow, beta), (anchor, inverse), (model, -inverse)];
            all.push(Assignment::of(slow, step));
            all.push(Assignment::of(
                model,
                [(anchor, 1.0), (slow, -self.rate * rate)],
            ));
        }
        all.push(Assignment::of(anchor, [(model, 1.0)]));
        all.extend(places.iter().map(|place| moved(place, 1.0)));
        Plan {
            assignments: all,
            number: Some(1.0),
            leaders: None,
        }
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        let mut exchanges = self.base.exchanges(round);
        if (round + 1).is_multiple_of(self.period) && !self.base_averages(round) {
            exchanges.push(Exchange::Mean);
        }
        exchanges
    }

    fn extras(&self) -> Vec<Extra> {
        let extra = |name, start| Extra { name, start };
        let mut extras = self.base.extras();
        extras.push(extra("anchor", ExtraStart::Model));
        extras.push(extra("slow momentum", ExtraStart::Zero));
        extras
    }

    fn words(&self) -> String {
        format!("SlowMo (period {}) over {}", self.period, self.base.words())
    }

    fn starts_equal(&self) -> bool {
        true
    }
}
