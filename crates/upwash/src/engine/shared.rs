//! Several runs on one engine: each run has its own thread, and the gradients of all runs are computed together.
//!
//! The runs do not know about each other. Each has an [`EngineShare`], an engine with only its own workers. The thread
//! that owns the engine handles their requests. The plans of a run never name workers of another run, so a run that
//! diverges does not affect the others. When a run ends, the others continue. A failure of the engine reaches every
//! run.

use super::{Engine, EngineError, EngineSpec, GradientTask, MixOptions, RemoteRow, Score, Split, State, saved};
use crate::algorithm::{Outgoing, RowPlan};
use crate::ids::RowIndex;
use crate::model::{Layout, Replica};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request of a run to the thread that owns the engine.
enum Request {
    /// Compute the run's gradients, together with those of all other runs.
    Step { run: usize, step: Step },
    /// Call the engine.
    Call(Call),
    /// The run is over.
    End { run: usize },
}

type Call = Box<dyn FnOnce(&mut dyn Engine) + Send>;
type Scores = Result<Vec<Option<Score>>, EngineError>;

/// The gradient tasks of a run, and the channel for its scores.
struct Step {
    tasks: Vec<Option<GradientTask>>,
    reply: Sender<Scores>,
}

/// The workers of one run on a shared engine.
pub struct EngineShare {
    run: usize,
    range: RowRange,
    layout: Layout,
    /// The names of the run's arrays, in the engine's order.
    names: Vec<String>,
    host: Sender<Request>,
}

/// The side of the thread that owns the engine.
pub struct EngineHost {
    requests: Receiver<Request>,
    runs: Vec<RowRange>,
}

/// The rows of one run among those of all runs.
#[derive(Clone, Copy)]
struct RowRange {
    first: usize,
    workers: usize,
    all: usize,
}

impl RowRange {
    /// The range of these rows in a flat array of all rows.
    fn of_array(self, length: usize) -> std::ops::Range<usize> {
        let width = length / self.all;
        self.first * width..(self.first + self.workers) * width
    }

    fn of_list(self) -> std::ops::Range<usize> {
        self.first..self.first + self.workers
    }

    /// The index in the shared engine of a row of this run. Remote rows come after the workers of all runs.
    fn shifted(self, row: RowIndex) -> RowIndex {
        RowIndex(match row.0 < self.workers {
            true => row.0 + self.first,
            false => row.0 + self.all - self.workers,
        })
    }

    fn all_shifted(self, rows: &[RowIndex]) -> Vec<RowIndex> {
        rows.iter().map(|&row| self.shifted(row)).collect()
    }
}

/// Creates a share for each run, in the order of their workers in the engine, and the host, whose
/// [`serve`](EngineHost::serve) must run until all shares are dropped.
pub fn share(specs: &[EngineSpec], layout: &Layout) -> (EngineHost, Vec<EngineShare>) {
    let (host, requests) = channel();
    let all = specs.iter().map(|spec| spec.starts.len());
    let all: usize = all.sum();
    let (mut first, mut runs, mut shares) = (0, Vec::new(), Vec::new());
    for (run, spec) in specs.iter().enumerate() {
        let range = RowRange { first, workers: spec.starts.len(), all };
        let mut names = vec!["models"];
        names.extend(spec.optimizer.state_vectors());
        names.push("statistics");
        names.extend(spec.state_vectors.iter().map(|vector| vector.name.as_str()));
        shares.push(EngineShare {
            run,
            range,
            layout: layout.clone(),
            names: names.into_iter().map(String::from).collect(),
            host: host.clone(),
        });
        runs.push(range);
        first += range.workers;
    }
    (EngineHost { requests, runs }, shares)
}

impl EngineHost {
    /// Handles requests until the last run has ended.
    pub fn serve(self, engine: &mut dyn Engine) {
        let mut steps: Vec<Option<Step>> = self.runs.iter().map(|_| None).collect();
        let mut alive = vec![true; self.runs.len()];
        while alive.contains(&true) {
            match self.requests.recv() {
                Ok(Request::Call(work)) => work(engine),
                Ok(Request::Step { run, step }) => steps[run] = Some(step),
                Ok(Request::End { run }) => alive[run] = false,
                Err(_) => return,
            }
            let is_ready = |run: usize| !alive[run] || steps[run].is_some();
            if (0..steps.len()).all(is_ready) && steps.iter().any(Option::is_some) {
                self.step(&mut steps, engine);
            }
        }
    }

    /// Computes the gradients of all runs and sends each run its scores.
    fn step(&self, steps: &mut [Option<Step>], engine: &mut dyn Engine) {
        let mut tasks = vec![None; engine.workers()];
        for (range, step) in self.runs.iter().zip(&*steps) {
            if let Some(step) = step {
                tasks[range.of_list()].copy_from_slice(&step.tasks);
            }
        }
        let scores = engine.step(&tasks);
        for (range, step) in self.runs.iter().zip(steps) {
            if let Some(step) = step.take() {
                let own = scores.clone().map(|all| all[range.of_list()].to_vec());
                // A run that has ended in the meantime does not receive its scores.
                let _ = step.reply.send(own);
            }
        }
    }
}

