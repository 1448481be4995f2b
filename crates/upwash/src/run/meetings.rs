//! Asynchronous runs between processes: every process has one worker, and nobody waits for all.
//!
//! One thread computes gradients. The calling thread answers whoever wants to meet this worker, passes
//! on what the worker itself asks of others, counts, tests and tells. A meeting is a letter there and
//! a letter back. The worker goes on being met while it waits for its answer: what becomes of it is
//! computed from the model that it sent, and the difference is added to the one it has by then, so that
//! nothing that others gave it is lost, and nobody can wait in a circle.

use super::RunError;
use super::course::{Course, Models};
use super::report::{Event, Moment, Next, Progress, Status};
use super::team::Team;
use super::threads::lock;
use crate::algorithm::{Asynchronous, Message, Part as Participant, Report, Turn};
use crate::engine::{Part, Score, Turn as Gradient};
use crate::experiment::Experiment;
use crate::fleet::{Lane, Lanes, Shared};
use crate::mix::{Guest, Row, Terms, exchange};
use crate::transport::{Begin, Letter, Numbers, Transport, TransportError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// How long the calling thread listens before it looks up.
const GLANCE: Duration = Duration::from_micros(200);
/// Who is not answered for so long goes on alone.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a centre that was asked to stop still answers.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a letter is for: the lowest bits of its number.
const REQUEST: u32 = 0;
const REPLY: u32 = 1;
const DONE: u32 = 2;

/// This process's worker, for both threads.
struct Open<'a> {
    model: &'a mut [f32],
    statistics: &'a mut [f32],
    number: f64,
}

struct Field<'a> {
    experiment: &'a Experiment,
    algorithm: &'a dyn Asynchronous,
    shared: &'a Shared,
    worker: usize,
    neighbours: Vec<usize>,
    open: Mutex<Open<'a>>,
    velocity: Mutex<&'a mut [f32]>,
    stop: AtomicBool,
    rate: Box<dyn Fn(f64) -> f64 + Sync + 'a>,
}

/// What the worker's thread tells the calling one.
enum Told {
    /// It wants to meet someone: its model and number as they are.
    Request {
        to: usize,
        step: u64,
        letter: Letter,
    },
    /// A gradient is applied.
    Step(Score),
}

pub(super) fn run(
    course: &mut Course<'_>,
    algorithm: &dyn Asynchronous,
    team: &mut Team<'_>,
) -> Result<Status, RunError> {
    let experiment = course.experiment;
    let own = team.placement.own();
    if own.len() != 1 {
        return Err(RunError::OneEach(algorithm.words()));
    }
    let worker = own.start;
    let mut next = Next::Continue;
    loop {
        match team.transport.may_begin(0, next == Next::Stop)? {
            Begin::Wait => next = course.meanwhile(),
            Begin::Stop => return Ok(course.stop(team)),
            Begin::Go | Begin::Jump { .. } => break,
        }
    }
    let transport = &mut *team.transport;
    let Some(Lanes { shared, workers }) = team.engine.lanes() else {
        return Err(RunError::Threads);
    };
    let Some(Lane {
        model,
        statistics,
        update,
        velocity,
        ..
    }) = workers.into_iter().next()
    else {
        return Err(RunError::Threads);
    };
    let field = Field {
        experiment,
        algorithm,
        shared,
        worker,
        neighbours: experiment.acquaintances(worker),
        open: Mutex::new(Open {
            model,
            statistics,
            number: course.progress.numbers[worker],
        }),
        velocity: Mutex::new(velocity),
        stop: AtomicBool::new(false),
        rate: Box::new(course.rates()),
    };
    let trains = Some(worker) != experiment.centre;
    let (first, last) = (course.progress.round, experiment.rounds());
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        if trains {
            let field = &field;
            scope.spawn(move || field.work(first..last, update, &tell, &answers));
        } else {
            drop(tell);
        }
        let mut desk = Desk {
            field: &field,
            transport,
            sequence: 0,
            done: BTreeSet::new(),
            steps: BTreeMap::new(),
            held_back: Vec::new(),
            answer,
        };
        let status = desk.serve(course, &told, trains);
        field.stop.store(true, Ordering::Relaxed);
        status
    })
}

