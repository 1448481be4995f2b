//! A conformance suite for external training loops: a loop without an engine drives a node over any transport and must
//! reach the losses of the built-in loop.
#![allow(clippy::unwrap_used)]

use crate::Quadratic;
use std::collections::BTreeMap;
use std::sync::Arc;
use upwash::WorkerId;
use upwash::config::Config;
use upwash::engine::{ExternalState, GradientTask, Model, Score};
use upwash::experiment::{DataPaths, Experiment};
use upwash::optimizer::{Optimizer, StepContext};
use upwash::run::{ControlFlow, Event, NextRound, Node, Observer, Progress, RunError, Status, run};
use upwash::transport::Transport;

/// The number of pixels of a digit image.
const WIDTH: usize = 64;

/// An external training loop: the models, gradients and optimizer of the workers of one process.
struct ExternalLoop<'a> {
    experiment: &'a Experiment,
    model: Quadratic,
    first: usize,
    models: Vec<Vec<f32>>,
    velocities: Vec<Vec<f32>>,
}

impl<'a> ExternalLoop<'a> {
    fn new(experiment: &'a Experiment, own: std::ops::Range<usize>) -> Self {
        let (model, spec) = (Quadratic::new(WIDTH), experiment.engine_spec());
        let starts = spec.starts[own.clone()].iter();
        let models: Vec<Vec<f32>> = starts.map(|&(seed, w)| model.start(seed, w)).collect();
        Self { experiment, model, first: own.start, velocities: vec![vec![0.0; WIDTH]; models.len()], models }
    }

    fn rows(&mut self) -> Vec<&mut [f32]> {
        self.models.iter_mut().map(|row| &mut row[..]).collect()
    }

    /// Takes the step x <- x - rate (momentum v + g) in place. Returns the score before it.
    fn step(&mut self, row: usize, task: GradientTask) -> Score {
        let (experiment, mut gradient) = (self.experiment, vec![0.0; WIDTH]);
        let worker = self.first + row;
        let batch = experiment.sampler.batch(&experiment.data, worker, task.batch);
        let model = &mut self.models[row];
        let score = self.model.gradient(model, &mut [], &batch, &mut gradient);
        let sgd = experiment.config.training.sgd();
        let mut state = [&mut self.velocities[row][..]];
        sgd.direction(StepContext::default(), model, &mut state, &mut gradient);
        let pairs = model.iter_mut().zip(gradient);
        pairs.for_each(|(x, d)| *x -= task.rate as f32 * d);
        score
    }

    fn drive(&mut self, transport: &mut dyn Transport, observer: &mut dyn Observer) -> Result<(), RunError> {
        let experiment = self.experiment;
        let own: Vec<WorkerId> = transport.placement().own().collect();
        let spec = experiment.engine_spec().only(&own);
        let starts = self.models.clone();
        let starts: Vec<&[f32]> = starts.iter().map(Vec::as_slice).collect();
        let layout = self.model.layout().clone();
        let mut external = ExternalState::new(&spec, layout, &starts);
        let progress = Progress::start(experiment.workers());
        let engine = external.attach(self.rows(), vec![])?;
        let mut node = Node::new(experiment, &engine, transport, progress, observer)?;
        let status = loop {
            let mut engine = external.attach(self.rows(), vec![])?;
            let tasks = match node.begin_round(&mut engine)? {
                NextRound::Run(tasks) => tasks,
                NextRound::End(status) => break status,
            };
            engine.before_step();
            let tasks = tasks.into_iter().enumerate();
            let mut rate = None;
            let scores: Vec<Option<Score>> = tasks
                .map(|(row, task)| {
                    rate = task.map(|task| task.rate).or(rate);
                    task.map(|task| self.step(row, task))
                })
                .collect();
            let mut engine = external.attach(self.rows(), vec![])?;
            engine.after_step();
            if let Some(rate) = rate {
                node.set_learning_rate(rate);
            }
            if let Some(status) = node.finish_round(&mut engine, &scores)? {
                break status;
            }
        };
        assert_eq!(status, Status::Finished);
        let mut engine = external.attach(self.rows(), vec![])?;
        let summary = node.end(status, &mut engine)?.summary;
        assert!(summary.mean_accuracy.is_nan(), "the engine of an external loop cannot evaluate");
        Ok(())
    }
}

/// An observer that keeps the losses of every round.
#[derive(Default)]
struct Losses(Vec<Vec<f64>>);

impl Observer for Losses {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        if let Event::Round { losses, .. } = event {
            self.0.push(losses.clone());
        }
        ControlFlow::Continue
    }
}

/// Runs these configurations in external loops, each over the transport that `with` provides, and compares the losses
/// of this process's workers with those of the built-in loop in one process. Returns the names of the configurations
/// that an external loop cannot run.
///
/// # Panics
/// If losses differ by more than 1e-5. The message names the configuration.
pub fn check(
    cases: BTreeMap<String, String>,
    mut with: impl FnMut(&Experiment, &mut dyn FnMut(&mut dyn Transport)),
) -> Vec<String> {
    let mut refused = Vec::new();
    for (name, text) in cases {
        let config = Config::parse(&text, &[]).unwrap();
        let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
        let (mut found, mut own, mut driven) = (Losses::default(), 0..0, Ok(()));
        with(&experiment, &mut |transport| {
            own = transport.placement().own_range();
            driven = ExternalLoop::new(&experiment, own.clone()).drive(transport, &mut found);
        });
        match driven {
            Ok(()) => {}
            Err(RunError::OwnsMomentum(_) | RunError::Asynchronous(_)) => {
                refused.push(name);
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        }
        let mut known = Losses::default();
        let mut engine = experiment.cpu_engine(Arc::new(Quadratic::new(WIDTH)));
        let start = Progress::start(experiment.workers());
        run(&experiment, &mut engine, start, &mut known).unwrap();
        assert_eq!(found.0.len(), known.0.len(), "{name}");
        for (round, (a, b)) in found.0.iter().zip(&known.0).enumerate() {
            for (a, b) in a[own.clone()].iter().zip(&b[own.clone()]) {
                let difference = (a - b).abs() / b.abs().max(1e-3);
                let is_close = a.is_nan() && b.is_nan() || difference < 1e-5;
                assert!(is_close, "{name}, round {round}: {a} and {b}");
            }
        }
    }
    refused
}
