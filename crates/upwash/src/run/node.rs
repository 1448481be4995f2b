//! The round loop: Algorithm 1 of the AL-DSGD paper, for every synchronous algorithm, engine and transport.
//!
//! A [`Node`] is one process of a run. It decides which round comes next, exchanges messages and computes plans. It
//! owns no vectors: those belong to the engine. An external training loop can therefore drive a node as well: begin a
//! round, take the steps, finish the round.

use super::costs;
use super::evaluation::EngineReplicas;
use super::round::CurrentRound;
use super::session::{Session, known_losses};
use super::{ControlFlow, Event, Observer, Progress, RunError, RunResult, Snapshot, Status};
use crate::algorithm::{Algorithm, Restart, WorkerPlan};
use crate::engine::{Engine, GradientTask, Score, State};
use crate::experiment::Experiment;
use crate::gossip::{ExchangeJob, Gossip, Inbox};
use crate::ids::WorkerId;
use crate::model::Layout;
use crate::transport::{Adoption, MembershipEvent, RoundStart, Transport, TransportError};

/// One process of a run, without the vectors of its workers.
pub struct Node<'a> {
    pub(super) session: Session<'a>,
    algorithm: &'a dyn Algorithm,
    gossip: Gossip<'a>,
    transport: &'a mut dyn Transport,
    /// The round in progress.
    round: Option<CurrentRound<'a>>,
    /// The first round of this process.
    first_round: u64,
    /// The learning rate of the previous round, if the training loop sets its own.
    previous_rate: Option<f64>,
}

/// What a node does next.
#[derive(Clone, Debug, PartialEq)]
pub enum NextRound {
    /// Run a round: one gradient for each local worker that has data.
    Run(Vec<Option<GradientTask>>),
    /// End the run with this status.
    End(Status),
}

/// Runs rounds until none are left or the run ends early.
pub(super) fn run_rounds(node: &mut Node<'_>, engine: &mut dyn Engine) -> Result<Status, RunError> {
    loop {
        let tasks = match node.begin_round(engine)? {
            NextRound::Run(tasks) => tasks,
            NextRound::End(status) => return Ok(status),
        };
        // Compute every local worker's gradient and take its step.
        let scores = engine.step(&tasks)?;
        if let Some(status) = node.finish_round(engine, &scores)? {
            return Ok(status);
        }
    }
}

impl<'a> Node<'a> {
    /// Runs the first half of a round, up to the gradients.
    fn begin(&mut self, engine: &mut dyn Engine) -> Result<NextRound, RunError> {
        let mut round = match self.next_round(engine)? {
            Ok(round) => round,
            Err(status) => return Ok(NextRound::End(status)),
        };
        // With overlap, x leaves before the gradient is computed, with the loss of the previous round.
        round.post_early(&mut self.gossip, engine, self.transport)?;
        let tasks = round.gradient_tasks(&self.session, engine.workers());
        self.round = Some(round);
        Ok(NextRound::Run(tasks))
    }

    /// Runs the second half of a round: exchange and mix.
    fn finish(&mut self, engine: &mut dyn Engine, scores: &[Option<Score>]) -> Result<Option<Status>, RunError> {
        let round = self.round.take().ok_or(RunError::NoRound)?;
        // A run that diverges ends before the divergence spreads.
        if let Some(status) = self.observe_step(&round, scores, engine)? {
            return Ok(Some(status));
        }
        for job in round.jobs() {
            // Send models, losses and degrees to neighbors, and receive theirs.
            let stats = round.stats_for(&job, &self.session);
            let inbox = self.gossip.exchange(&job, stats, engine, self.transport)?;
            // Compute every local worker's row of A and C, leaders included, from what it knows.
            let measurements = self.gossip.measure(&job, &inbox, engine)?;
            let plans = self.gossip.plans(&job, &inbox, &measurements)?;
            self.record(&plans);
            self.observe_costs(&round, &job, &inbox, &plans, engine.layout());
            // X' = A X - C U, all rows at once.
            self.gossip.apply(&job, plans, inbox, engine)?;
        }
        self.end_round(scores, engine)?;
        Ok(None)
    }
}

