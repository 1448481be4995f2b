//! Exchanges whose workers are in several processes: what is sent where, and what is received.

use super::GossipError;
use super::inbox::Inbox;
use crate::algorithm::{
    Algorithm, Exchange, ExchangeContext, LocalView, Outgoing, WorkerPlan, WorkerStats,
};
use crate::config::WirePrecision;
use crate::engine::Engine;
use crate::engine::{MixOptions, RemoteRow};
use crate::experiment::Experiment;
use crate::transport::{
    Buffer, Encoding, Message, Placement, Transport, TransportError, WireError,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// One exchange of one round, as all processes know it.
#[derive(Clone, Copy)]
pub(crate) struct ExchangeJob<'a> {
    pub(crate) algorithm: &'a dyn Algorithm,
    pub(crate) exchange: Exchange,
    pub(crate) context: ExchangeContext<'a>,
    pub(crate) options: MixOptions,
    /// Whether running statistics go along.
    pub(crate) statistics: bool,
}

impl ExchangeJob<'_> {
    /// The number of its letters; those that only say how their sender did go before.
    fn number(&self) -> u32 {
        2 * self.context.exchange as u32 + 1
    }

    /// The context with the links that are in force.
    pub(crate) fn setting_in<'b>(&'b self, inbox: &'b Inbox) -> ExchangeContext<'b> {
        ExchangeContext {
            round: inbox.links.as_ref().unwrap_or(self.context.round),
            ..self.context
        }
    }

    /// Whether its messages leave before the gradients are known.
    pub(crate) fn leaves_early(&self) -> bool {
        self.exchange == Exchange::Early && self.context.exchange == 0
    }

    /// How many statistics go along.
    fn statistic_count(&self, engine: &dyn Engine) -> usize {
        match self.statistics {
            true => engine.layout().statistic_count(),
            false => 0,
        }
    }
}

/// What is kept from exchange to exchange.
pub(crate) struct Gossip<'a> {
    experiment: &'a Experiment,
    pub(crate) placement: Placement,
    /// How vectors travel that are not compressed by the algorithm.
    encoding: Encoding,
    /// Others' public copies, by sender and message.
    copies: HashMap<(usize, usize), Vec<f32>>,
    /// Who (of here) has sent its public copy whole to which process.
    introduced: HashSet<(usize, usize)>,
    /// Who (of here) does not hold all links that it should have in this round.
    pub(crate) broken: HashSet<usize>,
}

impl<'a> Gossip<'a> {
    pub(crate) fn new(experiment: &'a Experiment, placement: Placement) -> Self {
        Self {
            experiment,
            placement,
            encoding: match experiment.config.network.precision {
                WirePrecision::F32 => Encoding::F32,
                WirePrecision::Bf16 => Encoding::Bf16,
            },
            copies: HashMap::new(),
            introduced: HashSet::new(),
            broken: HashSet::new(),
        }
    }

    /// Someone was lost, or has come back: what was told it before does not count any more.
    pub(crate) fn forget(&mut self, worker: usize) {
        let process = self.placement.process_of(worker);
        self.introduced.retain(|(_, place)| *place != process);
        self.copies.retain(|(sender, _), _| *sender != worker);
    }

    /// Whom a worker hears, wherever they are.
    pub(crate) fn senders(&self, worker: usize, job: &ExchangeJob<'_>) -> Vec<usize> {
        match (job.exchange, &self.experiment.audience) {
            // Public copies are kept up to date wherever they will be needed.
            (Exchange::Neighbors | Exchange::Early, Some(senders)) => senders[worker].clone(),
            _ => job.exchange.senders(worker, &job.context).collect(),
        }
    }

    /// The processes in which someone hears a worker of this one.
    fn places(&self, worker: usize, hears: &[Vec<usize>]) -> Vec<usize> {
        let hears = |process: &usize| {
            let mut there = hears[self.placement.of(*process)].iter();
            there.any(|senders| senders.contains(&worker))
        };
        self.other_processes().filter(hears).collect()
    }

