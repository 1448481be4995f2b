//! A training loop of one's own, driven from outside, does what the built-in one does.
#![allow(clippy::unwrap_used)]

use upwash::data::Batch;
use upwash::engine::{Engine, Model};
use upwash::experiment::{DataPaths, Experiment};
use upwash::optimizer::{Optimizer, StepContext};
use upwash::run::{ControlFlow, Progress, RunError, run};
use upwash::transport::InProcess;
use upwash::{Config, Event, ExternalState, NextRound, Node, Score, Status};
use upwash_testkit::{Quadratic, golden};

fn prepare(text: &str) -> Experiment {
    let config = Config::parse(text, &[]).unwrap();
    Experiment::prepare(config, &DataPaths::default()).unwrap()
}

/// A loop that knows nothing of engines: its own models, gradients and optimizer.
struct OwnLoop<'a> {
    experiment: &'a Experiment,
    model: Quadratic,
    models: Vec<Vec<f32>>,
    velocities: Vec<Vec<f32>>,
}

impl<'a> OwnLoop<'a> {
    fn new(experiment: &'a Experiment) -> Self {
        let model = Quadratic::new(64);
        let spec = experiment.engine_spec();
        let starts = spec.starts.iter();
        let models: Vec<Vec<f32>> = starts.map(|&(seed, w)| model.start(seed, w)).collect();
        Self {
            experiment,
            model,
            velocities: vec![vec![0.0; 64]; models.len()],
            models,
        }
    }

    fn rows(&mut self) -> Vec<&mut [f32]> {
        self.models.iter_mut().map(|row| &mut row[..]).collect()
    }

    /// x <- x - rate (momentum v + g), in place; the loss before it.
    fn step(&mut self, worker: usize, round: u64, rate: f64) -> Score {
        let (experiment, mut gradient) = (self.experiment, vec![0.0; 64]);
        let batch: Batch = experiment.sampler.batch(&experiment.data, worker, round);
        let score = self
            .model
            .gradient(&self.models[worker], &mut [], &batch, &mut gradient);
        let sgd = experiment.config.training.sgd();
        let mut state = [&mut self.velocities[worker][..]];
        sgd.direction(
            StepContext::default(),
            &self.models[worker],
            &mut state,
            &mut gradient,
        );
        let pairs = self.models[worker].iter_mut().zip(gradient);
        pairs.for_each(|(x, d)| *x -= rate as f32 * d);
        score
    }

    /// Drives a node until the end; every round's losses.
    fn run(&mut self) -> Result<Vec<Vec<f64>>, RunError> {
        let experiment = self.experiment;
        let spec = experiment.engine_spec();
        let starts = self.models.clone();
        let starts: Vec<&[f32]> = starts.iter().map(Vec::as_slice).collect();
        let layout = self.model.layout().clone();
        let mut external = ExternalState::new(&spec, layout, &starts);
        let mut transport = InProcess::new(experiment.workers());
        let mut losses = Vec::new();
        let mut keep = |event: &Event| {
            if let Event::Round { losses: found, .. } = event {
                losses.push(found.clone());
            }
            ControlFlow::Continue
        };
        let progress = Progress::start(experiment.workers());
        let engine = external.attach(self.rows(), vec![]).unwrap();
        let mut node = Node::new(experiment, &engine, &mut transport, progress, &mut keep)?;
        let status = loop {
            let mut engine = external.attach(self.rows(), vec![]).unwrap();
            let tasks = match node.begin_round(&mut engine)? {
                NextRound::Run(tasks) => tasks,
                NextRound::End(status) => break status,
            };
            engine.before_step();
            let round = node.round();
            let scores: Vec<Option<Score>> = tasks
                .iter()
                .enumerate()
                .map(|(worker, task)| Some(self.step(worker, round, (*task)?.rate)))
                .collect();
            let mut engine = external.attach(self.rows(), vec![]).unwrap();
            engine.after_step();
            if let Some(rate) = tasks.iter().flatten().map(|task| task.rate).next() {
                node.set_learning_rate(rate);
            }
            if let Some(status) = node.finish_round(&mut engine, &scores)? {
                break status;
            }
        };
        assert_eq!(status, Status::Finished);
        let mut engine = external.attach(self.rows(), vec![]).unwrap();
        let summary = node.end(status, &mut engine)?.summary;
        // Evaluation is the loop's own affair.
        assert!(summary.mean_accuracy.is_nan() && summary.consensus_distance.is_finite());
        Ok(losses)
    }
}

#[test]
fn every_synchronous_algorithm_agrees_with_the_built_in_loop() {
    let mut refused = Vec::new();
    for (name, text) in golden::cases(1) {
        let experiment = prepare(&text);
        let mut own = OwnLoop::new(&experiment);
        let found = match own.run() {
            Ok(found) => found,
            Err(RunError::OwnsMomentum(_) | RunError::Asynchronous(_)) => {
                refused.push(name);
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let mut known = Vec::new();
        let mut keep = |event: &Event| {
            if let Event::Round { losses, .. } = event {
                known.push(losses.clone());
            }
            ControlFlow::Continue
        };
        let mut engine = experiment.cpu_engine(std::sync::Arc::new(Quadratic::new(64)));
        let start = Progress::start(experiment.workers());
        run(&experiment, &mut engine, start, &mut keep).unwrap();
        assert_eq!(found.len(), known.len(), "{name}");
        for (a, b) in found.iter().flatten().zip(known.iter().flatten()) {
            let apart = (a - b).abs() / b.abs().max(1e-3);
            assert!(
                a.is_nan() && b.is_nan() || apart < 1e-5,
                "{name}: {a} and {b}"
            );
        }
    }
    let momentum = ["al-dsgd-qg-momentum", "qg-momentum"];
    let expected: Vec<&str> = golden::ASYNCHRONOUS.into_iter().chain(momentum).collect();
    assert!(
        refused.iter().all(|name| expected.contains(&&**name)),
        "{refused:?}"
    );
    assert!(refused.len() >= 5, "{refused:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let experiment = prepare("model = \"softmax\"\n[graph]\ntopology = \"ring:4\"\n");
    let model = Quadratic::new(64);
    let start = vec![0.0; 64];
    let starts = vec![&start[..]; 4];
    let spec = experiment.engine_spec();
    let mut external = ExternalState::new(&spec, model.layout().clone(), &starts);
    let mut short = vec![vec![0.0; 63]; 4];
    let rows = short.iter_mut().map(|row| &mut row[..]).collect();
    let error = external.attach(rows, vec![]).err().unwrap().to_string();
    assert!(error.contains("a model of 64 numbers"), "{error}");
    let mut models = vec![start.clone(); 4];
    let rows: Vec<&mut [f32]> = models.iter_mut().map(|row| &mut row[..]).collect();
    let mut engine = external.attach(rows, vec![]).unwrap();
    assert!(engine.step(&[]).is_err());
    let (mut here, mut nobody) = (InProcess::new(4), ());
    let progress = Progress::start(4);
    let mut node = Node::new(&experiment, &engine, &mut here, progress, &mut nobody).unwrap();
    let error = node.finish_round(&mut engine, &[None; 4]).unwrap_err();
    assert!(matches!(error, RunError::NoRound));
}
