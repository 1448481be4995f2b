//! Data sets from arrays.

use crate::errors::Class;
use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use std::sync::Arc;
use upwash::data::{Augmentation, Dataset, Images};

/// A data set in memory. `upwash.Dataset` prepares its arrays.
#[pyclass(frozen, name = "NativeDataset", module = "upwash._upwash")]
pub(crate) struct PyDataset(pub(crate) Arc<Dataset>);

#[pymethods]
impl PyDataset {
    /// `train` and `test` are pairs of pixels, one image a row, and labels.
    #[new]
    #[pyo3(signature = (name, shape, train, test, classes, crop_and_flip))]
    fn new(
        py: Python<'_>,
        name: &str,
        shape: [usize; 3],
        train: (PyReadonlyArray2<'_, u8>, PyReadonlyArray1<'_, u8>),
        test: (PyReadonlyArray2<'_, u8>, PyReadonlyArray1<'_, u8>),
        classes: Option<usize>,
        crop_and_flip: bool,
    ) -> PyResult<Self> {
        let images = |(pixels, labels): (PyReadonlyArray2<'_, u8>, PyReadonlyArray1<'_, u8>)| Images {
            shape,
            pixels: pixels.as_array().iter().copied().collect(),
            labels: labels.as_array().to_vec(),
        };
        let mut data = Dataset::new(name, images(train), images(test));
        data.classes = classes.unwrap_or(data.classes);
        if crop_and_flip {
            data.augmentation = Augmentation::CropAndFlip;
        }
        data.check().map_err(|what| Class::Data.error(py, what))?;
        Ok(Self(Arc::new(data)))
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn classes(&self) -> usize {
        self.0.classes
    }

    #[getter]
    fn shape(&self) -> [usize; 3] {
        self.0.train.shape
    }

    #[getter]
    fn train_examples(&self) -> usize {
        self.0.train.len()
    }

    #[getter]
    fn test_examples(&self) -> usize {
        self.0.test.len()
    }
}