    fn other_processes(&self) -> impl Iterator<Item = usize> + use<> {
        let this = self.placement.this();
        (0..self.placement.processes()).filter(move |&process| process != this)
    }

    /// Whether all workers are in this process: nothing travels.
    pub(crate) fn is_local(&self) -> bool {
        self.placement.is_whole()
    }

    pub(crate) fn is_here(&self, worker: usize) -> bool {
        self.placement.row_of(worker).is_some()
    }

    fn messages(&self, worker: usize, report: WorkerStats, job: &ExchangeJob<'_>) -> Vec<Outgoing> {
        job.algorithm.messages(&LocalView {
            worker,
            context: job.context,
            own: report,
            received: &[],
        })
    }

    /// Posts what the workers here send to their neighbors elsewhere, and what these are to send.
    pub(crate) fn send(
        &mut self,
        job: &ExchangeJob<'_>,
        reports: &[WorkerStats],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), GossipError> {
        let hears: Vec<Vec<usize>> = (0..reports.len())
            .map(|worker| match transport.is_link_up(worker) {
                true => self.senders(worker, job),
                false => vec![],
            })
            .collect();
        self.post(job, reports, &hears, engine, transport)
    }

    /// Posts letters to those who hear the workers here, and says from whom those here hear.
    fn post(
        &mut self,
        job: &ExchangeJob<'_>,
        reports: &[WorkerStats],
        hears: &[Vec<usize>],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), GossipError> {
        let mut outgoing = Vec::new();
        for worker in self.placement.own() {
            let places = self.places(worker, hears);
            if !places.is_empty() {
                let report = reports[worker];
                let letters = self.letters(worker, report, places, job, engine, transport)?;
                outgoing.extend(letters);
            }
        }
        for (letter, places) in &outgoing {
            let here = places.iter().map(|&place| (letter.from, place));
            self.introduced.extend(here);
        }
        let senders = hears[self.placement.own()].iter().flatten().copied();
        let expected =
            senders.filter(|&sender| !self.is_here(sender) && transport.is_link_up(sender));
        let expected: BTreeSet<usize> = expected.collect();
        let expected: Vec<usize> = expected.into_iter().collect();
        Ok(transport.begin_exchange(outgoing, &expected)?)
    }

