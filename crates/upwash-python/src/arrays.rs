//! Matrices and lists of links as numpy arrays, and back.

use crate::errors::Class;
use numpy::ndarray::Array2;
use numpy::{AllowTypeChange, IntoPyArray, PyArray1, PyArray2, PyArrayLike1, PyArrayLike2};
use pyo3::exceptions::{PyMemoryError, PyOverflowError};
use pyo3::prelude::*;
use upwash_topology::{Edge, Matrix, Mixing};

/// The most workers for which a dense matrix is made: it takes 2 GiB.
const MAX_DENSE: usize = 1 << 14;
/// The most entries of an adjacency matrix: each of a graph's links, of which there can be 2^23, has two.
const MAX_ENTRIES: usize = 1 << 24;
/// The most workers for which eigenvalues are computed: as for `upwash topology analyze`.
const MAX_SPECTRUM: usize = 4096;

/// The number from which on rounds are refused: products with it could overflow.
const MAX_ROUNDS: u64 = 1 << 53;

/// A whole number from 0. Python's integers have no limits, and one that does not fit is an error of this class instead of an
/// `OverflowError`.
pub(crate) fn whole(value: &Bound<'_, PyAny>, class: Class) -> PyResult<u64> {
    value.extract::<u64>().map_err(|error| match error.is_instance_of::<PyOverflowError>(value.py()) {
        true => class.error(value.py(), format!("{value} is out of range: expected a whole number from 0")),
        false => error,
    })
}

macro_rules! whole_numbers {
    ($($(#[$about:meta])* $name:ident: $class:ident;)+) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy)]
            pub(crate) struct $name(pub(crate) u64);

            impl FromPyObject<'_, '_> for $name {
                type Error = PyErr;

                fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
                    whole(&value, Class::$class).map(Self)
                }
            }

            impl From<$name> for usize {
                /// A number that does not fit is out of every range that is checked.
                fn from(number: $name) -> usize {
                    usize::try_from(number.0).unwrap_or(usize::MAX)
                }
            }
        )+
    };
}

whole_numbers! {
    /// The number of a worker, of a round or of copies of a graph.
    GraphNumber: Graph;
    /// The number of a worker, of a round or of examples of a run.
    RunNumber: Config;
}

/// Worker numbers.
pub(crate) fn workers(numbers: Vec<GraphNumber>) -> Vec<usize> {
    numbers.into_iter().map(usize::from).collect()
}

/// The seed of random choices of a graph.
pub(crate) fn seed(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(value, Class::Graph)
}

/// Refuses rounds that no run has.
pub(crate) fn check_round(py: Python<'_>, RunNumber(round): RunNumber) -> PyResult<u64> {
    match round < MAX_ROUNDS {
        true => Ok(round),
        false => {
            Err(Class::Config.error(py, format!("round {round}: rounds are numbered from 0 to {}", MAX_ROUNDS - 1)))
        }
    }
}

/// Refuses `count` matrices at a time for which there is no memory: an allocation that fails would end the interpreter.
pub(crate) fn check_dense(py: Python<'_>, nodes: usize, count: usize) -> PyResult<()> {
    let remedy = "the links are in `edges`, and mixing matrices can be sparse";
    check_size(py, nodes, MAX_DENSE, "for a dense matrix", remedy)?;
    check_memory(py, nodes, count, remedy)
}

fn check_memory(py: Python<'_>, nodes: usize, count: usize, remedy: &str) -> PyResult<()> {
    let numbers = nodes.saturating_mul(nodes).saturating_mul(count);
    let mut room = Vec::<f64>::new();
    let reserved = room.try_reserve_exact(numbers);
    // A compiler may leave out an allocation that nothing uses.
    std::hint::black_box(&room);
    reserved.map_err(|_| {
        let gigabytes = 8.0 * numbers as f64 / 1e9;
        let text = format!(
            "a dense matrix of {nodes}x{nodes} numbers needs {gigabytes:.1} GB while it is made, for which there is \
             not enough memory: {remedy}"
        );
        Class::Graph.error(py, text)
    })
}

/// Refuses eigenvalues that would take hours.
pub(crate) fn check_spectrum(py: Python<'_>, nodes: usize) -> PyResult<()> {
    let remedy = "leave them out, or use metropolis weights";
    check_size(py, nodes, MAX_SPECTRUM, "for eigenvalues", remedy)?;
    check_memory(py, nodes, 4, remedy)
}

