//! The thread of a worker: it answers the requests of the training loop. One file, because the node borrows what the thread
//! owns for as long as it answers.

use super::events::{Events, Watch};
use super::rendezvous::{Rendezvous, when_released};
use super::vectors::Vectors;
use super::{NodeError, json};
use crate::algorithm::Watched;
use crate::errors::Class;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender};
use upwash::algorithm::Registry;
use upwash::config::Config;
use upwash::engine::{Engine, ExternalEngine, State};
use upwash::experiment::{CustomParts, DataPaths, DatasetCache, Experiment};
use upwash::model::Layout;
use upwash::run::{
    DirectoryError, Observer, Progress, Recorder, RunDirectory, RunError, RunLocation, RunResult, Snapshot,
};
use upwash::transport::{Transport, TransportError};
use upwash::{ExternalState, NextRound, Node, Score, Status, StopHandle, Summary};

/// What a worker is made of.
pub(super) struct Parts {
    pub(super) setup: (Config, PathBuf, CustomParts),
    pub(super) rendezvous: Rendezvous,
    pub(super) layout: Layout,
    pub(super) vectors: Vectors,
    pub(super) output: Option<PathBuf>,
    pub(super) stop: StopHandle,
    pub(super) events: Events,
    /// The algorithm, if it is in Python.
    pub(super) watched: Watched,
}

/// What the training loop asks for.
pub(super) enum Request {
    /// Begin the next round.
    Begin,
    /// Keep the model before the step.
    Save,
    /// Finish the round after the step.
    Finish { loss: Option<f64>, rate: f64 },
    /// What the worker needs to resume.
    Snapshot,
    /// Resume, before the first round.
    Restore { progress: String, vectors: State, rate: Option<f64> },
    /// End the run.
    End { is_finished: bool },
}

pub(super) enum Answer {
    Ready(Ready),
    Begun { round: u64, is_adopted: bool, status: Option<Status> },
    Done(Option<Status>),
    Snapshot { progress: String, vectors: State },
    Ended(Option<String>),
}

pub(super) type Reply = Result<Answer, NodeError>;

/// What is known about a worker before its first round.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) algorithm: String,
    pub(super) needs_losses: bool,
    pub(super) trains: bool,
    pub(super) config: String,
}

/// The thread's end of the connection with the loop.
struct Loop<'a> {
    requests: &'a Receiver<Request>,
    replies: &'a SyncSender<Reply>,
    watched: Watched,
}

impl Loop<'_> {
    /// The next request; none if the loop has given the worker up. Its vectors must not be used then.
    fn next(&self) -> Option<Request> {
        self.requests.recv().ok()
    }

    fn answer(&self, reply: Reply) {
        let reply = reply.map_err(|error| NodeError { watched: self.watched.clone(), ..error });
        // A loop that is gone needs no answer.
        let _ = self.replies.send(reply);
    }
}

/// Answers requests until the run ends, or the loop gives the worker up.
pub(super) fn serve(parts: Parts, requests: &Receiver<Request>, replies: &SyncSender<Reply>) {
    let training = Loop { requests, replies, watched: parts.watched.clone() };
    match Worker::prepare(parts) {
        Ok((worker, mut model)) => {
            training.answer(Ok(Answer::Ready(worker.ready())));
            worker.serve(&mut model, &training);
        }
        Err(error) => training.answer(Err(error)),
    }
}

/// The model of the loop, and what the algorithm keeps for it.
struct Replica {
    external: ExternalState,
    vectors: Vectors,
    /// The learning rate of the last round, if the run is resumed.
    previous_rate: Option<f64>,
}

impl Replica {
    fn attach(&mut self) -> Result<ExternalEngine<'_>, RunError> {
        // SAFETY: only called to answer a request.
        #[allow(unsafe_code)]
        let (models, statistics) = unsafe { self.vectors.rows() };
        Ok(self.external.attach(models, statistics)?)
    }
}

