//! All-reduce SGD, as in PyTorch's DistributedDataParallel.

use super::{Algorithm, Assignment, Definition, Exchange, Links, LocalView, Method, Plan, Vector};

pub(super) const DEFINITION: Definition = Definition {
    name: "all-reduce",
    about: "every worker steps along the mean of all gradients (DistributedDataParallel)",
    paper: "folklore; ring all-reduce: Patarasuk and Yuan 2009",
    build: |_| Ok(Method::Synchronous(Box::new(AllReduce))),
};

/// X' = J (X - U). From equal starts, the models stay equal and each steps along the mean gradient.
///
/// ```
/// use upwash::algorithm::{Algorithm, AllReduce};
/// assert!(AllReduce.starts_equal());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AllReduce;

impl Algorithm for AllReduce {
    fn plan(&self, _: &LocalView<'_>) -> Plan {
        Assignment::averaged(Vector::Model, 0).into()
    }

    fn exchanges(&self, _: u64) -> Vec<Exchange> {
        vec![Exchange::Mean]
    }

    fn links(&self) -> Links {
        Links::None
    }

    fn display_name(&self) -> String {
        "all-reduce SGD".into()
    }

    fn starts_equal(&self) -> bool {
        true
    }
}