fn check_size(py: Python<'_>, nodes: usize, most: usize, what: &str, remedy: &str) -> PyResult<()> {
    match nodes <= most {
        true => Ok(()),
        false => {
            let text = format!("{nodes} workers are too many {what}: at most {most}; {remedy}");
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
    check_dense(py, mixing.nodes(), 1)?;
    let mut dense = Array2::zeros((mixing.nodes(), mixing.nodes()));
    for worker in 0..mixing.nodes() {
        for &(sender, weight) in mixing.row(worker) {
            dense[(worker, sender)] = weight;
        }
    }
    Ok(dense.into_pyarray(py))
}

/// A mixing matrix as a `csr_array` of scipy.
pub(crate) fn sparse<'py>(py: Python<'py>, mixing: &Mixing) -> PyResult<Bound<'py, PyAny>> {
    let scipy = py.import("scipy.sparse").map_err(|_| {
        let text = "a sparse matrix needs the package scipy: pip install scipy, or upwash[graphs]";
        Class::MissingPackage.error(py, text)
    })?;
    let rows = || (0..mixing.nodes()).map(|worker| mixing.row(worker));
    let mut starts = vec![0];
    starts.extend(rows().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    }));
    let weights: Vec<f64> = rows().flatten().map(|&(_, weight)| weight).collect();
    let senders = integers(py, rows().flatten().map(|&(sender, _)| sender));
    let parts = (weights.into_pyarray(py), senders, integers(py, starts));
    scipy.call_method1("csr_array", (parts, (mixing.nodes(), mixing.nodes())))
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

/// The size of a square matrix, and where it is not 0.
pub(crate) type Entries = (usize, Vec<Edge>);

/// The entries of something that numpy takes as a square matrix.
pub(crate) fn dense_entries(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Entries> {
    let rows = square(value, what)?;
    let row = |(i, row): (usize, &Vec<f64>)| {
        let nonzero = row.iter().enumerate().filter(|(_, entry)| **entry != 0.0);
        nonzero.map(|(j, _)| (i, j)).collect::<Vec<_>>()
    };
    let entries: Vec<Edge> = rows.iter().enumerate().flat_map(row).take(MAX_ENTRIES + 1).collect();
    match entries.len() <= MAX_ENTRIES {
        true => Ok((rows.len(), entries)),
        false => Err(Class::Graph.error(value.py(), format!("{what}: at most {MAX_ENTRIES} entries may not be 0"))),
    }
}

/// The entries of a matrix of scipy, which may be too large to be made dense.
pub(crate) fn sparse_entries(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Entries> {
    let py = value.py();
    let (rows, columns) = value.getattr("shape")?.extract()?;
    check_square(py, (rows, columns), what)?;
    let entries = value.call_method0("tocoo")?;
    let numbers = entries.getattr("data")?.extract::<PyArrayLike1<'_, f64, AllowTypeChange>>();
    let numbers = numbers.map_err(|error| no_numbers(value, what, error))?;
    if let Some(index) = numbers.as_array().iter().position(|number| !number.is_finite()) {
        let place = |name: &str| entries.getattr(name)?.get_item(index)?.extract::<usize>();
        let at = (place("row")?, place("col")?);
        return Err(not_finite(py, what, at, numbers.as_array()[index]));
    }
    let (row, column): (Vec<usize>, Vec<usize>) = value.call_method0("nonzero")?.extract()?;
    Ok((rows, row.into_iter().zip(column).collect()))
}

fn not_finite(py: Python<'_>, what: &str, (row, column): (usize, usize), entry: f64) -> PyErr {
    let text = format!("{what}: entry ({row}, {column}) is {entry}: expected finite numbers");
    Class::Graph.error(py, text)
}

/// The error for something that numpy cannot read.
fn no_numbers(value: &Bound<'_, PyAny>, what: &str, error: PyErr) -> PyErr {
    let (py, kind) = (value.py(), value.get_type());
    match error.is_instance_of::<PyMemoryError>(py) {
        true => error,
        false => Class::Graph.error(py, format!("{what}: expected a square matrix of numbers, not {kind}")),
    }
}

fn check_square(py: Python<'_>, (rows, columns): (usize, usize), what: &str) -> PyResult<()> {
    match rows == columns {
        true => Ok(()),
        false => {
            let text = format!("{what}: expected a square matrix, not one of shape {rows}x{columns}");
            Err(Class::Graph.error(py, text))
        }
    }
}

/// The rows of something that numpy takes as a square matrix.
pub(crate) fn square(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<Vec<f64>>> {
    let py = value.py();
    let read = value.extract::<PyArrayLike2<'_, f64, AllowTypeChange>>();
    let array = read.map_err(|error| no_numbers(value, what, error))?;
    let array = array.as_array();
    check_square(py, array.dim(), what)?;
    check_memory(py, array.nrows(), 1, "pass a sparse matrix of scipy")?;
    if let Some((at, &entry)) = array.indexed_iter().find(|(_, entry)| !entry.is_finite()) {
        return Err(not_finite(py, what, at, entry));
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
