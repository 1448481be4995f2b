//! Decoupled weight decay of some parameters.

use crate::model::Layout;
use std::ops::Range;

/// The factor times the parameters that is added to their direction. By default biases and the scales and shifts of
/// normalizations do not decay: they are the tensors with fewer than two dimensions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightDecay {
    /// The factor.
    pub factor: f64,
    /// Whether all parameters decay.
    pub includes_norms_and_biases: bool,
    /// The parameters that decay, in a flat vector; all of them until the [layout is known](Self::for_layout).
    ranges: Option<Vec<Range<usize>>>,
}

impl WeightDecay {
    /// Weight decay of matrices and of the kernels of convolutions, or of all parameters.
    pub fn new(factor: f64, includes_norms_and_biases: bool) -> Self {
        Self { factor, includes_norms_and_biases, ranges: None }
    }

    /// The same, for the tensors of a model.
    #[must_use]
    pub(super) fn for_layout(&self, layout: &Layout) -> Self {
        let decays = |shape: &[usize]| self.includes_norms_and_biases || shape.len() > 1;
        let slots = layout.parameters.iter().filter(|slot| decays(&slot.shape));
        let ranges = slots.map(|slot| slot.offset..slot.offset + slot.size()).collect();
        Self { ranges: Some(ranges), ..self.clone() }
    }

    /// Adds the decay to a direction.
    pub(super) fn add_to(&self, direction: &mut [f32], parameters: &[f32]) {
        if self.factor == 0.0 {
            return;
        }
        let factor = self.factor as f32;
        let mut add = |range: Range<usize>| {
            let pairs = direction[range.clone()].iter_mut().zip(&parameters[range]);
            pairs.for_each(|(d, x)| *d += factor * x);
        };
        match &self.ranges {
            Some(ranges) => ranges.iter().cloned().for_each(add),
            None => add(0..parameters.len()),
        }
    }
}
