//! How an object was made: the call that makes it again where it is unpickled.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyString, PyTuple};

/// A call of Python without arguments that returns an equal object.
pub(crate) struct Origin(Py<PyAny>);

/// What `__reduce__` returns.
pub(crate) type Reduced<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

impl Origin {
    /// The call of a method of `source`. Its keyword arguments are (name, value).
    pub(crate) fn new<'py>(
        source: &Bound<'py, PyAny>,
        method: &str,
        arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>,
        keywords: &[(&str, Option<Bound<'py, PyAny>>)],
    ) -> PyResult<Self> {
        let py = source.py();
        let arguments = arguments.into_pyobject(py).map_err(Into::into)?;
        let function = PyTuple::new(py, [source.getattr(method)?])?;
        let all = function.add(arguments)?;
        let keywords = keywords.into_py_dict(py)?;
        let call = py.import("functools")?.getattr("partial")?.call(all.cast_into::<PyTuple>()?, Some(&keywords))?;
        Ok(Self(call.unbind()))
    }

    /// The answer of `__reduce__`.
    pub(crate) fn reduce<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        (self.0.bind(py).clone(), PyTuple::empty(py))
    }
}

/// The answer of `__reduce__` for an object that may have no origin. `remedy` says what to pickle instead.
pub(crate) fn reduce<'py>(py: Python<'py>, origin: Option<&Origin>, remedy: &str) -> PyResult<Reduced<'py>> {
    let none = || PyTypeError::new_err(format!("this object cannot be pickled: {remedy}"));
    Ok(origin.ok_or_else(none)?.reduce(py))
}

/// Weights as an argument that a caller cannot change afterwards.
pub(crate) fn kept_weights<'py>(weights: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Bound<'py, PyAny>>> {
    match weights {
        Some(matrix) if !matrix.is_instance_of::<PyString>() => {
            matrix.py().import("numpy")?.call_method1("array", (matrix,)).map(Some)
        }
        name => Ok(name.cloned()),
    }
}