impl Field<'_> {
    fn turn(&self, step: u64, number: f64) -> Turn<'_> {
        Turn {
            worker: self.worker,
            step,
            neighbours: self.experiment.graph.neighbours(self.worker),
            centre: self.experiment.centre,
            training: self.experiment.training_workers().len(),
            number,
            seed: self.experiment.config.seed,
        }
    }

    /// Gradient after gradient.
    fn work(
        &self,
        steps: std::ops::Range<u64>,
        update: &mut [f32],
        tell: &mpsc::Sender<Told>,
        answers: &mpsc::Receiver<Option<Letter>>,
    ) {
        let mut statistics = lock(&self.open).statistics.to_vec();
        for step in steps {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let snapshot = lock(&self.open).model.to_vec();
            let turn = Gradient {
                batch: step,
                rate: (self.rate)(step as f64),
            };
            // In this process the worker is the first.
            let score = self.shared.gradient(
                0,
                turn,
                &snapshot,
                &mut statistics,
                update,
                &mut lock(&self.velocity),
            );
            lock(&self.open).statistics.copy_from_slice(&statistics);
            if !self.meet(step, update, tell, answers) || tell.send(Told::Step(score)).is_err() {
                return;
            }
        }
    }

    /// Meets whom the algorithm says, if it can be reached; whether anyone still listens.
    fn meet(
        &self,
        step: u64,
        update: &[f32],
        tell: &mpsc::Sender<Told>,
        answers: &mpsc::Receiver<Option<Letter>>,
    ) -> bool {
        let (sent, number) = {
            let open = lock(&self.open);
            (open.model.to_vec(), open.number)
        };
        let turn = self.turn(step, number);
        let mut reply = None;
        let partner = self.algorithm.partner(&turn);
        if let Some(to) = partner {
            // What it sends does not depend on the other's number.
            let meeting = self.algorithm.meet(&turn, Some((to, 1.0)));
            let part = meeting.parts.iter().find(|part| part.worker == self.worker);
            let numbers = part.map_or(vec![], |part| sent_by(part, &sent, update));
            let letter = self.letter(numbers, number);
            if tell.send(Told::Request { to, step, letter }).is_err() {
                return false;
            }
            match answers.recv_timeout(PATIENCE) {
                Ok(answer) => reply = answer,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return false,
            }
        }
        let known = partner.zip(reply.as_ref());
        let known = known.map(|(partner, reply)| (partner, reply.report.number));
        let meeting = self.algorithm.meet(&turn, known);
        let guest = partner
            .zip(reply)
            .map(|(partner, reply)| (partner, reply.numbers));
        let (model, new_number) = self.after(&meeting.parts, sent.clone(), update, guest);
        let mut open = lock(&self.open);
        let changes = model.iter().zip(&sent);
        let changed = open.model.iter_mut().zip(changes);
        changed.for_each(|(x, (new, old))| *x += new - old);
        open.number += new_number.map_or(0.0, |new| new - number);
        true
    }

    fn letter(&self, numbers: Vec<f32>, number: f64) -> Letter {
        Letter {
            from: self.worker,
            round: 0,
            exchange: 0,
            report: Report {
                loss: None,
                degree: self.neighbours.len(),
                number,
            },
            whole: true,
            fresh: false,
            numbers: numbers.into(),
        }
    }

    /// What becomes of this worker's model and number in a meeting with at most one other.
    fn after(
        &self,
        parts: &[Participant],
        mut model: Vec<f32>,
        update: &[f32],
        other: Option<(usize, Numbers)>,
    ) -> (Vec<f32>, Option<f64>) {
        let Some(part) = parts.iter().find(|part| part.worker == self.worker) else {
            return (model, None);
        };
        let rows = vec![Row {
            model: &mut model,
            step: update,
            extras: vec![],
        }];
        let mut all = vec![part.clone()];
        let mut guests = Vec::new();
        if let Some((worker, numbers)) = other {
            let messages = vec![numbers];
            let guest = Guest { messages };
            all.push(guest.part(worker));
            guests.push(guest);
        }
        let terms = Terms {
            alone: true,
            ..Default::default()
        };
        exchange(rows, &guests, &all, terms);
        (model, part.plan.number)
    }
}

/// The message of a part, made of a model and a step.
fn sent_by(part: &Participant, model: &[f32], update: &[f32]) -> Vec<f32> {
    let message = part
        .messages
        .first()
        .cloned()
        .unwrap_or_else(Message::model);
    let mut model = model.to_vec();
    let row = Row {
        model: &mut model,
        step: update,
        extras: vec![],
    };
    row.outgoing(&message, &[])
}

/// The calling thread.
struct Desk<'f, 'a> {
    field: &'f Field<'a>,
    transport: &'f mut dyn Transport,
    /// Letters are numbered, so that none counts twice.
    sequence: u64,
    /// Neighbours that have come to their end.
    done: BTreeSet<usize>,
    /// How many gradients each has told of; and answers that wait for the slowest.
    steps: BTreeMap<usize, u64>,
    held_back: Vec<(usize, Letter)>,
    answer: mpsc::Sender<Option<Letter>>,
}