struct Worker {
    experiment: Experiment,
    number: usize,
    rendezvous: Rendezvous,
    layout: Layout,
    output: Option<PathBuf>,
    stop: StopHandle,
    events: Events,
}

impl Worker {
    fn prepare(parts: Parts) -> Result<(Self, Replica), NodeError> {
        let Parts { setup: (config, files, custom), rendezvous, layout, mut vectors, output, stop, events, .. } = parts;
        let paths = DataPaths { files, ..DataPaths::standard() };
        let cache = &mut DatasetCache::default();
        let experiment = Experiment::prepare_custom(config, &paths, &Registry::standard(), cache, custom)?;
        check_algorithm(&experiment)?;
        let number = rendezvous.worker(&experiment)?;
        let worker = Self { experiment, number, rendezvous, layout, output, stop, events };
        let external = worker.start(&mut vectors);
        Ok((worker, Replica { external, vectors, previous_rate: None }))
    }

    /// The algorithm's state vectors, of which some start as the present model.
    fn start(&self, vectors: &mut Vectors) -> ExternalState {
        let spec = self.experiment.engine_spec().only(&[self.number.into()]);
        // SAFETY: only called to answer a request.
        #[allow(unsafe_code)]
        let (models, _) = unsafe { vectors.rows() };
        ExternalState::new(&spec, self.layout.clone(), &[&*models[0]])
    }

    fn ready(&self) -> Ready {
        let experiment = &self.experiment;
        let algorithm = experiment.method.synchronous();
        Ready {
            worker: self.number,
            workers: experiment.workers(),
            algorithm: experiment.algorithm_name(),
            needs_losses: algorithm.is_some_and(|algorithm| algorithm.needs_losses()),
            trains: experiment.server != Some(self.number.into()),
            config: experiment.config.to_toml(),
        }
    }

    /// Answers requests up to the first round, and then those of the run.
    fn serve(&self, replica: &mut Replica, training: &Loop<'_>) {
        let mut restored = None;
        let start = || Progress::start(self.experiment.workers());
        while let Some(request) = training.next() {
            training.answer(match request {
                Request::Begin => {
                    // The loop may have loaded another model since.
                    if restored.is_none() {
                        replica.external = self.start(&mut replica.vectors);
                    }
                    return self.run(replica, restored.unwrap_or_else(start), training);
                }
                Request::Restore { progress, vectors, rate } => {
                    self.restore(replica, &progress, vectors).map(|progress| {
                        restored = Some(progress);
                        replica.previous_rate = rate;
                        Answer::Done(None)
                    })
                }
                Request::Snapshot => {
                    let state = replica.attach().and_then(|mut engine| Ok(engine.state()?));
                    state
                        .map(|state| snapshot((restored.clone().unwrap_or_else(start), state)))
                        .map_err(NodeError::from)
                }
                Request::End { .. } => Ok(Answer::Ended(None)),
                Request::Save | Request::Finish { .. } => Err(RunError::NoRound.into()),
            });
        }
    }

    /// Restores the algorithm's state vectors. Returns the progress.
    fn restore(&self, replica: &mut Replica, progress: &str, vectors: State) -> Result<Progress, NodeError> {
        let wrong = |what: String| NodeError::new(Class::Run, format!("the state does not fit this worker: {what}"));
        let progress: Progress = serde_json::from_str(progress).map_err(|error| wrong(error.to_string()))?;
        if progress.losses.len() != self.experiment.workers() {
            return Err(wrong(format!("it is from a run of {} workers", progress.losses.len())));
        }
        let mut engine = replica.attach()?;
        let mut state = engine.state()?;
        let names = |state: &State| {
            let names = state.iter().map(|(name, _)| name.clone()).filter(|name| is_algorithms(name));
            names.collect::<BTreeSet<String>>()
        };
        let (known, found) = (names(&state), names(&vectors));
        if known != found {
            return Err(wrong(format!("it has the vectors {found:?}, and the algorithm {known:?}")));
        }
        for (name, vector) in vectors {
            state.iter_mut().filter(|(known, _)| *known == name).for_each(|known| known.1.clone_from(&vector));
        }
        engine.restore(&state)?;
        Ok(progress)
    }

