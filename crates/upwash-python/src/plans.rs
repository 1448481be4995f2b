//! Plans, messages and exchanges as Python writes them.
//!
//! A vector is named `"model"`, `"step"` or by the name of a state vector. Weights are a dict or a list of pairs; the
//! weights of a sender that is listed twice are added.

use crate::arrays;
use crate::errors::Class;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use upwash::WorkerId;
use upwash::algorithm::{Combination, Exchange, InitialValue, Outgoing, StateVector};
use upwash::compress::Compression;
use upwash::{Assignment, Plan, Vector};

const EXCHANGES: [(&str, Exchange); 8] = [
    ("neighbors", Exchange::Neighbors),
    ("early", Exchange::Early),
    ("mean", Exchange::Mean),
    ("chosen", Exchange::Chosen),
    ("server", Exchange::Server),
    ("to-server", Exchange::ToServer),
    ("from-server", Exchange::FromServer),
    ("nothing", Exchange::Nothing),
];

/// The names of an algorithm's state vectors.
pub(crate) struct Names {
    pub(crate) state_vectors: Vec<StateVector>,
}

impl Names {
    pub(crate) fn read(algorithm: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = algorithm.py();
        let declared = algorithm.getattr("state_vectors")?;
        let declared = declared.cast::<PyDict>().map_err(|_| {
            Class::Algorithm.error(py, "state_vectors: write a dict from names to \"zero\" or \"model\"")
        })?;
        let mut state_vectors = Vec::new();
        for (name, start) in declared {
            let name: String = name.extract()?;
            let start = match &start.extract::<String>()?[..] {
                "zero" => InitialValue::Zero,
                "model" => InitialValue::Model,
                other => {
                    let text = format!("state_vectors: {name} starts as \"{other}\"; write \"zero\" or \"model\"");
                    return Err(Class::Algorithm.error(py, text));
                }
            };
            if name == "model" || name == "step" {
                let text = format!("state_vectors: \"{name}\" is the name of a vector that every worker has");
                return Err(Class::Algorithm.error(py, text));
            }
            // Names live as long as the process; an algorithm has a few of them.
            state_vectors.push(StateVector { name: name.leak(), start });
        }
        Ok(Self { state_vectors })
    }

    fn index(&self, py: Python<'_>, name: &str) -> PyResult<usize> {
        let index = self.state_vectors.iter().position(|vector| vector.name == name);
        index.ok_or_else(|| {
            let known: Vec<&str> = self.state_vectors.iter().map(|vector| vector.name).collect();
            let text = format!("vector \"{name}\" is unknown: write model, step or a state vector {known:?}");
            Class::Algorithm.error(py, text)
        })
    }

    fn vector(&self, name: &Bound<'_, PyAny>) -> PyResult<Vector> {
        let py = name.py();
        let name = name.cast::<PyString>().map_err(|_| {
            let text = format!("{name} is not the name of a vector: write model, step or a state vector");
            Class::Algorithm.error(py, text)
        })?;
        Ok(match &*name.to_cow()? {
            "model" => Vector::Model,
            "step" => Vector::Step,
            name => Vector::State(self.index(py, name)?),
        })
    }
}

/// The exchange with this name.
pub(crate) fn exchange(py: Python<'_>, name: &str) -> PyResult<Exchange> {
    let found = EXCHANGES.iter().find(|entry| entry.0 == name);
    found.map(|entry| entry.1).ok_or_else(|| {
        let known: Vec<&str> = EXCHANGES.iter().map(|entry| entry.0).collect();
        Class::Algorithm.error(py, format!("exchange \"{name}\" is unknown: write one of {}", known.join(", ")))
    })
}

/// The entries of a dict, or pairs.
fn entries<'py>(
    value: &Bound<'py, PyAny>,
    mut each: impl FnMut(Bound<'py, PyAny>, f64) -> PyResult<()>,
) -> PyResult<()> {
    let py = value.py();
    let number = |weight: Bound<'py, PyAny>| {
        weight.extract::<f64>().map_err(|_| Class::Algorithm.error(py, format!("weight {weight:?} is not a number")))
    };
    if let Ok(dict) = value.cast::<PyDict>() {
        for (key, weight) in dict {
            each(key, number(weight)?)?;
        }
        return Ok(());
    }
    let wrong = |what: &Bound<'py, PyAny>| {
        let text = format!("weights are a dict or a list of (sender, weight), not {what:?}");
        Class::Algorithm.error(py, text)
    };
    for pair in value.try_iter().map_err(|_| wrong(value))? {
        let pair = pair?;
        let (key, weight): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair.extract().map_err(|_| wrong(&pair))?;
        each(key, number(weight)?)?;
    }
    Ok(())
}