impl Desk<'_, '_> {
    fn serve(
        &mut self,
        course: &mut Course<'_>,
        told: &mpsc::Receiver<Told>,
        trains: bool,
    ) -> Result<Status, RunError> {
        let (mut waiting, mut stopping, mut at_work) = (None, false, trains);
        let (before, began) = (course.progress.sent, Instant::now());
        let (mut said_goodbye, mut leaving) = (false, None);
        course.begin_round();
        loop {
            for letter in self.transport.receive(GLANCE)? {
                self.open(letter, &mut waiting)?;
            }
            for news in self.transport.news() {
                let round = course.progress.round;
                course.tell(&Event::Peer { round, news });
            }
            if !trains {
                course.progress.sent = before.after(self.transport.traffic(), began.elapsed());
                stopping |= self.keep_up(course) == Next::Stop || course.meanwhile() == Next::Stop;
                // Those who are asked to stop as well have something to say yet.
                let since = stopping.then(|| *leaving.get_or_insert_with(Instant::now));
                if since.is_some_and(|since| since.elapsed() > FAREWELL) {
                    break;
                }
            }
            loop {
                match told.try_recv() {
                    Ok(Told::Request { to, step, letter }) => {
                        course.met(self.field.worker, to);
                        if self.send(to, step, REQUEST, letter)? {
                            waiting = Some((to, step as u32));
                        } else {
                            let _ = self.answer.send(None);
                        }
                    }
                    Ok(Told::Step(score)) => {
                        course.count(self.field.worker, score);
                        let mut losses = vec![f64::NAN; course.experiment.workers()];
                        losses[self.field.worker] = score.loss;
                        course.progress.losses[self.field.worker] = Some(score.loss);
                        course.progress.sent =
                            before.after(self.transport.traffic(), began.elapsed());
                        if !course.is_sane(score.loss) {
                            let (worker, round) = (self.field.worker, course.progress.round);
                            self.transport.leave(worker, round)?;
                            return Ok(course.diverged(worker, losses, self));
                        }
                        if course.end_round(losses, self) == Next::Stop {
                            stopping = true;
                            self.field.stop.store(true, Ordering::Relaxed);
                        }
                        course.begin_round();
                    }
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => {
                        at_work = false;
                        break;
                    }
                }
            }
            // Whom we ask may be lost.
            if let Some((to, _)) = waiting
                && !self.transport.is_there(to)
            {
                waiting = None;
                let _ = self.answer.send(None);
            }
            self.let_go()?;
            if !at_work {
                if trains && !std::mem::replace(&mut said_goodbye, true) {
                    for to in self.field.neighbours.clone() {
                        let letter = self.field.letter(vec![], 0.0);
                        self.send(to, course.progress.round, DONE, letter)?;
                    }
                }
                if self.is_alone() {
                    break;
                }
            }
        }
        // Where others were asked to stop, a centre has not come to its end either.
        let last = course.experiment.rounds();
        stopping |= !trains && self.done.iter().any(|other| self.steps_of(other) < last);
        if stopping && !course.is_over() {
            return Ok(course.stop(self));
        }
        course.progress.sent = before.after(self.transport.traffic(), began.elapsed());
        course.progress.round = last;
        course.forget_tests();
        Ok(Status::Finished)
    }

    /// A centre has no gradients of its own: its rounds are those that all who are at work have behind them.
    fn keep_up(&mut self, course: &mut Course<'_>) -> Next {
        let at_work =
            |other: &&usize| !self.done.contains(other) && self.transport.is_there(**other);
        let steps = |others: &mut dyn Iterator<Item = &usize>| -> Option<u64> {
            others.map(|other| self.steps_of(other)).min()
        };
        let least = steps(&mut self.field.neighbours.iter().filter(at_work))
            .or_else(|| steps(&mut self.done.iter()))
            .unwrap_or(0);
        let mut next = Next::Continue;
        while course.progress.round < least && next == Next::Continue {
            next = course.end_round(vec![f64::NAN; course.experiment.workers()], self);
            course.begin_round();
        }
        next
    }

    /// How many gradients a worker has told of.
    fn steps_of(&self, worker: &usize) -> u64 {
        self.steps.get(worker).copied().unwrap_or(0)
    }

    /// Nobody who is there can want anything any more: a centre has nothing to say goodbye with.
    fn is_alone(&self) -> bool {
        let mut others = self.field.neighbours.iter();
        others.all(|&other| {
            self.done.contains(&other)
                || !self.transport.is_there(other)
                || Some(other) == self.field.experiment.centre
        })
    }

    fn send(
        &mut self,
        to: usize,
        step: u64,
        what: u32,
        mut letter: Letter,
    ) -> Result<bool, TransportError> {
        self.sequence += 1;
        (letter.round, letter.exchange) = (self.sequence, (step as u32) << 2 | what);
        self.transport.send(to, letter)
    }