    /// Connects with the other workers, and runs rounds as the loop asks for them.
    fn run(&self, replica: &mut Replica, progress: Progress, training: &Loop<'_>) {
        match self.run_connected(replica, progress, training) {
            Ok(Some(summary)) => training.answer(Ok(Answer::Ended(Some(summary)))),
            Ok(None) => {}
            Err(error) => training.answer(Err(error)),
        }
        // After an error there is nothing to do but to end.
        while let Some(request) = training.next() {
            training.answer(match request {
                Request::End { .. } => Ok(Answer::Ended(None)),
                _ => Err(NodeError::new(Class::Run, "the run has ended with an error: create another worker")),
            });
        }
    }

    /// Answers the requests of the run, of which the first is [`Request::Begin`]. The summary, or an error, is the answer to
    /// the last one, once this process has left the others.
    fn run_connected(
        &self,
        replica: &mut Replica,
        progress: Progress,
        training: &Loop<'_>,
    ) -> Result<Option<String>, NodeError> {
        let mut connection = self.rendezvous.connect(&self.experiment, self.number, &mut replica.attach()?)?;
        let result = self.run_over(&mut *connection.transport, replica, progress, training);
        result.map_err(|error| {
            let error = NodeError { watched: training.watched.clone(), ..error };
            self.rendezvous.failed(&error);
            error
        })
    }

    fn run_over(
        &self,
        transport: &mut dyn Transport,
        replica: &mut Replica,
        progress: Progress,
        training: &Loop<'_>,
    ) -> Result<Option<String>, NodeError> {
        let mut watch = Watch { events: self.events.clone(), stop: self.stop.clone() };
        let Some(output) = &self.output else {
            let result = self.rounds(replica, progress, transport, &mut watch, training)?;
            return Ok(result.map(|result| json(&result.summary)));
        };
        let mut directory = self.directory(output, transport, progress.round)?;
        let (experiment, engine) = (&self.experiment, &mut replica.attach()?);
        let (_, mut recorder) = Recorder::begin(&mut directory, experiment, engine, &self.stop, &mut watch)?;
        let result = match self.rounds(replica, progress, transport, &mut recorder, training) {
            Ok(None) => return Ok(None),
            Ok(Some(result)) => Ok(result),
            Err(error) => Err(error),
        };
        Ok(Some(json(&recorder.finish(result, &self.layout)?)))
    }

    /// The run directory. Peers have one each, in which a worker that was killed continues.
    fn directory(&self, output: &Path, transport: &dyn Transport, round: u64) -> Result<RunDirectory, NodeError> {
        let is_shared = !transport.capabilities().survives_loss;
        let location = RunLocation { placement: transport.placement().clone(), is_shared };
        let output = match self.rendezvous {
            Rendezvous::Peers(_) => output.join(format!("peer-{}", self.number)),
            _ => output.to_owned(),
        };
        let was_killed = matches!(self.rendezvous, Rendezvous::Peers(_)) && !output.join(Summary::FILE).exists();
        let open = || match round {
            0 if was_killed => RunDirectory::open_at(&output, &self.experiment, &location, u64::MAX),
            0 => RunDirectory::create(&output, &self.experiment, &location),
            round => RunDirectory::open_at(&output, &self.experiment, &location, round),
        };
        Ok(when_released(open, |error| matches!(error, DirectoryError::InUse(_)))?)
    }

