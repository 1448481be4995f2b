//! A synchronous parameter server.

use super::{
    Algorithm, Assignment, Definition, Exchange, Links, Message, Method, Plan, Vector, View,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "parameter-server",
    about: "everyone sends its step to the centre and gets the centre's model back",
    paper: "Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server",
    build: |_| Ok(Method::Synchronous(Box::new(ParameterServer))),
};

/// c' = c - mean of all u_i; then x_i' = c'.
///
/// ```
/// use upwash::algorithm::{Algorithm, Exchange, ParameterServer};
/// assert_eq!(ParameterServer.exchanges(0), [Exchange::ToCentre, Exchange::FromCentre]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ParameterServer;

impl Algorithm for ParameterServer {
    fn messages(&self, view: &View<'_>) -> Vec<Message> {
        vec![if view.setting.centre == Some(view.worker) {
            Message::model()
        } else {
            Message::of([(Vector::Step, 1.0)])
        }]
    }

    fn plan(&self, view: &View<'_>) -> Plan {
        // Who receives nothing in this exchange waits.
        if view.received.is_empty() {
            return Plan::default();
        }
        if view.setting.centre != Some(view.worker) {
            let centre = view.received[0].0;
            return Assignment::mixed(Vector::Model, vec![(centre, 1.0)]).into();
        }
        let part = -1.0 / view.received.len() as f64;
        let steps = view.received.iter().map(|(sender, _)| (*sender, part));
        let mut model = Assignment::mixed(Vector::Model, steps.collect());
        model.add_own(Vector::Model, 1.0);
        model.into()
    }

    fn exchanges(&self, _: u64) -> Vec<Exchange> {
        vec![Exchange::ToCentre, Exchange::FromCentre]
    }

    fn links(&self) -> Links {
        Links::None
    }

    fn words(&self) -> String {
        "parameter server".into()
    }

    fn has_centre(&self) -> bool {
        true
    }

    fn starts_equal(&self) -> bool {
        true
    }
}
