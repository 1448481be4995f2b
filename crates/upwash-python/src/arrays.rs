//! Matrices and lists of links as numpy arrays, and back.

use crate::errors::Class;
use numpy::ndarray::Array2;
use numpy::{AllowTypeChange, IntoPyArray, PyArray1, PyArray2, PyArrayLike2};
use pyo3::prelude::*;
use upwash_topology::{Edge, Matrix, Mixing};

/// The most workers for which a dense matrix is made: it takes 2 GiB.
const MAX_DENSE: usize = 1 << 14;
/// The most workers for which eigenvalues are computed: as for `upwash topology analyze`.
const MAX_SPECTRUM: usize = 4096;

/// Refuses matrices for which there is no memory: an allocation that fails would end the interpreter.
pub(crate) fn check_dense(py: Python<'_>, nodes: usize) -> PyResult<()> {
    check_size(py, nodes, MAX_DENSE, "for a dense matrix")
}

/// Refuses eigenvalues that would take hours.
pub(crate) fn check_spectrum(py: Python<'_>, nodes: usize) -> PyResult<()> {
    check_size(py, nodes, MAX_SPECTRUM, "for eigenvalues")
}

fn check_size(py: Python<'_>, nodes: usize, most: usize, what: &str) -> PyResult<()> {
    match nodes <= most {
        true => Ok(()),
        false => {
            let text = format!("{nodes} workers are too many {what}: at most {most}; the links are in `edges`");
            Err(Class::Graph.error(py, text))
        }
    }
}

/// A dense matrix.
pub(crate) fn matrix<'py>(py: Python<'py>, matrix: &Matrix) -> Bound<'py, PyArray2<f64>> {
    Array2::from_shape_fn((matrix.rows(), matrix.columns()), |at| matrix[at]).into_pyarray(py)
}

/// A mixing matrix as a dense one.
pub(crate) fn mixing<'py>(py: Python<'py>, mixing: &Mixing) -> PyResult<Bound<'py, PyArray2<f64>>> {
    check_dense(py, mixing.nodes())?;
    let mut dense = Array2::zeros((mixing.nodes(), mixing.nodes()));
    for worker in 0..mixing.nodes() {
        for &(sender, weight) in mixing.row(worker) {
            dense[(worker, sender)] = weight;
        }
    }
    Ok(dense.into_pyarray(py))
}

/// Links, one a row.
pub(crate) fn links<'py>(py: Python<'py>, links: &[Edge]) -> Bound<'py, PyArray2<i64>> {
    let end = |(row, column): (usize, usize)| if column == 0 { links[row].0 as i64 } else { links[row].1 as i64 };
    Array2::from_shape_fn((links.len(), 2), end).into_pyarray(py)
}

/// Counts or worker numbers.
pub(crate) fn integers<'py>(py: Python<'py>, values: impl IntoIterator<Item = usize>) -> Bound<'py, PyArray1<i64>> {
    let values: Vec<i64> = values.into_iter().map(|value| value as i64).collect();
    values.into_pyarray(py)
}

/// Numbers.
pub(crate) fn numbers<'py>(py: Python<'py>, values: &[f64]) -> Bound<'py, PyArray1<f64>> {
    PyArray1::from_slice(py, values)
}

/// The rows of something that numpy takes as a square matrix.
pub(crate) fn square(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<Vec<f64>>> {
    let py = value.py();
    let read = value.extract::<PyArrayLike2<'_, f64, AllowTypeChange>>();
    let array = read.map_err(|_| {
        let kind = value.get_type();
        Class::Graph.error(py, format!("{what}: expected a square matrix of numbers, not {kind}"))
    })?;
    let array = array.as_array();
    let (rows, columns) = array.dim();
    if rows != columns {
        return Err(
            Class::Graph.error(py, format!("{what}: expected a square matrix, not one of shape {rows}x{columns}"))
        );
    }
    Ok(array.outer_iter().map(|row| row.to_vec()).collect())
}

/// The links in an array or a list of pairs.
pub(crate) fn pairs(value: &Bound<'_, PyAny>) -> PyResult<Vec<Edge>> {
    let py = value.py();
    let wrong = |what: String| {
        let text = format!("links: {what}; write pairs of worker numbers, such as [(0, 1), (1, 2)]");
        Class::Graph.error(py, text)
    };
    let mut links = Vec::new();
    for (index, link) in value.try_iter().map_err(|error| wrong(error.to_string()))?.enumerate() {
        let link = link?;
        let ends: Vec<Bound<'_, PyAny>> = link.try_iter().and_then(Iterator::collect).unwrap_or_default();
        let end = |end: &Bound<'_, PyAny>| end.extract::<usize>().ok();
        let pair = match &ends[..] {
            [from, to] => end(from).zip(end(to)),
            _ => None,
        };
        links.push(pair.ok_or_else(|| wrong(format!("link {index} is {link}")))?);
    }
    Ok(links)
}
