//! The exchanges of a round as dense arrays, for a program that keeps all vectors of a kind as rows of one matrix.
//!
//! Columns of a combination are a worker's own vectors: the model, the step, and the algorithm's state vectors. Where
//! the step is not needed, the model stands for the model after the step until it is assigned.

use super::engine::Question;
use numpy::IntoPyArray;
use numpy::ndarray::{Array1, Array2};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use upwash::algorithm::{Combination, Outgoing, RowPlan, Vector};
use upwash::compress::{Compression, Draw, kept};
use upwash::engine::MixOptions;
use upwash::{Assignment, RowIndex};

/// An exchange as an engine is asked to carry it out.
pub(super) struct Recorded {
    pub(super) plans: Vec<RowPlan>,
    pub(super) options: MixOptions,
    /// The weights of batch-norm statistics, if they are exchanged, too.
    pub(super) statistics: Option<Vec<Vec<(RowIndex, f64)>>>,
}

/// What Python has to do next.
#[derive(Default)]
pub(super) struct Work {
    /// Whether an exchange of this round uses the model before the step or the step, apart from their difference.
    pub(super) needs_step: bool,
    exchanges: Vec<Exchange>,
    pub(super) question: Option<Asked>,
}

/// A question, with the contents of messages as an array.
pub(super) struct Asked {
    kind: &'static str,
    rows: Vec<(usize, usize)>,
    contents: Option<Array2<f64>>,
}

/// An exchange in arrays.
struct Exchange {
    compressions: Vec<Compressed>,
    /// For every message: what receivers get, as a combination of each row's own vectors.
    messages: Vec<Array2<f64>>,
    steps: Vec<Step>,
    /// The rows that count in a mean of all workers.
    counted: Array1<bool>,
    statistics: Option<Array2<f64>>,
}

/// Compressed differences that are added to public copies.
struct Compressed {
    copy: usize,
    compression: Compression,
    /// The number of entries that a sparse message keeps.
    kept: usize,
    rows: Vec<usize>,
    contents: Array2<f64>,
    /// Chosen, offset and stride of each row's random part.
    draws: Array2<i64>,
}

/// The assignments of some rows to the same vector.
struct Step {
    target: Vector,
    message: usize,
    rows: Array1<bool>,
    own: Array2<f64>,
    reference: Array1<i64>,
    weight: Array1<f64>,
    others: Array2<f64>,
    mean: Array1<f64>,
}

/// The number of workers, and of state vectors.
type Sizes = (usize, usize);

fn column(vector: Vector) -> usize {
    match vector {
        Vector::Model => 0,
        Vector::Step => 1,
        Vector::State(index) => 2 + index,
    }
}

impl Work {
    pub(super) fn new(
        recorded: &[Recorded],
        sizes: Sizes,
        server: Option<RowIndex>,
        measures: bool,
        width: usize,
        question: Option<Question>,
    ) -> Self {
        let needs_step = measures || StepUse { workers: sizes.0, server }.is_apart(recorded);
        let dense = Dense { sizes, needs_step, width };
        Self {
            needs_step,
            exchanges: recorded.iter().map(|exchange| dense.exchange(exchange, server)).collect(),
            question: question.map(|question| dense.question(question)),
        }
    }

    /// As Python reads it.
    pub(super) fn into_python<'py>(self, py: Python<'py>, status: Option<&str>) -> PyResult<Bound<'py, PyDict>> {
        let work = PyDict::new(py);
        work.set_item("needs_step", self.needs_step)?;
        let exchanges = PyList::empty(py);
        for exchange in self.exchanges {
            exchanges.append(exchange.into_python(py)?)?;
        }
        work.set_item("exchanges", exchanges)?;
        let question = self.question.map(|asked| {
            let contents = asked.contents.map(|contents| contents.into_pyarray(py));
            (asked.kind, asked.rows, contents)
        });
        work.set_item("question", question)?;
        work.set_item("status", status)?;
        Ok(work)
    }
}

/// Finds out whether the model before the step and the step itself are used, or only the model after it.
struct StepUse {
    workers: usize,
    /// Takes no steps, so that its model is the same before and after.
    server: Option<RowIndex>,
}