impl EngineShare {
    /// Calls the engine on the thread that owns it and waits for the result.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let (reply, replies) = channel();
        let work = move |engine: &mut dyn Engine| drop(reply.send(work(engine)));
        self.send(Request::Call(Box::new(work)))?;
        replies.recv().unwrap_or(Err(EngineError::HostGone))
    }

    fn send(&self, request: Request) -> Result<(), EngineError> {
        let sent = self.host.send(request);
        sent.map_err(|_| EngineError::HostGone)
    }
}

impl Drop for EngineShare {
    fn drop(&mut self) {
        let _ = self.host.send(Request::End { run: self.run });
    }
}

impl Engine for EngineShare {
    fn workers(&self) -> usize {
        self.range.workers
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn step(&mut self, tasks: &[Option<GradientTask>]) -> Scores {
        let (reply, replies) = channel();
        let (run, tasks) = (self.run, tasks.to_vec());
        let step = Step { tasks, reply };
        self.send(Request::Step { run, step })?;
        replies.recv().unwrap_or(Err(EngineError::HostGone))
    }

    fn exchange(
        &mut self,
        plans: &[RowPlan],
        remote_rows: Vec<RemoteRow>,
        mut options: MixOptions,
    ) -> Result<(), EngineError> {
        let (range, mut plans) = (self.range, plans.to_vec());
        for plan in &mut plans {
            plan.row = range.shifted(plan.row);
            let assignments = plan.plan.assignments.iter_mut();
            let senders = assignments.flat_map(|sum| &mut sum.messages);
            senders.for_each(|entry| entry.0 = range.shifted(entry.0));
        }
        options.server = options.server.map(|server| range.shifted(server));
        // Random draws for a worker must not depend on its position in the shared engine.
        options.worker_offset -= range.first as isize;
        self.call(move |engine| engine.exchange(&plans, remote_rows, options))
    }

    fn write_outgoing(
        &mut self,
        row: RowIndex,
        message: &Outgoing,
        mut options: MixOptions,
        into: &mut [f32],
    ) -> Result<(), EngineError> {
        let (row, message) = (self.range.shifted(row), message.clone());
        options.worker_offset -= self.range.first as isize;
        let outgoing = self.call(move |engine| engine.outgoing(row, &message, options))?;
        into.copy_from_slice(&outgoing);
        Ok(())
    }

    fn statistics(&mut self, row: RowIndex) -> Result<Vec<f32>, EngineError> {
        let row = self.range.shifted(row);
        self.call(move |engine| engine.statistics(row))
    }

    fn mix_statistics(
        &mut self,
        weights: &[Vec<(RowIndex, f64)>],
        remote_rows: Vec<Vec<f32>>,
    ) -> Result<(), EngineError> {
        let range = self.range;
        let itself = |row: usize| vec![(RowIndex(row), 1.0)];
        let mut all: Vec<Vec<(RowIndex, f64)>> = (0..range.all).map(itself).collect();
        for (row, weights) in weights.iter().enumerate() {
            let shifted = weights.iter().map(|&(sender, w)| (range.shifted(sender), w));
            all[range.shifted(RowIndex(row)).0] = shifted.collect();
        }
        self.call(move |engine| engine.mix_statistics(&all, remote_rows))
    }

    fn score(&mut self, row: RowIndex, split: Split) -> Result<Score, EngineError> {
        let row = self.range.shifted(row);
        self.call(move |engine| engine.score(row, split))
    }

    fn average(&mut self, rows: &[RowIndex]) -> Result<Replica, EngineError> {
        let rows = self.range.all_shifted(rows);
        self.call(move |engine| engine.average(&rows))
    }

    fn estimated(&mut self, row: RowIndex, parameters: Vec<f32>) -> Result<Replica, EngineError> {
        let row = self.range.shifted(row);
        self.call(move |engine| engine.estimated(row, parameters))
    }

    fn score_replica(&mut self, replica: &Replica) -> Result<Score, EngineError> {
        let replica = replica.clone();
        self.call(move |engine| engine.score_replica(&replica))
    }

    fn consensus_distance(&mut self, rows: &[RowIndex]) -> Result<f64, EngineError> {
        let rows = self.range.all_shifted(rows);
        self.call(move |engine| engine.consensus_distance(&rows))
    }

    fn state(&mut self) -> Result<State, EngineError> {
        let whole = self.call(|engine| engine.state())?;
        let own = |(name, (_, array)): (&String, &(String, Vec<f32>))| {
            (name.clone(), array[self.range.of_array(array.len())].to_vec())
        };
        Ok(self.names.iter().zip(&whole).map(own).collect())
    }

    fn restore(&mut self, state: &State) -> Result<(), EngineError> {
        let (names, state, range) = (self.names.clone(), state.clone(), self.range);
        // In a single call: other runs may restore their states at the same time.
        self.call(move |engine| {
            let mut whole = engine.state()?;
            for (name, (_, array)) in names.iter().zip(&mut whole) {
                let rows = range.of_array(array.len());
                array[rows.clone()].copy_from_slice(saved(&state, name, rows.len())?);
            }
            engine.restore(&whole)
        })
    }
}
