//! The round loop: Algorithm 1 of the AL-DSGD paper, for every synchronous algorithm, engine and transport.
//!
//! A [`Node`] is one process of a run. It decides which round comes next, exchanges messages and plans; it has no
//! vectors. Those are the engine's, which is why somebody else's training loop can drive a node as well: begin a round,
//! take the steps, finish the round.

use super::costs;
use super::evaluation::EngineReplicas;
use super::round::CurrentRound;
use super::session::{Session, known_losses};
use super::{ControlFlow, Event, Observer, Progress, RunError, RunResult, Status};
use crate::algorithm::{Algorithm, WorkerPlan};
use crate::engine::{Engine, GradientTask, Score, State};
use crate::experiment::Experiment;
use crate::gossip::{ExchangeJob, Gossip, Inbox};
use crate::model::Layout;
use crate::transport::{MembershipEvent, RoundStart, Transport, TransportError};

/// One process of a run, without the vectors of its workers.
pub struct Node<'a> {
    pub(super) session: Session<'a>,
    algorithm: &'a dyn Algorithm,
    gossip: Gossip<'a>,
    transport: &'a mut dyn Transport,
    /// The round that was begun.
    round: Option<CurrentRound<'a>>,
    /// The learning rate of the round before, where the training loop has its own.
    last_rate: Option<f64>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum NextRound {
    /// A round: the gradient of each local worker that has data.
    Run(Vec<Option<GradientTask>>),
    /// Nothing: the run ends so.
    End(Status),
}

/// Runs rounds until there are no more, or something ends them.
pub(super) fn run_rounds(node: &mut Node<'_>, engine: &mut dyn Engine) -> Result<Status, RunError> {
    loop {
        let tasks = match node.begin_round(engine)? {
            NextRound::Run(tasks) => tasks,
            NextRound::End(status) => return Ok(status),
        };
        // Every local worker's gradient and step.
        let scores = engine.step(&tasks)?;
        if let Some(status) = node.finish_round(engine, &scores)? {
            return Ok(status);
        }
    }
}

impl<'a> Node<'a> {
    /// The first half of a round, up to the gradients.
    fn begin(&mut self, engine: &mut dyn Engine) -> Result<NextRound, RunError> {
        let mut round = match self.next_round(engine)? {
            Ok(round) => round,
            Err(status) => return Ok(NextRound::End(status)),
        };
        // With overlap, x leaves before the gradient, with the last round's loss.
        round.post_early(&mut self.gossip, engine, self.transport)?;
        let tasks = round.gradient_tasks(&self.session, engine.workers());
        self.round = Some(round);
        Ok(NextRound::Run(tasks))
    }

