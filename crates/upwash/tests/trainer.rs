//! Runs by `Trainer`: output directories, resuming, stopping, failing engines and custom parts.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::path::Path;
use upwash::algorithm::{Outgoing, RowPlan};
use upwash::engine::{
    CpuEngine, Engine, EngineError, EngineSpec, GradientTask, MixOptions, RemoteRow, Score, Split, State,
};
use upwash::model::{Layout, Replica};
use upwash::run::{RunError, Summary};
use upwash::{Config, Event, RowIndex, Status, TrainError, Trainer};
use upwash_testkit::Quadratic;

fn config(more: &str) -> Config {
    let text = format!("[graph]\ntopology = \"ring:4\"\n[training]\nepochs = 4\ncheckpoint_every = 10\n{more}");
    Config::parse(&text, &[]).unwrap()
}

fn trainer<'a>(folder: &Path) -> Trainer<'a> {
    Trainer::new(config("")).model(Quadratic::new(64)).output(folder)
}

/// The summary without the wall-clock time, which differs between runs.
fn comparable(mut summary: Summary) -> Summary {
    summary.wall_seconds = None;
    summary
}

#[test]
fn a_stopped_run_resumes_with_the_same_result() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    let expected = trainer(&whole).run().unwrap();
    assert_eq!(expected.status, Status::Finished);
    let first = trainer(&parts);
    let stop = first.stop_handle();
    let stopped = first
        .observe(move |event| {
            if let Event::Round { round: 14, .. } = event {
                stop.stop();
            }
        })
        .run()
        .unwrap();
    assert_eq!(stopped.status, Status::Interrupted { round: 15 });
    // Without `resume`, an existing run is not overwritten.
    let error = trainer(&parts).run().unwrap_err();
    assert!(error.to_string().contains("holds a run already"), "{error}");
    let rounds = RefCell::new(Vec::new());
    let resumed = trainer(&parts)
        .resume(true)
        .observe(|event| {
            if let Event::Round { round, .. } = event {
                rounds.borrow_mut().push(*round);
            }
        })
        .run()
        .unwrap();
    assert_eq!(rounds.borrow()[0], 15);
    assert_eq!(comparable(resumed), comparable(expected.clone()));
    // A finished run is not run again.
    let again = trainer(&parts).resume(true).observe(|_| panic!("the run is finished")).run();
    assert_eq!(comparable(again.unwrap()), comparable(expected));
}

#[test]
fn errors_name_what_is_missing() {
    let named = Config::parse("model = \"custom:Net\"\n", &[]).unwrap();
    let error = Trainer::new(named).run().unwrap_err();
    assert!(error.to_string().contains("is supplied by another program"), "{error}");
    let error = Trainer::from_file("no such file.toml").err().unwrap();
    assert!(error.to_string().contains("cannot read no such file.toml"), "{error}");
    let error = Config::parse("[training]\noptimizer = \"adam\"\n", &[]).unwrap_err();
    assert!(error.to_string().contains("training.optimizer"), "{error}");
}

/// An engine whose device fails in round 25.
struct FailingEngine {
    engine: CpuEngine,
    rounds: u64,
}

fn failing_engine(spec: &EngineSpec) -> Result<Box<dyn Engine>, EngineError> {
    let model = std::sync::Arc::new(Quadratic::new(64));
    let engine = CpuEngine::new(model, spec);
    Ok(Box::new(FailingEngine { engine, rounds: 0 }))
}

impl Engine for FailingEngine {
    fn step(&mut self, tasks: &[Option<GradientTask>]) -> Result<Vec<Option<Score>>, EngineError> {
        self.rounds += 1;
        match self.rounds > 25 {
            true => Err(EngineError::Device("the GPU failed: out of memory".into())),
            false => self.engine.step(tasks),
        }
    }
    fn workers(&self) -> usize {
        self.engine.workers()
    }
    fn layout(&self) -> &Layout {
        self.engine.layout()
    }
    fn exchange(
        &mut self,
        plans: &[RowPlan],
        remote_rows: Vec<RemoteRow>,
        options: MixOptions,
    ) -> Result<(), EngineError> {
        self.engine.exchange(plans, remote_rows, options)
    }
    fn write_outgoing(
        &mut self,
        row: RowIndex,
        message: &Outgoing,
        options: MixOptions,
        into: &mut [f32],
    ) -> Result<(), EngineError> {
        self.engine.write_outgoing(row, message, options, into)
    }
    fn mix_statistics(
        &mut self,
        weights: &[Vec<(RowIndex, f64)>],
        remote_rows: Vec<Vec<f32>>,
    ) -> Result<(), EngineError> {
        self.engine.mix_statistics(weights, remote_rows)
    }
    fn statistics(&mut self, row: RowIndex) -> Result<Vec<f32>, EngineError> {
        self.engine.statistics(row)
    }
    fn score(&mut self, row: RowIndex, split: Split) -> Result<Score, EngineError> {
        self.engine.score(row, split)
    }
    fn average(&mut self, rows: &[RowIndex]) -> Result<Replica, EngineError> {
        self.engine.average(rows)
    }
    fn estimated(&mut self, row: RowIndex, parameters: Vec<f32>) -> Result<Replica, EngineError> {
        self.engine.estimated(row, parameters)
    }
    fn score_replica(&mut self, replica: &Replica) -> Result<Score, EngineError> {
        self.engine.score_replica(replica)
    }
    fn consensus_distance(&mut self, rows: &[RowIndex]) -> Result<f64, EngineError> {
        self.engine.consensus_distance(rows)
    }
    fn state(&mut self) -> Result<State, EngineError> {
        self.engine.state()
    }
    fn restore(&mut self, state: &State) -> Result<(), EngineError> {
        self.engine.restore(state)
    }
}