    fn open(
        &mut self,
        letter: Letter,
        waiting: &mut Option<(usize, u32)>,
    ) -> Result<(), TransportError> {
        let (from, what, step) = (letter.from, letter.exchange & 3, letter.exchange >> 2);
        match what {
            REQUEST => {
                self.steps.insert(from, u64::from(step) + 1);
                match self.be_met(&letter, step) {
                    Some(reply) if self.is_ahead(from) => self.held_back.push((from, reply)),
                    Some(reply) => drop(self.send(from, u64::from(step), REPLY, reply)?),
                    None => self
                        .transport
                        .refuse(from, "a model that cannot be one".into()),
                }
            }
            REPLY if *waiting == Some((from, step & (u32::MAX >> 2))) => {
                let width = self.width();
                let usable = letter.numbers.len() == width;
                let usable = usable && letter.numbers.iter().all(|x| x.is_finite());
                *waiting = None;
                let _ = self.answer.send(Some(letter).filter(|_| usable));
            }
            DONE => {
                self.steps.insert(from, step.into());
                self.done.insert(from);
            }
            // An answer for which nobody waits any more.
            _ => {}
        }
        Ok(())
    }

    fn width(&self) -> usize {
        lock(&self.field.open).model.len()
    }

    /// Someone meets this worker: what becomes of it, and what it answers.
    fn be_met(&mut self, letter: &Letter, step: u32) -> Option<Letter> {
        let field = self.field;
        if letter.numbers.len() != self.width() || !letter.numbers.iter().all(|x| x.is_finite()) {
            return None;
        }
        let mut open = lock(&field.open);
        let turn = Turn {
            worker: letter.from,
            neighbours: field.experiment.graph.neighbours(letter.from),
            number: letter.report.number,
            ..field.turn(step.into(), 1.0)
        };
        let known = Some((field.worker, open.number));
        let meeting = field.algorithm.meet(&turn, known);
        let part = meeting
            .parts
            .iter()
            .find(|part| part.worker == field.worker)?;
        let reply = field.letter(sent_by(part, open.model, &[]), open.number);
        let theirs = Some((letter.from, letter.numbers.clone()));
        let (model, number) = field.after(&meeting.parts, open.model.to_vec(), &[], theirs);
        open.model.copy_from_slice(&model);
        open.number = number.unwrap_or(open.number);
        Some(reply)
    }

    /// Whether a worker would be too far ahead of the slowest one that is there.
    fn is_ahead(&self, worker: usize) -> bool {
        let Some(staleness) = self.field.algorithm.staleness() else {
            return false;
        };
        let there = |other: &&usize| !self.done.contains(other) && self.transport.is_there(**other);
        let others = self.field.neighbours.iter().filter(there);
        let slowest = others.map(|other| self.steps_of(other)).min();
        self.steps_of(&worker) >= slowest.unwrap_or(u64::MAX).saturating_add(staleness)
    }

    /// Sends the answers that need not wait any more.
    fn let_go(&mut self) -> Result<(), TransportError> {
        for (to, reply) in std::mem::take(&mut self.held_back) {
            if self.is_ahead(to) {
                self.held_back.push((to, reply));
            } else {
                let step = self.steps_of(&to).max(1) - 1;
                self.send(to, step, REPLY, reply)?;
            }
        }
        Ok(())
    }
}

impl Models for Desk<'_, '_> {
    fn score(&mut self, worker: usize, part: Part) -> Option<Score> {
        let open = lock(&self.field.open);
        let (model, statistics) = (open.model.to_vec(), open.statistics.to_vec());
        drop(open);
        let here = worker == self.field.worker;
        here.then(|| self.field.shared.score_part(0, part, &model, &statistics))
    }

    fn score_bare(&mut self, worker: usize) -> Option<Score> {
        let model = lock(&self.field.open).model.to_vec();
        let here = worker == self.field.worker;
        here.then(|| {
            let statistics = self.field.shared.estimate_statistics(0, &model);
            self.field
                .shared
                .score_part(0, Part::Test, &model, &statistics)
        })
    }

    /// Nobody knows the others' models.
    fn consensus_distance(&mut self, _: &[usize]) -> f64 {
        f64::NAN
    }

    fn moment(&mut self, progress: &Progress) -> Moment {
        let open = lock(&self.field.open);
        let mut progress = progress.clone();
        progress.numbers[self.field.worker] = open.number;
        let (model, statistics) = (open.model.to_vec(), open.statistics.to_vec());
        drop(open);
        let state = vec![
            ("updates".into(), vec![0.0; model.len()]),
            ("models".into(), model),
            ("velocities".into(), lock(&self.field.velocity).to_vec()),
            ("statistics".into(), statistics),
        ];
        (progress, state)
    }
}