impl<'a> Node<'a> {
    /// Creates a node of a synchronous run that continues from `progress`. `engine` holds the workers of this process.
    pub fn new(
        experiment: &'a Experiment,
        engine: &dyn Engine,
        transport: &'a mut dyn Transport,
        progress: Progress,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, RunError> {
        super::check_workers(experiment, engine, transport)?;
        let Some(algorithm) = experiment.method.synchronous() else {
            return Err(RunError::Asynchronous(experiment.algorithm_name()));
        };
        if engine.is_external() && algorithm.owns_momentum() {
            return Err(RunError::OwnsMomentum(algorithm.display_name()));
        }
        if let Some(participation) = progress.participation {
            transport.restore_participation(participation);
        }
        let placement = transport.placement().clone();
        let mut session = Session::new(experiment, progress, observer, engine.layout(), &placement);
        session.evaluates = !engine.is_external();
        Ok(Self {
            first_round: session.progress.round,
            gossip: Gossip::new(experiment, placement),
            session,
            algorithm,
            transport,
            round: None,
            previous_rate: None,
        })
    }

    /// Begins the next round: sends or adopts a model, forgets lost neighbors, waits for others, or stops.
    pub fn begin_round(&mut self, engine: &mut dyn Engine) -> Result<NextRound, RunError> {
        let begun = self.begin(engine);
        begun.or_else(|error| error.into_status().map(NextRound::End))
    }

    /// Finishes the round after the local steps. `scores` are those before the steps. Returns a status if the run ends.
    pub fn finish_round(
        &mut self,
        engine: &mut dyn Engine,
        scores: &[Option<Score>],
    ) -> Result<Option<Status>, RunError> {
        let finished = self.finish(engine, scores);
        finished.or_else(|error| error.into_status().map(Some))
    }

    /// Sets the learning rate of this round's local steps, in place of the configured one. For training loops with
    /// their own schedule, between [`begin_round`](Self::begin_round) and [`finish_round`](Self::finish_round). Before the
    /// first round of a run that is resumed, it sets the rate of the round before.
    pub fn set_learning_rate(&mut self, rate: f64) {
        if let Some(round) = &mut self.round {
            round.set_rate(rate, self.previous_rate.unwrap_or(rate));
        }
        self.previous_rate = Some(rate);
    }

    /// Says that this process leaves before the run is over. The others then do without it.
    pub fn leave_early(&mut self) -> Result<(), RunError> {
        Ok(self.transport.may_begin(self.session.progress.round, true).map(drop)?)
    }

    /// What the run needs to resume between two rounds: its progress and the engine's state.
    pub fn snapshot(&self, engine: &mut dyn Engine) -> Result<Snapshot, RunError> {
        Ok((self.session.progress.clone(), engine.state()?))
    }

    /// The round in progress, or the next one.
    pub fn round(&self) -> u64 {
        self.session.progress.round
    }

    /// The public copies that this process keeps of the models of other processes' workers. For tests.
    #[doc(hidden)]
    pub fn public_copies(&self) -> std::collections::BTreeMap<WorkerId, Vec<f32>> {
        self.gossip.public_copies.iter().map(|((worker, _), copy)| (*worker, copy.clone())).collect()
    }

    /// Ends the run with this status: evaluates the models, averages them and builds the summary.
    pub fn end(self, status: Status, engine: &mut dyn Engine) -> Result<RunResult, RunError> {
        let mut result = self.session.end(status, engine, self.transport)?;
        // A loop may end after it has begun a round.
        if let (Some(_), Some(participation)) = (self.round, &mut result.summary.participation) {
            participation.rounds_run = participation.rounds_run.saturating_sub(1);
        }
        Ok(result)
    }

    /// Does everything that is due between rounds, until there is a round to run or the run ends.
    fn next_round(&mut self, engine: &mut dyn Engine) -> Result<Result<CurrentRound<'a>, Status>, RunError> {
        let session = &mut self.session;
        while !session.is_over() {
            let round = session.progress.round;
            if self.transport.state_requested() {
                self.transport.send_state(round, engine.state()?);
            }
            let is_stopping = session.control_flow == ControlFlow::Stop;
            let start = self.transport.may_begin(round, is_stopping)?;
            for change in self.transport.membership_events() {
                session.report(&Event::Peer { round, change });
            }
            let changed = self.transport.changed_links();
            if !changed.is_empty() && session.progress.round > self.first_round {
                self.gossip.plan_restart(round);
            }
            changed.into_iter().for_each(|worker| self.gossip.forget(worker));
            session.progress.participation = self.transport.participation();
            match start {
                RoundStart::Go => {
                    if self.gossip.take_restart(round) {
                        restart(session, self.algorithm, engine)?;
                    }
                    session.begin_round();
                    let placement = &self.gossip.placement;
                    return Ok(Ok(CurrentRound::new(session, self.algorithm, placement)));
                }
                RoundStart::Wait => session.control_flow = session.control_flow.or(session.while_waiting()),
                RoundStart::Stop => {
                    let mut replicas = EngineReplicas::new(engine, self.transport);
                    return Ok(Err(session.stop(&mut replicas)));
                }
                RoundStart::Isolated => {
                    let mut replicas = EngineReplicas::new(engine, self.transport);
                    return Ok(Err(session.isolated(&mut replicas)));
                }
                RoundStart::Adopt(Adoption { from, round, state }) => match engine.restore(&state) {
                    Err(error) => self.transport.refuse(from, format!("its model does not fit: {error}")),
                    Ok(()) => {
                        self.transport.adopted(round);
                        session.move_to(round);
                        if self.algorithm.restart().scalars {
                            session.progress.scalars.fill(1.0);
                        }
                    }
                },
            }
        }
        Ok(Err(Status::Finished))
    }