    /// Runs rounds until the loop ends the run. Returns none if it gives the worker up.
    fn rounds(
        &self,
        replica: &mut Replica,
        progress: Progress,
        transport: &mut dyn Transport,
        observer: &mut dyn Observer,
        training: &Loop<'_>,
    ) -> Result<Option<RunResult>, RunError> {
        let mut node = Node::new(&self.experiment, &replica.attach()?, transport, progress, observer)?;
        if let Some(rate) = replica.previous_rate {
            node.set_learning_rate(rate);
        }
        let mut ended = None;
        let mut next = Some(Request::Begin);
        while let Some(request) = next {
            let engine = &mut replica.attach()?;
            training.answer(Ok(match request {
                Request::Begin => self.begin(&mut node, engine, &mut ended)?,
                Request::Save => {
                    engine.before_step();
                    Answer::Done(None)
                }
                Request::Finish { loss, rate } => {
                    engine.after_step();
                    node.set_learning_rate(rate);
                    ended = node.finish_round(engine, &[self.score(loss)])?;
                    Answer::Done(ended.clone())
                }
                Request::Snapshot => snapshot(node.snapshot(engine)?),
                Request::Restore { .. } => Answer::Done(None),
                Request::End { is_finished } => {
                    let early = Status::Interrupted { round: node.round() };
                    let status = ended.unwrap_or(if is_finished { Status::Finished } else { early });
                    if status != Status::Finished {
                        self.check_early_end()?;
                        node.leave_early()?;
                    }
                    return Ok(Some(node.end(status, engine)?));
                }
            }));
            next = training.next();
        }
        Ok(None)
    }

    fn begin(
        &self,
        node: &mut Node<'_>,
        engine: &mut ExternalEngine<'_>,
        ended: &mut Option<Status>,
    ) -> Result<Answer, RunError> {
        if ended.is_none()
            && let NextRound::End(status) = node.begin_round(engine)?
        {
            *ended = Some(status);
        }
        let is_adopted = self.events.take_adopted();
        Ok(Answer::Begun { round: node.round(), is_adopted, status: ended.clone() })
    }

    /// Refuses an end that the other processes would wait for.
    fn check_early_end(&self) -> Result<(), RunError> {
        match self.rendezvous.ends_together(&self.experiment) {
            true => Err(TransportError::Broken(format!("the loop of worker {} ended early", self.number)).into()),
            false => Ok(()),
        }
    }

    /// The score of the local step. A server has none.
    fn score(&self, loss: Option<f64>) -> Option<Score> {
        let examples = self.experiment.sampler.batch_size();
        let loss = loss.filter(|_| self.experiment.server != Some(self.number.into()));
        loss.map(|loss| Score { loss, examples, ..Score::default() })
    }
}

/// Refuses algorithms that a loop without an engine cannot use.
fn check_algorithm(experiment: &Experiment) -> Result<(), NodeError> {
    let Some(algorithm) = experiment.method.synchronous() else {
        return Err(RunError::Asynchronous(experiment.algorithm_name()).into());
    };
    if algorithm.owns_momentum() {
        return Err(RunError::OwnsMomentum(algorithm.display_name()).into());
    }
    let needs_engine =
        [(algorithm.clips(), "robust = \"clip\""), (algorithm.verifies_leaders(), "leaders = \"verified\"")];
    match needs_engine.into_iter().find(|(is_set, _)| *is_set) {
        Some((_, key)) => {
            let text = format!("algorithm.{key} evaluates models in an engine of Upwash: a loop of your own has none");
            Err(NodeError::new(Class::Config, text))
        }
        None => Ok(()),
    }
}

/// Whether a vector of an engine's state belongs to the algorithm. The others belong to the loop.
fn is_algorithms(name: &str) -> bool {
    !["models", "statistics"].contains(&name)
}

/// What a worker needs to resume: the loop keeps the model itself.
fn snapshot((progress, state): Snapshot) -> Answer {
    let vectors = state.into_iter().filter(|(name, _)| is_algorithms(name));
    let progress = serde_json::to_string(&progress).unwrap_or_default();
    Answer::Snapshot { progress, vectors: vectors.collect() }
}
