//! Pages, figures and tables of runs, from their directories.

use crate::compute::detached;
use crate::errors::Class;
use numpy::IntoPyArray;
use numpy::ndarray::Array;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use safetensors::{Dtype, SafeTensors};
use std::path::PathBuf;
use upwash_report::Run;

fn read(py: Python<'_>, folders: Vec<PathBuf>) -> PyResult<Vec<Run>> {
    let runs = detached(py, move || Run::read_all(&folders))?;
    runs.map_err(|error| Class::RunDirectory.error(py, crate::errors::text(&error)))
}

/// A run as JSON: what its files say.
#[pyfunction]
pub(crate) fn run_json(py: Python<'_>, folder: PathBuf) -> PyResult<String> {
    let runs = read(py, vec![folder])?;
    serde_json::to_string(&runs[0]).map_err(|error| Class::Internal.error(py, error.to_string()))
}

/// Whether a process is writing to the events in a folder now.
#[pyfunction]
pub(crate) fn is_running(folder: PathBuf) -> bool {
    upwash::run::directory::is_running(&folder)
}

/// A page about runs: one HTML file.
#[pyfunction]
pub(crate) fn report_page(py: Python<'_>, folders: Vec<PathBuf>) -> PyResult<String> {
    let runs = read(py, folders)?;
    detached(py, move || upwash_report::page(&runs))
}

/// (name, SVG) of every figure of runs.
#[pyfunction]
pub(crate) fn figures(py: Python<'_>, folders: Vec<PathBuf>) -> PyResult<Vec<(String, String)>> {
    let runs = read(py, folders)?;
    let drawn: Result<Vec<_>, String> = detached(py, move || {
        let figures = upwash_report::figures(&runs).into_iter();
        figures.map(|figure| Ok((figure.name.clone(), figure.svg()?))).collect()
    })?;
    drawn.map_err(|what| Class::Internal.error(py, what))
}

/// Half the width of the 95 % confidence interval of the mean; none of a single value.
#[pyfunction]
pub(crate) fn margin(values: Vec<f64>) -> Option<f64> {
    upwash_report::statistics::margin(&values)
}

/// The tensors in a safetensors file.
#[pyfunction]
pub(crate) fn read_model<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyDict>> {
    let damaged = |what: String| Class::RunDirectory.error(py, format!("cannot read {}: {what}", path.display()));
    let bytes = std::fs::read(&path).map_err(|error| damaged(error.to_string()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
    let model = PyDict::new(py);
    let mut tensors = file.tensors();
    tensors.sort_by_key(|(name, _)| natural_key(name));
    for (name, tensor) in tensors {
        if tensor.dtype() != Dtype::F32 {
            return Err(damaged(format!("tensor {name} is not of type float32")));
        }
        let numbers =
            tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let array = Array::from_shape_vec(tensor.shape().to_vec(), numbers.collect());
        let array = array.map_err(|error| damaged(error.to_string()))?;
        model.set_item(name, array.into_pyarray(py))?;
    }
    Ok(model)
}

/// Orders names by their parts, and numbers in them by value: layer 10 comes after layer 9, weights before biases.
fn natural_key(name: &str) -> Vec<(u64, String)> {
    let part = |part: &str| match part.parse() {
        Ok(number) => (number, String::new()),
        Err(_) => (u64::from(part != "weight"), part.to_owned()),
    };
    name.split('.').map(part).collect()
}
