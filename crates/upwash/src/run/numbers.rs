//! Serde helpers for numbers: values that are unknown or not finite are NaN in memory and `null` in JSON.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

fn finite(number: &f64) -> Option<f64> {
    number.is_finite().then_some(*number)
}

/// A single number.
pub(super) mod one {
    use super::*;

    pub(in crate::run) fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
        finite(x).serialize(to)
    }

    pub(in crate::run) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
    }
}

/// A list of numbers.
pub(super) mod list {
    use super::*;

    pub(in crate::run) fn serialize<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(finite))
    }

    pub(in crate::run) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        let values = Vec::<Option<f64>>::deserialize(from)?;
        Ok(values.into_iter().map(|x| x.unwrap_or(f64::NAN)).collect())
    }
}

/// An optional list of numbers.
pub(super) mod optional_list {
    use super::*;

    pub(in crate::run) fn serialize<S: Serializer>(values: &Option<Vec<f64>>, to: S) -> Result<S::Ok, S::Error> {
        let values = values.as_ref().map(|values| values.iter().map(finite).collect());
        Option::<Vec<Option<f64>>>::serialize(&values, to)
    }

    pub(in crate::run) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<f64>>, D::Error> {
        let values = Option::<Vec<Option<f64>>>::deserialize(from)?;
        Ok(values.map(|values| values.into_iter().map(|x| x.unwrap_or(f64::NAN)).collect()))
    }
}