    /// A worker's letters: a public copy goes whole to those who have not had it yet.
    fn letters(
        &self,
        worker: usize,
        report: WorkerStats,
        places: Vec<usize>,
        job: &ExchangeJob<'_>,
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Vec<(Message, Vec<usize>)>, GossipError> {
        let Some(row) = self.placement.row_of(worker) else {
            return Ok(vec![]);
        };
        let messages = self.messages(worker, report, job);
        let is_public = messages.iter().any(|message| message.public_copy.is_some());
        let knows = |place: &usize| !is_public || self.introduced.contains(&(worker, *place));
        let (known, new): (Vec<usize>, Vec<usize>) = places.into_iter().partition(knows);
        let mut sent = Vec::new();
        for (fresh, places) in [(false, known), (true, new)] {
            if places.is_empty() {
                continue;
            }
            let width = engine.layout().parameter_count();
            let encodings: Vec<Encoding> = messages
                .iter()
                .map(|m| self.encoding_of(m, fresh))
                .collect();
            let units = encodings.iter().map(|encoding| encoding.units(width));
            let length = units.sum::<usize>() + job.statistic_count(engine);
            let mut numbers = transport.allocate(length);
            let mut rest = &mut numbers[..];
            for (message, encoding) in messages.iter().zip(encodings) {
                let (into, after) = rest.split_at_mut(encoding.units(width));
                rest = after;
                if message.public_copy.is_none() && encoding == Encoding::F32 {
                    engine.write_outgoing(row, message, job.options, into)?;
                    continue;
                }
                let mut vector = engine.outgoing(row, message, job.options)?;
                if let (Some((copy, _)), true) = (message.public_copy, fresh) {
                    let copy = Outgoing::of([(crate::algorithm::Vector::State(copy), 1.0)]);
                    let copy = engine.outgoing(row, &copy, job.options)?;
                    vector.iter_mut().zip(copy).for_each(|(d, c)| *d += c);
                }
                let units = encoding.encode(vector, &job.options.draw(row));
                into.copy_from_slice(&units);
            }
            if job.statistics {
                rest.copy_from_slice(&engine.statistics(row)?);
            }
            let message = Message {
                from: worker,
                round: job.options.round,
                exchange: job.number(),
                report,
                whole: !self.broken.contains(&worker),
                fresh,
                numbers,
            };
            sent.push((message, places));
        }
        Ok(sent)
    }

    fn encoding_of(&self, message: &Outgoing, fresh: bool) -> Encoding {
        match message.public_copy {
            Some((_, compression)) if !fresh => Encoding::Compressed(compression),
            Some(_) => Encoding::F32,
            None => self.encoding,
        }
    }

    /// Waits for what the workers here hear from elsewhere.
    pub(crate) fn receive(
        &mut self,
        job: &ExchangeJob<'_>,
        engine: &dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, GossipError> {
        let mut inbox = Inbox::default();
        let survives = transport.capabilities().survives_loss;
        for letter in transport.finish_exchange(job.number())? {
            let (from, report, whole) = (letter.from, letter.report, letter.whole);
            let opened = self.open(letter, job, engine).and_then(|opened| {
                let is_finite = |vector: &Buffer| vector.iter().all(|x| x.is_finite());
                let finite = || opened.0.iter().chain([&opened.1]).all(is_finite);
                let usable = || report.number.is_finite() && report.number > 0.0 && finite();
                match !survives || usable() {
                    true => Ok(opened),
                    false => Err(WireError::NotFinite),
                }
            });
            let (messages, statistics) = match opened {
                Ok(opened) => opened,
                Err(what) if survives => {
                    transport.refuse(from, what.to_string());
                    continue;
                }
                Err(what) => return Err(TransportError::Message { from, what }.into()),
            };
            if whole {
                inbox.whole.insert(from);
            }
            inbox.senders.push(from);
            inbox.remote_rows.push(RemoteRow { messages });
            inbox.statistics.push(statistics.into_vec());
            inbox.reports.insert(from, report);
        }
        Ok(inbox)
    }

    /// The vectors of a letter.
    fn open(
        &mut self,
        letter: Message,
        job: &ExchangeJob<'_>,
        engine: &dyn Engine,
    ) -> Result<(Vec<Buffer>, Buffer), WireError> {
        let width = engine.layout().parameter_count();
        let statistics = job.statistic_count(engine);
        let sent = self.messages(letter.from, letter.report, job);
        let encodings = sent.iter().map(|m| self.encoding_of(m, letter.fresh));
        let encodings: Vec<Encoding> = encodings.collect();
        let units = encodings.iter().map(|encoding| encoding.units(width));
        let expected = units.sum::<usize>() + statistics;
        let found = letter.numbers.len();
        if found != expected {
            return Err(WireError::Length { expected, found });
        }
        // The usual case: one vector as it is, which need not be copied.
        if sent.len() == 1 && statistics == 0 && encodings[0] == Encoding::F32 && !letter.fresh {
            return Ok((vec![letter.numbers], Buffer::default()));
        }
        let draw = [letter.from as u64, letter.round];
        let (mut rest, mut messages) = (&letter.numbers[..], Vec::new());
        for (number, (message, encoding)) in sent.iter().zip(encodings).enumerate() {
            let (units, after) = rest.split_at(encoding.units(width));
            rest = after;
            let vector = encoding
                .decode(units, width, &draw)
                .ok_or(WireError::Header)?;
            if message.public_copy.is_none() {
                messages.push(vector.into());
                continue;
            }
            let key = (letter.from, number);
            if letter.fresh {
                self.copies.insert(key, vector.clone());
                messages.push(vector.into());
            } else {
                let (round, exchange) = (letter.round, letter.exchange);
                let copy = self.copies.get_mut(&key);
                let copy = copy.ok_or(WireError::OutOfTurn { round, exchange })?;
                copy.iter_mut().zip(vector).for_each(|(c, d)| *c += d);
                messages.push(copy.clone().into());
            }
        }
        Ok((messages, rest.to_vec().into()))
    }

    /// Everyone tells everyone how it did; then the models that are used by someone travel.
    pub(crate) fn choose(
        &mut self,
        job: &ExchangeJob<'_>,
        reports: &mut [WorkerStats],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, GossipError> {
        let everywhere: Vec<usize> = self.other_processes().collect();
        let card = |worker: usize| Message {
            from: worker,
            round: job.options.round,
            exchange: job.number() - 1,
            report: reports[worker],
            whole: true,
            fresh: false,
            numbers: Buffer::default(),
        };
        let cards = self.placement.own().map(|w| (card(w), everywhere.clone()));
        let others: Vec<usize> = (0..reports.len()).filter(|&w| !self.is_here(w)).collect();
        transport.begin_exchange(cards.collect(), &others)?;
        let cards = transport.finish_exchange(job.number() - 1)?;
        // Everyone must choose from the same.
        let came: Vec<usize> = cards.iter().map(|letter| letter.from).collect();
        if let Some(&from) = others.iter().find(|other| !came.contains(other)) {
            let round = job.options.round;
            return Err(TransportError::Missing { from, round }.into());
        }
        for letter in cards {
            reports[letter.from] = letter.report;
        }
        let ExchangeJob {
            algorithm,
            exchange,
            context,
            ..
        } = job;
        let parts = exchange.parts(*algorithm, context, reports);
        let used = |(worker, part): (usize, &WorkerPlan)| -> Vec<usize> {
            let used = part.plan.assignments.iter().flat_map(|sum| &sum.messages);
            let others = used.map(|entry| entry.0).filter(|&from| from != worker);
            others.collect()
        };
        let hears: Vec<Vec<usize>> = parts.iter().enumerate().map(used).collect();
        self.post(job, reports, &hears, engine, transport)?;
        self.receive(job, engine, transport)
    }

    /// The mean of everyone's messages, as one more remote.
    pub(crate) fn average(
        &mut self,
        job: &ExchangeJob<'_>,
        reports: &[WorkerStats],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, GossipError> {
        let width = engine.layout().parameter_count();
        let mut sum: Vec<f32> = Vec::new();
        let mut count = 0.0;
        let mut numbers = 0;
        for worker in self.placement.own() {
            let messages = self.messages(worker, reports[worker], job);
            numbers = messages.len();
            let row = self.placement.row_of(worker).unwrap_or_default();
            if Some(worker) == self.experiment.server {
                continue;
            }
            let mut all = Vec::new();
            for message in &messages {
                all.extend(engine.outgoing(row, message, job.options)?);
            }
            if job.statistics {
                all.extend(engine.statistics(row)?);
            }
            if sum.is_empty() {
                sum = all;
            } else {
                sum.iter_mut().zip(all).for_each(|(sum, x)| *sum += x);
            }
            count += 1.0;
        }
        let statistics = job.statistic_count(engine);
        sum.resize(numbers * width + statistics, 0.0);
        sum.push(count);
        transport.all_reduce(job.number(), &mut sum)?;
        let count = sum.pop().unwrap_or(1.0);
        sum.iter_mut().for_each(|x| *x /= count);
        let statistics = sum.split_off(numbers * width);
        let messages = match numbers {
            1 => vec![sum.into()],
            _ => sum
                .chunks_exact(width.max(1))
                .map(|message| message.to_vec().into())
                .collect(),
        };
        Ok(Inbox {
            remote_rows: vec![RemoteRow { messages }],
            statistics: vec![statistics],
            has_mean: true,
            ..Inbox::default()
        })
    }
}
