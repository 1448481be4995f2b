//! The thread of a run: opens its directory, drives its node, and serves Python.

use super::Reply;
use super::engine::{Command, PlanningEngine};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender};
use upwash::experiment::Experiment;
use upwash::model::Layout;
use upwash::run::{NextRound, Observer, Progress, Recorder, RunDirectory, RunError, RunLocation};
use upwash::transport::InProcess;
use upwash::{Node, RowIndex, Score, Status, StopHandle, Summary};

/// Everything that a run begins with.
pub(super) struct Beginning {
    pub(super) experiment: Experiment,
    pub(super) layout: Layout,
    pub(super) output: Option<PathBuf>,
    pub(super) progress: Option<Progress>,
    /// The learning rate of the round before.
    pub(super) rate: Option<f64>,
    pub(super) stop: StopHandle,
}

fn open(start: &Beginning, top: &Path) -> Result<RunDirectory, RunError> {
    let (experiment, location) = (&start.experiment, RunLocation::local(&start.experiment));
    Ok(match &start.progress {
        Some(progress) => RunDirectory::open_at(top, experiment, &location, progress.round)?,
        None => RunDirectory::create(top, experiment, &location)?,
    })
}

/// Returns the summary, or nothing if Python has gone.
pub(super) fn run(
    start: Beginning,
    commands: Receiver<Command>,
    replies: &SyncSender<Reply>,
) -> Result<Option<Summary>, RunError> {
    let mut directory = start.output.as_deref().map(|top| open(&start, top)).transpose()?;
    let Beginning { experiment, layout, progress, rate, stop, .. } = start;
    let commands = Rc::new(commands);
    let algorithm = experiment.method.synchronous();
    let mut engine = PlanningEngine {
        workers: experiment.workers(),
        layout: layout.clone(),
        server: experiment.server.map(RowIndex::in_one_process),
        measures: algorithm.is_some_and(|algorithm| algorithm.clips()),
        state_vectors: experiment.method.state_vectors().len(),
        recorded: vec![],
        commands: Rc::clone(&commands),
        replies: replies.clone(),
        averaged: None,
        is_attended: false,
    };
    let progress = progress.unwrap_or_else(|| Progress::start(experiment.workers()));
    let Some(directory) = &mut directory else {
        let result = drive(&experiment, &mut engine, (progress, rate), &mut (), &commands, replies)?;
        return Ok(result.map(|result| result.summary));
    };
    let mut nobody = ();
    let (_, mut recorder) = Recorder::begin(directory, &experiment, &mut engine, &stop, &mut nobody)?;
    let result = drive(&experiment, &mut engine, (progress, rate), &mut recorder, &commands, replies);
    match result {
        Ok(None) => Ok(None),
        Ok(Some(result)) => recorder.finish(Ok(result), &layout).map(Some),
        Err(error) => recorder.finish(Err(error), &layout).map(Some),
    }
}

/// Serves Python until it ends the run or is gone.
fn drive(
    experiment: &Experiment,
    engine: &mut PlanningEngine,
    (progress, rate): (Progress, Option<f64>),
    observer: &mut dyn Observer,
    commands: &Receiver<Command>,
    replies: &SyncSender<Reply>,
) -> Result<Option<upwash::run::RunResult>, RunError> {
    let mut transport = InProcess::new(experiment.workers());
    let mut node = Node::new(experiment, &*engine, &mut transport, progress, observer)?;
    rate.into_iter().for_each(|rate| node.set_learning_rate(rate));
    let (mut ended, mut has_begun): (Option<Status>, bool) = (None, false);
    loop {
        let round = node.round();
        let Ok(command) = commands.recv() else {
            return node.end(Status::Interrupted { round }, engine).map(Some);
        };
        engine.is_attended = true;
        let reply = match command {
            Command::Begin => {
                if ended.is_none() && !has_begun {
                    match node.begin_round(engine)? {
                        NextRound::Run(_) => has_begun = true,
                        NextRound::End(status) => ended = Some(status),
                    }
                }
                Reply::Begun(ended.clone())
            }
            Command::Finish { losses, examples, rate } => {
                has_begun = false;
                node.set_learning_rate(rate);
                let score = |loss: &Option<f64>| loss.map(|loss| Score { loss, examples, ..Score::default() });
                let scores: Vec<Option<Score>> = losses.iter().map(score).collect();
                let status = node.finish_round(engine, &scores)?;
                ended = ended.or_else(|| status.clone());
                Reply::Work(Box::new(engine.take_work(None)), status)
            }
            Command::Answer(_) => Reply::Work(Box::default(), None),
            Command::Progress => {
                let (progress, _) = node.snapshot(engine)?;
                Reply::Progress(serde_json::to_string(&progress).unwrap_or_default())
            }
            Command::End(replica) => {
                let status = ended.unwrap_or(match replica {
                    Some(_) => Status::Finished,
                    None => Status::Interrupted { round },
                });
                engine.averaged = replica;
                return node.end(status, engine).map(Some);
            }
        };
        engine.is_attended = false;
        if replies.send(reply).is_err() {
            let round = node.round();
            return node.end(Status::Interrupted { round }, engine).map(Some);
        }
    }
}
