//! Exchanges whose workers are in several processes: what is sent where, and what is received.

use super::inbox::Inbox;
use crate::algorithm::{Algorithm, Exchange, Message, Part, Report, Setting, View};
use crate::config::WirePrecision;
use crate::engine::Engine;
use crate::experiment::Experiment;
use crate::mix::{Guest, Terms};
use crate::transport::{
    Coding, Letter, LetterError, Numbers, Placement, Transport, TransportError,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// One exchange of one round, as all processes know it.
#[derive(Clone, Copy)]
pub(crate) struct ExchangeJob<'a> {
    pub(crate) algorithm: &'a dyn Algorithm,
    pub(crate) exchange: Exchange,
    pub(crate) setting: Setting<'a>,
    pub(crate) terms: Terms,
    /// Whether running statistics go along.
    pub(crate) statistics: bool,
}

impl ExchangeJob<'_> {
    /// The number of its letters; those that only say how their sender did go before.
    fn number(&self) -> u32 {
        2 * self.setting.exchange as u32 + 1
    }

    /// The setting with the links that are in force.
    pub(crate) fn setting_in<'b>(&'b self, inbox: &'b Inbox) -> Setting<'b> {
        Setting {
            round: inbox.links.as_ref().unwrap_or(self.setting.round),
            ..self.setting
        }
    }

    /// Whether its messages leave before the gradients are known.
    pub(crate) fn leaves_early(&self) -> bool {
        self.exchange == Exchange::Early && self.setting.exchange == 0
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
    coding: Coding,
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
            coding: match experiment.config.network.precision {
                WirePrecision::F32 => Coding::Exact,
                WirePrecision::Bf16 => Coding::Half,
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
            (Exchange::Neighbours | Exchange::Early, Some(senders)) => senders[worker].clone(),
            _ => job.exchange.senders(worker, &job.setting).collect(),
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

    fn messages(&self, worker: usize, report: Report, job: &ExchangeJob<'_>) -> Vec<Message> {
        job.algorithm.messages(&View {
            worker,
            setting: job.setting,
            own: report,
            received: &[],
        })
    }

    /// Posts what the workers here send to their neighbours elsewhere, and what these are to send.
    pub(crate) fn send(
        &mut self,
        job: &ExchangeJob<'_>,
        reports: &[Report],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), TransportError> {
        let hears: Vec<Vec<usize>> = (0..reports.len())
            .map(|worker| match transport.holds(worker) {
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
        reports: &[Report],
        hears: &[Vec<usize>],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), TransportError> {
        let mut outgoing = Vec::new();
        for worker in self.placement.own() {
            let places = self.places(worker, hears);
            if !places.is_empty() {
                let report = reports[worker];
                let letters = self.letters(worker, report, places, job, engine, transport);
                outgoing.extend(letters);
            }
        }
        for (letter, places) in &outgoing {
            let here = places.iter().map(|&place| (letter.from, place));
            self.introduced.extend(here);
        }
        let senders = hears[self.placement.own()].iter().flatten().copied();
        let expected = senders.filter(|&sender| !self.is_here(sender) && transport.holds(sender));
        let expected: BTreeSet<usize> = expected.collect();
        let expected: Vec<usize> = expected.into_iter().collect();
        transport.begin(outgoing, &expected)
    }

    /// A worker's letters: a public copy goes whole to those who have not had it yet.
    fn letters(
        &self,
        worker: usize,
        report: Report,
        places: Vec<usize>,
        job: &ExchangeJob<'_>,
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Vec<(Letter, Vec<usize>)> {
        let Some(row) = self.placement.row_of(worker) else {
            return vec![];
        };
        let messages = self.messages(worker, report, job);
        let is_public = messages.iter().any(|message| message.public_copy.is_some());
        let knows = |place: &usize| !is_public || self.introduced.contains(&(worker, *place));
        let (known, new): (Vec<usize>, Vec<usize>) = places.into_iter().partition(knows);
        let mut letters = Vec::new();
        for (fresh, places) in [(false, known), (true, new)] {
            if places.is_empty() {
                continue;
            }
            let width = engine.layout().parameter_count();
            let codings: Vec<Coding> = messages.iter().map(|m| self.coding_of(m, fresh)).collect();
            let units = codings.iter().map(|coding| coding.units(width));
            let length = units.sum::<usize>() + job.statistic_count(engine);
            let mut numbers = transport.page(length);
            let mut rest = &mut numbers[..];
            for (message, coding) in messages.iter().zip(codings) {
                let (into, after) = rest.split_at_mut(coding.units(width));
                rest = after;
                if message.public_copy.is_none() && coding == Coding::Exact {
                    engine.write_outgoing(row, message, job.terms, into);
                    continue;
                }
                let mut vector = engine.outgoing(row, message, job.terms);
                if let (Some((copy, _)), true) = (message.public_copy, fresh) {
                    let copy = Message::of([(crate::algorithm::Vector::Extra(copy), 1.0)]);
                    let copy = engine.outgoing(row, &copy, job.terms);
                    vector.iter_mut().zip(copy).for_each(|(d, c)| *d += c);
                }
                let units = coding.encode(vector, &job.terms.draw(row));
                into.copy_from_slice(&units);
            }
            if job.statistics {
                rest.copy_from_slice(&engine.statistics(row));
            }
            let letter = Letter {
                from: worker,
                round: job.terms.round,
                exchange: job.number(),
                report,
                whole: !self.broken.contains(&worker),
                fresh,
                numbers,
            };
            letters.push((letter, places));
        }
        letters
    }

    fn coding_of(&self, message: &Message, fresh: bool) -> Coding {
        match message.public_copy {
            Some((_, compression)) if !fresh => Coding::Compressed(compression),
            Some(_) => Coding::Exact,
            None => self.coding,
        }
    }

    /// Waits for what the workers here hear from elsewhere.
    pub(crate) fn receive(
        &mut self,
        job: &ExchangeJob<'_>,
        engine: &dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, TransportError> {
        let mut inbox = Inbox::default();
        let survives = transport.promises().survives_loss;
        for letter in transport.finish(job.number())? {
            let (from, report, whole) = (letter.from, letter.report, letter.whole);
            let opened = self.open(letter, job, engine).and_then(|opened| {
                let is_finite = |vector: &Numbers| vector.iter().all(|x| x.is_finite());
                let finite = || opened.0.iter().chain([&opened.1]).all(is_finite);
                let usable = || report.number.is_finite() && report.number > 0.0 && finite();
                match !survives || usable() {
                    true => Ok(opened),
                    false => Err(LetterError::NotFinite),
                }
            });
            let (messages, statistics) = match opened {
                Ok(opened) => opened,
                Err(what) if survives => {
                    transport.refuse(from, what.to_string());
                    continue;
                }
                Err(what) => return Err(TransportError::Letter { from, what }),
            };
            if whole {
                inbox.whole.insert(from);
            }
            inbox.senders.push(from);
            inbox.guests.push(Guest { messages });
            inbox.statistics.push(statistics.into_vec());
            inbox.reports.insert(from, report);
        }
        Ok(inbox)
    }

    /// The vectors of a letter.
    fn open(
        &mut self,
        letter: Letter,
        job: &ExchangeJob<'_>,
        engine: &dyn Engine,
    ) -> Result<(Vec<Numbers>, Numbers), LetterError> {
        let width = engine.layout().parameter_count();
        let statistics = job.statistic_count(engine);
        let sent = self.messages(letter.from, letter.report, job);
        let codings = sent.iter().map(|m| self.coding_of(m, letter.fresh));
        let codings: Vec<Coding> = codings.collect();
        let units = codings.iter().map(|coding| coding.units(width));
        let expected = units.sum::<usize>() + statistics;
        let found = letter.numbers.len();
        if found != expected {
            return Err(LetterError::Length { expected, found });
        }
        // The usual case: one vector as it is, which need not be copied.
        if sent.len() == 1 && statistics == 0 && codings[0] == Coding::Exact && !letter.fresh {
            return Ok((vec![letter.numbers], Numbers::default()));
        }
        let draw = [letter.from as u64, letter.round];
        let (mut rest, mut messages) = (&letter.numbers[..], Vec::new());
        for (number, (message, coding)) in sent.iter().zip(codings).enumerate() {
            let (units, after) = rest.split_at(coding.units(width));
            rest = after;
            let vector = coding
                .decode(units, width, &draw)
                .ok_or(LetterError::Header)?;
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
                let copy = copy.ok_or(LetterError::Turn { round, exchange })?;
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
        reports: &mut [Report],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, TransportError> {
        let everywhere: Vec<usize> = self.other_processes().collect();
        let card = |worker: usize| Letter {
            from: worker,
            round: job.terms.round,
            exchange: job.number() - 1,
            report: reports[worker],
            whole: true,
            fresh: false,
            numbers: Numbers::default(),
        };
        let cards = self.placement.own().map(|w| (card(w), everywhere.clone()));
        let others: Vec<usize> = (0..reports.len()).filter(|&w| !self.is_here(w)).collect();
        transport.begin(cards.collect(), &others)?;
        let cards = transport.finish(job.number() - 1)?;
        // Everyone must choose from the same.
        let came: Vec<usize> = cards.iter().map(|letter| letter.from).collect();
        if let Some(&from) = others.iter().find(|other| !came.contains(other)) {
            let round = job.terms.round;
            return Err(TransportError::Missing { from, round });
        }
        for letter in cards {
            reports[letter.from] = letter.report;
        }
        let ExchangeJob {
            algorithm,
            exchange,
            setting,
            ..
        } = job;
        let parts = exchange.parts(*algorithm, setting, reports);
        let used = |(worker, part): (usize, &Part)| -> Vec<usize> {
            let used = part.plan.assignments.iter().flat_map(|sum| &sum.messages);
            let others = used.map(|entry| entry.0).filter(|&from| from != worker);
            others.collect()
        };
        let hears: Vec<Vec<usize>> = parts.iter().enumerate().map(used).collect();
        self.post(job, reports, &hears, engine, transport)?;
        self.receive(job, engine, transport)
    }

    /// The mean of everyone's messages, as one more guest.
    pub(crate) fn average(
        &mut self,
        job: &ExchangeJob<'_>,
        reports: &[Report],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, TransportError> {
        let width = engine.layout().parameter_count();
        let mut sum: Vec<f32> = Vec::new();
        let mut count = 0.0;
        let mut numbers = 0;
        for worker in self.placement.own() {
            let messages = self.messages(worker, reports[worker], job);
            numbers = messages.len();
            let row = self.placement.row_of(worker).unwrap_or(0);
            if Some(worker) == self.experiment.centre {
                continue;
            }
            let mut all = Vec::new();
            for message in &messages {
                all.extend(engine.outgoing(row, message, job.terms));
            }
            if job.statistics {
                all.extend(engine.statistics(row));
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
            guests: vec![Guest { messages }],
            statistics: vec![statistics],
            has_mean: true,
            ..Inbox::default()
        })
    }
}
