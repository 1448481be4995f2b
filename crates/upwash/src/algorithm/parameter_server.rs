//! A synchronous parameter server.

use super::{Algorithm, Assignment, Definition, Exchange, Links, LocalView, Method, Outgoing, Plan, Vector};

pub(super) const DEFINITION: Definition = Definition {
    name: "parameter-server",
    about: "every worker sends its step to the server and gets the server's model back",
    paper: "Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server",
    build: |_| Ok(Method::Synchronous(Box::new(ParameterServer))),
};

/// First c' = c - mean of all u_i, then x_i' = c'.
///
/// ```
/// use upwash::algorithm::{Algorithm, Exchange, ParameterServer};
/// assert_eq!(ParameterServer.exchanges(0), [Exchange::ToServer, Exchange::FromServer]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ParameterServer;

impl Algorithm for ParameterServer {
    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        vec![if view.context.server == Some(view.worker) {
            Outgoing::model()
        } else {
            Outgoing::of([(Vector::Step, 1.0)])
        }]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        // A worker that receives nothing in this exchange does not change.
        if view.received.is_empty() {
            return Plan::default();
        }
        if view.context.server != Some(view.worker) {
            let server = view.received[0].0;
            return Assignment::mixed(Vector::Model, vec![(server, 1.0)]).into();
        }
        let weight = -1.0 / view.received.len() as f64;
        let steps = view.received.iter().map(|(sender, _)| (*sender, weight));
        let mut model = Assignment::mixed(Vector::Model, steps.collect());
        model.add_own(Vector::Model, 1.0);
        model.into()
    }

    fn exchanges(&self, _: u64) -> Vec<Exchange> {
        vec![Exchange::ToServer, Exchange::FromServer]
    }

    fn links(&self) -> Links {
        Links::None
    }

    fn display_name(&self) -> String {
        "parameter server".into()
    }

    fn has_server(&self) -> bool {
        true
    }

    fn starts_equal(&self) -> bool {
        true
    }
}