#[test]
fn a_failed_run_can_be_resumed_from_its_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let failed = Trainer::new(config("")).engine(failing_engine).output(&run).run();
    let error = failed.unwrap_err();
    let TrainError::Run(RunError::Failed { round: 25, checkpoint: Some(checkpoint), .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!(*checkpoint, run.join("checkpoint-000000020.upwash"));
    assert!(error.to_string().contains("out of memory"), "{error}");
    // A custom model is part of the configuration, so this is a different run.
    let resumed = Trainer::new(config("")).model(Quadratic::new(64)).output(&run);
    assert!(resumed.resume(true).run().is_err());
    // The same configuration resumes from the checkpoint.
    let other = Trainer::new(config("")).engine(|spec| {
        let model = std::sync::Arc::new(Quadratic::new(64));
        Ok(Box::new(CpuEngine::new(model, spec)) as Box<dyn Engine>)
    });
    let resumed = other.output(&run).resume(true).run().unwrap();
    assert_eq!(resumed.status, Status::Finished);
}

/// D-PSGD that fails in a round, as an algorithm in another language can.
#[derive(Debug)]
struct Failing {
    round: u64,
    has_failed: std::sync::atomic::AtomicBool,
}

impl upwash::Algorithm for Failing {
    fn plan(&self, view: &upwash::LocalView<'_>) -> upwash::Plan {
        if view.context.round.index() == self.round && view.worker.0 == 2 {
            self.has_failed.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        upwash::Assignment::mixed(upwash::Vector::Model, view.weights(false)).into()
    }

    fn failure(&self) -> Option<String> {
        self.has_failed.load(std::sync::atomic::Ordering::Relaxed).then(|| "no plan".into())
    }
}

/// D-PSGD with a checksum of its code.
#[derive(Debug)]
struct Coded(u32);

impl upwash::Algorithm for Coded {
    fn plan(&self, view: &upwash::LocalView<'_>) -> upwash::Plan {
        upwash::Assignment::mixed(upwash::Vector::Model, view.weights(false)).into()
    }

    fn display_name(&self) -> String {
        "Coded".into()
    }

    fn fingerprint(&self) -> u32 {
        self.0
    }
}

#[test]
fn a_run_is_not_continued_with_other_code_of_its_algorithm() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let run = |checksum, epochs| {
        let mut config = config("");
        config.training.epochs = epochs;
        Trainer::new(config).model(Quadratic::new(64)).algorithm(Coded(checksum)).output(&output).resume(true).run()
    };
    run(7, 1).unwrap();
    assert_eq!(run(7, 2).unwrap().status, Status::Finished);
    for epochs in [2, 3] {
        let text = run(8, epochs).unwrap_err().to_string();
        assert!(text.contains("the algorithm has other code or other parameters now"), "{text}");
    }
}

#[test]
fn a_failing_algorithm_ends_the_run_before_models_change() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let rounds = RefCell::new(0);
    let failing = Failing { round: 12, has_failed: false.into() };
    let count = |event: &Event| *rounds.borrow_mut() += u64::from(matches!(event, Event::Round { .. }));
    let error = trainer(&output).algorithm(failing).observe(count).run().unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("the run failed in round 12: the algorithm failed: no plan; its last"), "{text}");
    assert_eq!(*rounds.borrow(), 12);
    // The last events are in the file as well.
    let events = std::fs::read_to_string(output.join("events.jsonl")).unwrap();
    assert!(events.lines().last().is_some_and(|line| line.contains("\"round\":11")), "{events}");
}
