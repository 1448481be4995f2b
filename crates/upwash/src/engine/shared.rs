//! Several runs on one engine: each goes its own way on a thread of its own, and everyone's gradients
//! of a round are computed at once.
//!
//! The runs do not know of each other: each has an [`EngineShare`], an engine with its workers only.
//! The thread that owns the engine does what they ask for. No run's plans name another's workers, so
//! that a run that diverges touches nobody; when it ends, the others go on without it.

use crate::algorithm::{self, WorkerPlan};
use crate::engine::{Engine, GradientTask, Score, Split, State};
use crate::engine::{MixOptions, RemoteRow};
use crate::experiment::Experiment;
use crate::model::{Layout, Replica};
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a run asks of the engine's owner.
enum Request {
    /// Its gradients, together with everyone else's.
    Step { run: usize, step: Step },
    /// Anything else.
    Call(Call),
    /// The run is over.
    End { run: usize },
}

type Call = Box<dyn FnOnce(&mut dyn Engine) + Send>;

/// A run's turns, and where its scores go.
struct Step {
    turns: Vec<Option<GradientTask>>,
    answer: Sender<Vec<Option<Score>>>,
}

/// One run's workers of a shared engine.
pub struct EngineShare {
    run: usize,
    /// The first of its workers, and how many there are.
    place: Place,
    layout: Layout,
    /// The names of what its algorithm keeps, in the order of the engine's slots.
    state_vectors: Vec<&'static str>,
    owner: Sender<Request>,
}

/// The engine's owner's side.
pub struct EngineHost {
    requests: Receiver<Request>,
    /// (first, workers) of each run.
    runs: Vec<(usize, usize)>,
}

/// A share for each experiment, in the order in which the engine has their workers, and the owner's
/// side, whose [`serve`](EngineHost::serve) must run until all shares are gone.
pub fn share(experiments: &[&Experiment], layout: &Layout) -> (EngineHost, Vec<EngineShare>) {
    let (owner, requests) = channel();
    let all = experiments.iter().map(|experiment| experiment.workers());
    let all: usize = all.sum();
    let (mut first, mut runs, mut shares) = (0, Vec::new(), Vec::new());
    for (run, experiment) in experiments.iter().enumerate() {
        let workers = experiment.workers();
        let state_vectors = experiment.method.state_vectors();
        shares.push(EngineShare {
            run,
            place: Place {
                first,
                workers,
                all,
            },
            layout: layout.clone(),
            state_vectors: state_vectors
                .iter()
                .map(|state_vector| state_vector.name)
                .collect(),
            owner: owner.clone(),
        });
        runs.push((first, workers));
        first += workers;
    }
    (EngineHost { requests, runs }, shares)
}

impl EngineHost {
    /// Does what the runs ask for, until the last has ended.
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
            let waits = |run: usize| !alive[run] || steps[run].is_some();
            if !(0..steps.len()).all(waits) || steps.iter().all(Option::is_none) {
                continue;
            }
            let mut all = vec![None; engine.workers()];
            for ((first, workers), step) in self.runs.iter().zip(&steps) {
                if let Some(step) = step {
                    all[*first..first + workers].copy_from_slice(&step.turns);
                }
            }
            let scores = engine.step(&all);
            for ((first, workers), step) in self.runs.iter().zip(&mut steps) {
                if let Some(step) = step.take() {
                    // A run that has ended in the meantime does not want it.
                    let _ = step.answer.send(scores[*first..first + workers].to_vec());
                }
            }
        }
    }
}

impl EngineShare {
    /// Has something done by the owner, and waits for it.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Engine) -> T + Send + 'static,
    ) -> T {
        let (answer, answered) = channel();
        let work = move |engine: &mut dyn Engine| drop(answer.send(work(engine)));
        self.ask(Request::Call(Box::new(work)));
        answered.recv().unwrap_or_else(|_| Self::owner_is_gone())
    }

    fn ask(&self, request: Request) {
        if self.owner.send(request).is_err() {
            Self::owner_is_gone::<()>();
        }
    }

    fn owner_is_gone<T>() -> T {
        panic!("the thread that owns the engine is gone")
    }

    fn shifted(&self, workers: &[usize]) -> Vec<usize> {
        workers
            .iter()
            .map(|worker| worker + self.place.first)
            .collect()
    }

    /// The names of its arrays, in the engine's order.
    fn names(&self) -> Vec<&'static str> {
        [
            &["models", "velocities", "statistics"][..],
            &self.state_vectors,
        ]
        .concat()
    }
}

/// Some workers among all.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    workers: usize,
    all: usize,
}