    /// The second half: exchange and mix.
    fn finish(&mut self, engine: &mut dyn Engine, scores: &[Option<Score>]) -> Result<Option<Status>, RunError> {
        let round = self.round.take().ok_or(RunError::NoRound)?;
        // A run that diverges ends before that spreads.
        if let Some(status) = self.observe_step(&round, scores, engine)? {
            return Ok(Some(status));
        }
        for job in round.jobs() {
            // Send to and receive from neighbors: models, losses, degrees.
            let stats = round.stats_for(&job, &self.session);
            let inbox = self.gossip.exchange(&job, stats, engine, self.transport)?;
            // Every worker's row of A and C, leaders included, from what it knows.
            let plans = self.gossip.plans(&job, &inbox);
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
    /// A node of a synchronous run, from `progress` on; the workers that `engine` holds are this process's.
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
        let placement = transport.placement().clone();
        let mut session = Session::new(experiment, progress, observer, engine.layout(), &placement);
        session.evaluates = !engine.is_external();
        Ok(Self {
            gossip: Gossip::new(experiment, placement),
            session,
            algorithm,
            transport,
            round: None,
            last_rate: None,
        })
    }

    /// Begins the next round: serves or adopts a model, forgets lost neighbors, waits for others, or stops.
    pub fn begin_round(&mut self, engine: &mut dyn Engine) -> Result<NextRound, RunError> {
        let begun = self.begin(engine);
        begun.or_else(|error| error.into_status().map(NextRound::End))
    }

    /// Finishes the round after the local steps, whose scores are those before the steps; how the run ends, if it does.
    pub fn finish_round(
        &mut self,
        engine: &mut dyn Engine,
        scores: &[Option<Score>],
    ) -> Result<Option<Status>, RunError> {
        let finished = self.finish(engine, scores);
        finished.or_else(|error| error.into_status().map(Some))
    }

    /// Takes the round's local steps to be of this learning rate, not of the configured one. For training loops with a
    /// schedule of their own, between [`begin_round`](Self::begin_round) and [`finish_round`](Self::finish_round).
    pub fn set_learning_rate(&mut self, rate: f64) {
        if let Some(round) = &mut self.round {
            round.set_rate(rate, self.last_rate.unwrap_or(rate));
            self.last_rate = Some(rate);
        }
    }

    /// The round that comes next, or that was begun.
    pub fn round(&self) -> u64 {
        self.session.progress.round
    }

    /// Ends the run with this status: the last evaluation, the averaged model and the summary.
    pub fn end(self, status: Status, engine: &mut dyn Engine) -> Result<RunResult, RunError> {
        self.session.end(status, engine, self.transport)
    }

    /// Does what must be done between rounds, until there is one to run or the run ends.
    fn next_round(&mut self, engine: &mut dyn Engine) -> Result<Result<CurrentRound<'a>, Status>, RunError> {
        let session = &mut self.session;
        while !session.is_over() {
            let round = session.progress.round;
            if self.transport.state_requested() {
                self.transport.send_state(round, engine.state()?);
            }
            let is_stopping = session.next == ControlFlow::Stop;
            let start = self.transport.may_begin(round, is_stopping)?;
            for change in self.transport.membership_events() {
                if let MembershipEvent::Joined { worker } | MembershipEvent::Lost { worker, .. } = change {
                    self.gossip.forget(worker);
                }
                session.report(&Event::Peer { round, change });
            }
            match start {
                RoundStart::Go => {
                    session.begin_round();
                    let placement = &self.gossip.placement;
                    return Ok(Ok(CurrentRound::new(session, self.algorithm, placement)));
                }
                RoundStart::Wait => session.next = session.next.or(session.meanwhile()),
                RoundStart::Stop => {
                    let mut replicas = EngineReplicas::new(engine, self.transport);
                    return Ok(Err(session.stop(&mut replicas)));
                }
                RoundStart::Jump { round, adopted } => adopt(session, round, adopted, engine),
            }
        }
        Ok(Err(Status::Finished))
    }

    /// Takes note of the losses before the step; how the run ends, if one of them is not sane.
    fn observe_step(
        &mut self,
        round: &CurrentRound<'_>,
        scores: &[Option<Score>],
        engine: &mut dyn Engine,
    ) -> Result<Option<Status>, RunError> {
        let session = &mut self.session;
        let mut known = vec![None; session.experiment.workers()];
        for (worker, score) in self.gossip.placement.own().zip(scores) {
            known[worker] = score.map(|score| score.loss);
        }
        let is_lost = |worker: &usize| !known[*worker].is_some_and(|loss| session.is_sane(loss));
        if let Some(worker) = session.local.iter().copied().find(is_lost) {
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
        session.leaders.now.fill(None);
        Ok(None)
    }

    /// Takes note of what plans say beside vectors: scalars and leaders.
    fn record(&mut self, plans: &[WorkerPlan]) {
        for WorkerPlan { worker, plan, .. } in plans {
            if let Some(number) = plan.scalar {
                self.session.progress.scalars[*worker] = number;
            }
            if plan.leaders.is_some() {
                self.session.leaders.now[*worker] = plan.leaders;
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

    /// Events, evaluation, checkpoint, control requests.
    fn end_round(&mut self, scores: &[Option<Score>], engine: &mut dyn Engine) -> Result<(), RunError> {
        let session = &mut self.session;
        for (worker, score) in self.gossip.placement.own().zip(scores) {
            if let Some(score) = score {
                session.count(worker, *score);
            }
        }
        match session.simulates_costs {
            true => costs::advance_clock(session),
            false => session.measure_costs(self.transport.traffic()),
        }
        let losses = known_losses(&session.progress.losses);
        let mut replicas = EngineReplicas::new(engine, self.transport);
        session.next = session.end_round(losses, &mut replicas)?;
        Ok(())
    }
}

/// Goes on with a later round, and with another worker's model where one was given.
fn adopt(session: &mut Session<'_>, round: u64, adopted: Option<State>, engine: &mut dyn Engine) {
    session.jump(round);
    if let Some(state) = adopted
        && let Err(error) = engine.restore(&state)
    {
        let what = format!("a neighbor's model does not fit: {error}");
        let change = MembershipEvent::Refused { what };
        session.report(&Event::Peer { round, change });
    }
}

impl RunError {
    /// How the run ends, if another process has diverged; any other error stays one.
    pub(super) fn into_status(self) -> Result<Status, Self> {
        match self {
            Self::Transport(TransportError::Diverged { worker, round }) => Ok(Status::Diverged { worker, round }),
            error => Err(error),
        }
    }
}
