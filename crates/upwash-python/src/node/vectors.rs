//! The vectors of a training loop, which the thread of its worker reads and writes in place.

use crate::errors::Class;
use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use upwash::model::Layout;

/// The model and the batch-norm statistics of one worker.
pub(super) struct Vectors {
    model: Shared,
    statistics: Shared,
}

/// A vector in an array of numpy.
struct Shared {
    first: *mut f32,
    length: usize,
}

// SAFETY: only the thread that has it uses it, while the thread of the loop waits; see `Vectors::rows`.
#[allow(unsafe_code)]
unsafe impl Send for Shared {}

impl Shared {
    fn new(py: Python<'_>, array: &Bound<'_, PyArray1<f32>>, length: usize, what: &str) -> PyResult<Self> {
        if array.len() != length || !array.is_contiguous() {
            let text = format!("{what}: expected a contiguous array of {length} numbers, not of {}", array.len());
            return Err(Class::Internal.error(py, text));
        }
        Ok(Self { first: array.data(), length })
    }

    /// # Safety
    /// The array exists, and nothing else uses it while the slice exists.
    #[allow(unsafe_code)]
    unsafe fn slice(&mut self) -> &mut [f32] {
        match self.length {
            0 => &mut [],
            // SAFETY: the array has `length` elements, and the caller upholds the rest.
            length => unsafe { std::slice::from_raw_parts_mut(self.first, length) },
        }
    }
}

impl Vectors {
    /// The vectors of a model with this layout.
    pub(super) fn new(
        py: Python<'_>,
        layout: &Layout,
        model: &Bound<'_, PyArray1<f32>>,
        statistics: &Bound<'_, PyArray1<f32>>,
    ) -> PyResult<Self> {
        Ok(Self {
            model: Shared::new(py, model, layout.parameter_count(), "model")?,
            statistics: Shared::new(py, statistics, layout.statistic_count(), "statistics")?,
        })
    }

    /// The model and the statistics, each as the only row.
    ///
    /// # Safety
    /// The caller is answering a request of the loop. The loop's thread waits for the answer with its arrays in use, or has
    /// given the worker up and never frees them; another thread of Python that reads the model meanwhile may see numbers
    /// of two rounds, as with any optimizer that updates a model in place.
    #[allow(unsafe_code)]
    pub(super) unsafe fn rows(&mut self) -> (Vec<&mut [f32]>, Vec<&mut [f32]>) {
        let Self { model, statistics } = self;
        // SAFETY: as above; the two arrays are different ones.
        unsafe { (vec![model.slice()], vec![statistics.slice()]) }
    }
}