    /// Records the losses before the step. Returns a status if one of them has diverged.
    fn observe_step(
        &mut self,
        round: &CurrentRound<'_>,
        scores: &[Option<Score>],
        engine: &mut dyn Engine,
    ) -> Result<Option<Status>, RunError> {
        let session = &mut self.session;
        let mut known = vec![None; session.experiment.workers()];
        for (worker, score) in self.gossip.placement.with_workers(scores) {
            known[worker] = score.map(|score| score.loss);
        }
        let has_diverged = |worker: &WorkerId| !session.is_sane(known[*worker]);
        if let Some(worker) = session.local.iter().copied().find(has_diverged) {
            self.transport.leave(worker, round.index)?;
            let mut replicas = EngineReplicas::new(engine, self.transport);
            let losses = known_losses(&known);
            return Ok(Some(session.diverged(worker, losses, &mut replicas)));
        }
        session.progress.losses = known;
        for &worker in &session.local {
            let seconds = session.experiment.clock.gradient(worker, round.index);
            session.progress.clocks[worker] += seconds;
        }
        session.leaders.current.fill(None);
        Ok(None)
    }

    /// Records the scalars and leaders of plans.
    fn record(&mut self, plans: &[WorkerPlan]) {
        for WorkerPlan { worker, plan, .. } in plans {
            if let Some(scalar) = plan.scalar {
                self.session.progress.scalars[*worker] = scalar;
            }
            if plan.leaders.is_some() {
                self.session.leaders.current[*worker] = plan.leaders;
            }
        }
    }

    fn observe_costs(
        &mut self,
        round: &CurrentRound<'_>,
        job: &ExchangeJob<'_>,
        inbox: &Inbox,
        plans: &[WorkerPlan],
        layout: &Layout,
    ) {
        costs::observe(&mut self.session, round, job, inbox, plans, layout);
    }

    /// Reports the round, evaluates, writes checkpoints and serves control requests.
    fn end_round(&mut self, scores: &[Option<Score>], engine: &mut dyn Engine) -> Result<(), RunError> {
        let session = &mut self.session;
        for (worker, score) in self.gossip.placement.with_workers(scores) {
            if let Some(score) = score {
                session.add_score(worker, *score);
            }
        }
        costs::end_round(session, self.transport.traffic());
        let losses = known_losses(&session.progress.losses);
        let mut replicas = EngineReplicas::new(engine, self.transport);
        session.control_flow = session.end_round(losses, &mut replicas)?;
        Ok(())
    }
}

/// Starts afresh what the algorithm relies on for all workers together. All workers do so before the same round.
fn restart(session: &mut Session<'_>, algorithm: &dyn Algorithm, engine: &mut dyn Engine) -> Result<(), RunError> {
    let Restart { scalars, state_vectors } = algorithm.restart();
    if !scalars && state_vectors.is_empty() {
        return Ok(());
    }
    if scalars {
        session.progress.scalars.fill(1.0);
    }
    let names: Vec<&str> = algorithm.state_vectors().iter().map(|vector| vector.name).collect();
    let mut state = engine.state()?;
    for (index, source) in state_vectors {
        let find = |state: &State, index: usize| state.iter().position(|entry| entry.0 == names[index]);
        let value = source.and_then(|source| find(&state, source)).map(|source| state[source].1.clone());
        if let Some(target) = find(&state, index) {
            let target = &mut state[target].1;
            *target = value.unwrap_or_else(|| vec![0.0; target.len()]);
        }
    }
    engine.restore(&state)?;
    let round = session.progress.round;
    session.report(&Event::Peer { round, change: MembershipEvent::Restarted });
    Ok(())
}

impl RunError {
    /// Turns the divergence of another process into a status. Any other error stays an error.
    pub(super) fn into_status(self) -> Result<Status, Self> {
        match self {
            Self::Transport(TransportError::Diverged { worker, round }) => Ok(Status::Diverged { worker, round }),
            error => Err(error),
        }
    }
}