impl Place {
    /// Where their rows are in an array of all.
    fn rows(self, length: usize) -> std::ops::Range<usize> {
        let width = length / self.all;
        self.first * width..(self.first + self.workers) * width
    }
}

impl Drop for EngineShare {
    fn drop(&mut self) {
        let _ = self.owner.send(Request::End { run: self.run });
    }
}

impl Engine for EngineShare {
    fn workers(&self) -> usize {
        self.place.workers
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn step(&mut self, turns: &[Option<GradientTask>]) -> Vec<Option<Score>> {
        let (answer, answered) = channel();
        let turns = turns.to_vec();
        self.ask(Request::Step {
            run: self.run,
            step: Step { turns, answer },
        });
        answered.recv().unwrap_or_else(|_| Self::owner_is_gone())
    }

    fn exchange_with(
        &mut self,
        parts: &[WorkerPlan],
        remote_rows: Vec<RemoteRow>,
        mut options: MixOptions,
    ) {
        let (first, all, workers) = (self.place.first, self.place.all, self.place.workers);
        let mut parts = parts.to_vec();
        for part in &mut parts {
            part.worker += first;
            let assignments: &mut [algorithm::Assignment] = &mut part.plan.assignments;
            let senders = assignments.iter_mut().flat_map(|sum| &mut sum.messages);
            // Remote rows come behind the workers of all runs.
            senders.for_each(|entry| {
                entry.0 += if entry.0 < workers {
                    first
                } else {
                    all - workers
                }
            });
        }
        options.server = options.server.map(|server| server + first);
        // What is drawn for a worker does not depend on where it is.
        options.worker_offset -= first as isize;
        self.call(move |engine| engine.exchange_with(&parts, remote_rows, options));
    }

    fn write_outgoing(
        &mut self,
        worker: usize,
        message: &algorithm::Outgoing,
        mut options: MixOptions,
        into: &mut [f32],
    ) {
        let (worker, message) = (worker + self.place.first, message.clone());
        options.worker_offset -= self.place.first as isize;
        let outgoing = self.call(move |engine| engine.outgoing(worker, &message, options));
        into.copy_from_slice(&outgoing);
    }

    fn statistics(&mut self, worker: usize) -> Vec<f32> {
        let worker = worker + self.place.first;
        self.call(move |engine| engine.statistics(worker))
    }

    fn mix_statistics(&mut self, rows: &[Vec<(usize, f64)>], remote_rows: Vec<Vec<f32>>) {
        let itself = |worker: usize| vec![(worker, 1.0)];
        let mut all: Vec<Vec<(usize, f64)>> = (0..self.place.all).map(itself).collect();
        for (worker, row) in rows.iter().enumerate() {
            let place = |sender: usize| match sender < self.place.workers {
                true => sender + self.place.first,
                false => sender + self.place.all - self.place.workers,
            };
            let shifted = row.iter().map(|&(sender, weight)| (place(sender), weight));
            all[worker + self.place.first] = shifted.collect();
        }
        self.call(move |engine| engine.mix_statistics(&all, remote_rows));
    }

    fn score(&mut self, worker: usize, part: Split) -> Score {
        let worker = worker + self.place.first;
        self.call(move |engine| engine.score(worker, part))
    }

    fn average(&mut self, workers: &[usize]) -> Replica {
        let workers = self.shifted(workers);
        self.call(move |engine| engine.average(&workers))
    }

    fn estimated(&mut self, worker: usize, parameters: Vec<f32>) -> Replica {
        let worker = worker + self.place.first;
        self.call(move |engine| engine.estimated(worker, parameters))
    }

    fn score_replica(&mut self, replica: &Replica) -> Score {
        let replica = replica.clone();
        self.call(move |engine| engine.score_replica(&replica))
    }

    fn consensus_distance(&self, workers: &[usize]) -> f64 {
        let workers = self.shifted(workers);
        self.call(move |engine| engine.consensus_distance(&workers))
    }

    fn state(&mut self) -> State {
        let whole = self.call(|engine| engine.state());
        let mine = |(name, (_, array)): (&str, &(String, Vec<f32>))| {
            (name.into(), array[self.place.rows(array.len())].to_vec())
        };
        self.names().into_iter().zip(&whole).map(mine).collect()
    }

    fn restore(&mut self, state: &State) -> Result<(), String> {
        let (names, state, place) = (self.names(), state.clone(), self.place);
        // At one go: others take up theirs at the same time.
        self.call(move |engine| {
            let mut whole = engine.state();
            for (name, (_, array)) in names.into_iter().zip(&mut whole) {
                let rows = place.rows(array.len());
                let saved = crate::engine::saved(&state, name, rows.len())?;
                array[rows].copy_from_slice(saved);
            }
            engine.restore(&whole)
        })
    }
}