impl StepUse {
    fn is_apart(&self, exchanges: &[Recorded]) -> bool {
        let mut assigned = vec![false; self.workers];
        for exchange in exchanges {
            for plan in exchange.plans.iter().filter(|plan| Some(plan.row) != self.server) {
                let row = &mut assigned[plan.row.0];
                if plan.messages.iter().any(|message| apart(&message.content, *row)) {
                    return true;
                }
                for assignment in &plan.plan.assignments {
                    if apart(&assignment.own, *row) {
                        return true;
                    }
                    *row |= assignment.target == Vector::Model;
                }
            }
        }
        // A model that is not assigned does not take the step.
        let waits = |(row, assigned): (usize, &bool)| !assigned && Some(RowIndex(row)) != self.server;
        !exchanges.is_empty() && assigned.iter().enumerate().any(waits)
    }
}

/// Whether a combination is not one of the model after the step, or of the new model if there is one.
fn apart(combination: &Combination, assigned: bool) -> bool {
    let weight = |vector| -> f64 { combination.iter().filter(|entry| entry.0 == vector).map(|entry| entry.1).sum() };
    match assigned {
        true => weight(Vector::Step) != 0.0,
        false => weight(Vector::Model) != -weight(Vector::Step),
    }
}

/// Turns plans into arrays.
struct Dense {
    sizes: Sizes,
    needs_step: bool,
    /// The number of parameters.
    width: usize,
}

impl Dense {
    fn combination(&self, combination: &Combination, mut row: numpy::ndarray::ArrayViewMut1<'_, f64>) {
        for &(vector, weight) in combination {
            // Without a step, the model stands for the model after it.
            if vector != Vector::Step || self.needs_step {
                row[column(vector)] += weight;
            }
        }
    }

    fn contents<'a>(&self, rows: impl Iterator<Item = (usize, &'a Combination)>) -> Array2<f64> {
        let mut contents = Array2::zeros((self.sizes.0, 2 + self.sizes.1));
        rows.for_each(|(row, combination)| self.combination(combination, contents.row_mut(row)));
        contents
    }

    fn question(&self, question: Question) -> Asked {
        match question {
            Question::ConsensusDistance(rows) => {
                let rows = rows.iter().map(|row| (row.0, row.0)).collect();
                Asked { kind: "consensus_distance", rows, contents: None }
            }
            Question::Distances { messages, pairs } => {
                let contents = self.contents(messages.iter().map(|message| &message.content).enumerate());
                let rows = pairs.iter().map(|(one, other)| (one.0, other.0)).collect();
                Asked { kind: "distances", rows, contents: Some(contents) }
            }
        }
    }

    fn exchange(&self, recorded: &Recorded, server: Option<RowIndex>) -> Exchange {
        let plans = &recorded.plans;
        let count = plans.iter().map(|plan| plan.messages.len()).max().unwrap_or(0);
        let at = |index: usize| plans.iter().filter_map(move |plan| Some((plan.row.0, plan.messages.get(index)?)));
        let received = |index: usize| {
            let rows: Vec<(usize, Combination)> = at(index).map(|(row, message)| (row, received(message))).collect();
            self.contents(rows.iter().map(|(row, content)| (*row, content)))
        };
        let statistics = recorded.statistics.as_ref().map(|rows| {
            let mut matrix = Array2::zeros((self.sizes.0, self.sizes.0));
            for (row, weights) in rows.iter().enumerate() {
                weights.iter().for_each(|&(sender, weight)| matrix[(row, sender.0)] += weight);
            }
            matrix
        });
        Exchange {
            compressions: (0..count).flat_map(|index| self.compressions(at(index).collect(), recorded)).collect(),
            messages: (0..count).map(received).collect(),
            steps: self.steps(plans),
            counted: (0..self.sizes.0).map(|row| Some(RowIndex(row)) != server).collect(),
            statistics,
        }
    }

    /// The compressed messages among those with the same index, by public copy and compression.
    fn compressions(&self, messages: Vec<(usize, &Outgoing)>, recorded: &Recorded) -> Vec<Compressed> {
        let mut found: Vec<Compressed> = Vec::new();
        for (row, message) in messages {
            let Some((copy, compression)) = message.public_copy else {
                continue;
            };
            let known = found.iter().position(|other| other.copy == copy && other.compression == compression);
            let index = known.unwrap_or_else(|| {
                let contents = self.contents(std::iter::empty());
                let draws = Array2::zeros((self.sizes.0, 3));
                let kept = match compression {
                    Compression::TopK(fraction) | Compression::RandomK(fraction) => kept(fraction, self.width),
                    _ => self.width,
                };
                found.push(Compressed { copy, compression, kept, rows: vec![], contents, draws });
                found.len() - 1
            });
            let entry = &mut found[index];
            entry.rows.push(row);
            self.combination(&message.content, entry.contents.row_mut(row));
            if let Compression::RandomK(fraction) = compression {
                let draw = Draw::new(fraction, self.width, &recorded.options.draw(RowIndex(row)));
                let values = [draw.chosen, draw.offset, draw.stride].map(|value| value as i64);
                entry.draws.row_mut(row).assign(&Array1::from(values.to_vec()));
            }
        }
        found
    }

    /// The assignments of all rows. Rows that assign the same vector next do so in the same step; each row keeps its
    /// order.
    fn steps(&self, plans: &[RowPlan]) -> Vec<Step> {
        let mut next = vec![0; plans.len()];
        let mut steps = Vec::new();
        loop {
            let pending = |index: usize, next: &[usize]| plans[index].plan.assignments.get(next[index]);
            let key = |assignment: &Assignment<RowIndex>| (assignment.target, assignment.message_index);
            let Some(first) = (0..plans.len()).find_map(|index| pending(index, &next)) else {
                return steps;
            };
            let (target, message) = key(first);
            let mut step = self.empty_step(target, message);
            for (index, plan) in plans.iter().enumerate() {
                if let Some(assignment) = pending(index, &next).filter(|other| key(other) == (target, message)) {
                    self.fill(&mut step, plan.row, assignment);
                    next[index] += 1;
                }
            }
            steps.push(step);
        }
    }

    fn empty_step(&self, target: Vector, message: usize) -> Step {
        let workers = self.sizes.0;
        Step {
            target,
            message,
            rows: Array1::from_elem(workers, false),
            own: self.contents(std::iter::empty()),
            reference: (0..workers as i64).collect(),
            weight: Array1::zeros(workers),
            others: Array2::zeros((workers, workers)),
            mean: Array1::zeros(workers),
        }
    }

    fn fill(&self, step: &mut Step, row: RowIndex, assignment: &Assignment<RowIndex>) {
        step.rows[row.0] = true;
        self.combination(&assignment.own, step.own.row_mut(row.0));
        step.mean[row.0] = assignment.mean;
        if let Some(sum) = assignment.differences(row) {
            step.reference[row.0] = sum.reference.0 as i64;
            step.weight[row.0] = sum.weight;
            sum.others.iter().for_each(|&(sender, weight)| step.others[(row.0, sender.0)] += weight);
        }
    }
}

