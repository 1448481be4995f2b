//! Numbers in JSON: what is not known or not finite is NaN in memory and `null` in a file.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

fn known(number: &f64) -> Option<f64> {
    number.is_finite().then_some(*number)
}

/// A number.
pub(super) mod one {
    use super::*;

    pub(in crate::run) fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
        known(x).serialize(to)
    }

    pub(in crate::run) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
    }
}

/// A list of numbers.
pub(super) mod list {
    use super::*;

    pub(in crate::run) fn serialize<S: Serializer>(all: &[f64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(known))
    }

    pub(in crate::run) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        let all = Vec::<Option<f64>>::deserialize(from)?;
        Ok(all.into_iter().map(|x| x.unwrap_or(f64::NAN)).collect())
    }
}

/// A list of numbers that may be absent.
pub(super) mod optional_list {
    use super::*;

    pub(in crate::run) fn serialize<S: Serializer>(all: &Option<Vec<f64>>, to: S) -> Result<S::Ok, S::Error> {
        let all = all.as_ref().map(|all| all.iter().map(known).collect());
        Option::<Vec<Option<f64>>>::serialize(&all, to)
    }

    pub(in crate::run) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<f64>>, D::Error> {
        let all = Option::<Vec<Option<f64>>>::deserialize(from)?;
        Ok(all.map(|all| all.into_iter().map(|x| x.unwrap_or(f64::NAN)).collect()))
    }
}