/// The weights of messages.
fn add_messages(assignment: &mut Assignment, weights: &Bound<'_, PyAny>) -> PyResult<()> {
    entries(weights, |sender, weight| {
        let worker: usize = sender.extract().map_err(|_| {
            Class::Algorithm.error(sender.py(), format!("sender {sender:?} is not the number of a worker"))
        })?;
        assignment.add(worker.into(), weight);
        Ok(())
    })
}

fn combination(weights: &Bound<'_, PyAny>, names: &Names) -> PyResult<Combination> {
    let mut combination = Combination::new();
    entries(weights, |name, weight| {
        combination.push((names.vector(&name)?, weight));
        Ok(())
    })?;
    Ok(combination)
}

/// What a worker sends: a list of `upwash.Message`, or of dicts from vectors to weights.
pub(crate) fn messages(answer: &Bound<'_, PyAny>, names: &Names) -> PyResult<Vec<Outgoing>> {
    let py = answer.py();
    let mut messages = Vec::new();
    for message in answer.try_iter()? {
        let message = message?;
        let outgoing = match message.cast::<PyDict>() {
            Ok(content) => Outgoing::of(combination(content.as_any(), names)?),
            Err(_) => compressed(&message, names)?,
        };
        outgoing.check(names.state_vectors.len()).map_err(|what| Class::Algorithm.error(py, what))?;
        messages.push(outgoing);
    }
    Ok(messages)
}

/// An `upwash.Message`.
fn compressed(message: &Bound<'_, PyAny>, names: &Names) -> PyResult<Outgoing> {
    let py = message.py();
    let mut outgoing = Outgoing::of(combination(&message.getattr("content")?, names)?);
    if let Some(copy) = message.getattr("public_copy")?.extract::<Option<String>>()? {
        let compression: String = message.getattr("compression")?.extract()?;
        outgoing.public_copy = Some((names.index(py, &copy)?, self::compression(py, &compression)?));
    }
    Ok(outgoing)
}

fn compression(py: Python<'_>, text: &str) -> PyResult<Compression> {
    let part = |text: &str| text.parse::<f64>().ok().filter(|part| *part > 0.0 && *part <= 1.0);
    let found = match text.split_once(':') {
        None if text == "none" => Some(Compression::None),
        None if text == "sign" => Some(Compression::Sign),
        None if text == "eight-bit" => Some(Compression::EightBit),
        Some(("top-k", fraction)) => part(fraction).map(Compression::TopK),
        Some(("random-k", fraction)) => part(fraction).map(Compression::RandomK),
        _ => None,
    };
    found.ok_or_else(|| {
        let known = "none, sign, eight-bit, top-k:PART or random-k:PART, with a part above 0 and at most 1";
        Class::Algorithm.error(py, format!("compression \"{text}\" is unknown: write {known}"))
    })
}

/// The plan of a worker: the weights of messages that become the model, or an `upwash.Plan`.
pub(crate) fn plan(answer: &Bound<'_, PyAny>, names: &Names) -> PyResult<Plan> {
    if answer.is_none() {
        return Err(PyTypeError::new_err("plan returned None: return weights of messages, or an upwash.Plan"));
    }
    let Some(assignments) = answer.getattr_opt("assignments")? else {
        let mut model = Assignment::mixed(Vector::Model, vec![]);
        add_messages(&mut model, answer)?;
        return Ok(model.into());
    };
    let mut plan = Plan::default();
    for assignment in assignments.try_iter()? {
        plan.assignments.push(self::assignment(&assignment?, names)?);
    }
    plan.scalar = answer.getattr("scalar")?.extract()?;
    if let Some([best, degree]) = answer.getattr("leaders")?.extract::<Option<[Bound<'_, PyAny>; 2]>>()? {
        plan.leaders = Some([WorkerId(whole(&best)?), WorkerId(whole(&degree)?)]);
    }
    Ok(plan)
}

/// The number of a worker or of a message.
fn whole(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let number = arrays::whole(value, Class::Algorithm)?;
    Ok(usize::try_from(number).unwrap_or(usize::MAX))
}

/// An `upwash.Assignment`.
fn assignment(value: &Bound<'_, PyAny>, names: &Names) -> PyResult<Assignment> {
    let mut assignment = Assignment::of(names.vector(&value.getattr("target")?)?, []);
    assignment.own = combination(&value.getattr("own")?, names)?;
    add_messages(&mut assignment, &value.getattr("messages")?)?;
    assignment.message_index = whole(&value.getattr("message_index")?)?;
    assignment.mean = value.getattr("mean")?.extract()?;
    Ok(assignment)
}