/// What receivers get of a message: its content, or the public copy.
fn received(message: &Outgoing) -> Combination {
    match message.public_copy {
        None => message.content.clone(),
        Some((copy, _)) => vec![(Vector::State(copy), 1.0)],
    }
}

impl Exchange {
    fn into_python<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let exchange = PyDict::new(py);
        let compressions = PyList::empty(py);
        for part in self.compressions {
            let entry = PyDict::new(py);
            let kind = match part.compression {
                Compression::None => "none",
                Compression::TopK(_) => "top-k",
                Compression::RandomK(_) => "random-k",
                Compression::Sign => "sign",
                Compression::EightBit => "eight-bit",
            };
            entry.set_item("copy", 2 + part.copy)?;
            entry.set_item("kind", kind)?;
            entry.set_item("kept", part.kept)?;
            entry.set_item("rows", part.rows)?;
            entry.set_item("contents", part.contents.into_pyarray(py))?;
            entry.set_item("draws", part.draws.into_pyarray(py))?;
            compressions.append(entry)?;
        }
        exchange.set_item("compressions", compressions)?;
        let messages = self.messages.into_iter().map(|message| message.into_pyarray(py));
        exchange.set_item("messages", PyList::new(py, messages.collect::<Vec<_>>())?)?;
        let steps = PyList::empty(py);
        for step in self.steps {
            steps.append(step.into_python(py)?)?;
        }
        exchange.set_item("steps", steps)?;
        exchange.set_item("counted", self.counted.into_pyarray(py))?;
        exchange.set_item("statistics", self.statistics.map(|weights| weights.into_pyarray(py)))?;
        Ok(exchange)
    }
}

impl Step {
    fn into_python<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let step = PyDict::new(py);
        step.set_item("target", column(self.target))?;
        step.set_item("message", self.message)?;
        step.set_item("rows", self.rows.into_pyarray(py))?;
        step.set_item("own", self.own.into_pyarray(py))?;
        step.set_item("reference", self.reference.into_pyarray(py))?;
        step.set_item("weight", self.weight.into_pyarray(py))?;
        step.set_item("others", self.others.into_pyarray(py))?;
        step.set_item("mean", self.mean.into_pyarray(py))?;
        Ok(step)
    }
}
