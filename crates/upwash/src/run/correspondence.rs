//! Exchanges whose workers are in several processes: what is sent where, and what is heard.

use crate::algorithm::{Algorithm, Exchange, Message, Part, Report, Setting, View};
use crate::engine::Engine;
use crate::experiment::Experiment;
use crate::mix::{Guest, Terms};
use crate::transport::{Coding, Letter, LetterError, Placement, Transport, TransportError};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// One exchange of one round, as all processes know it.
#[derive(Clone, Copy)]
pub(super) struct Occasion<'a> {
    pub(super) algorithm: &'a dyn Algorithm,
    pub(super) exchange: Exchange,
    pub(super) setting: Setting<'a>,
    pub(super) terms: Terms,
    /// Whether running statistics go along.
    pub(super) statistics: bool,
}

/// What was heard in an exchange.
#[derive(Default)]
pub(super) struct Heard {
    /// Whom from: row by row behind those of this process.
    pub(super) senders: Vec<usize>,
    pub(super) guests: Vec<Guest>,
    /// Their statistics, if they came along.
    pub(super) statistics: Vec<Vec<f32>>,
    /// What each said of itself.
    pub(super) reports: BTreeMap<usize, Report>,
    /// The mean of all is the last guest.
    pub(super) has_mean: bool,
}

/// What is kept from exchange to exchange.
pub(super) struct Correspondence<'a> {
    experiment: &'a Experiment,
    placement: Placement,
    /// How vectors travel that are not compressed by the algorithm.
    coding: Coding,
    /// Others' public copies, by sender and message.
    copies: HashMap<(usize, usize), Vec<f32>>,
    /// Who (of here) has sent its public copy whole to which process.
    introduced: HashSet<(usize, usize)>,
}

impl<'a> Correspondence<'a> {
    pub(super) fn new(experiment: &'a Experiment, placement: Placement) -> Self {
        Self {
            experiment,
            placement,
            coding: Coding::Exact,
            copies: HashMap::new(),
            introduced: HashSet::new(),
        }
    }

    /// Whom a worker hears, wherever they are.
    fn senders(&self, worker: usize, occasion: &Occasion<'_>) -> Vec<usize> {
        match (occasion.exchange, &self.experiment.audience) {
            // Public copies are kept up to date wherever they will be needed.
            (Exchange::Neighbours | Exchange::Early, Some(senders)) => senders[worker].clone(),
            _ => occasion
                .exchange
                .senders(worker, &occasion.setting)
                .collect(),
        }
    }

    /// The processes in which someone hears a worker of this one.
    fn places(&self, worker: usize, hears: &dyn Fn(usize) -> Vec<usize>) -> Vec<usize> {
        let others = (0..self.placement.processes()).filter(|&p| p != self.placement.this());
        let hears = |process: &usize| {
            self.placement
                .of(*process)
                .any(|w| hears(w).contains(&worker))
        };
        others.filter(hears).collect()
    }

    fn is_here(&self, worker: usize) -> bool {
        self.placement.row_of(worker).is_some()
    }

    fn messages(&self, worker: usize, report: Report, occasion: &Occasion<'_>) -> Vec<Message> {
        occasion.algorithm.messages(&View {
            worker,
            setting: occasion.setting,
            own: report,
            received: &[],
        })
    }

    /// Posts what the workers here send to their neighbours elsewhere, and what these are to send.
    pub(super) fn send(
        &mut self,
        occasion: &Occasion<'_>,
        reports: &[Report],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), TransportError> {
        let hears = |worker| self.senders(worker, occasion);
        let mut outgoing = Vec::new();
        for worker in self.placement.own() {
            let places = self.places(worker, &hears);
            if !places.is_empty() {
                let letters = self.letters(worker, reports[worker], places, occasion, engine);
                outgoing.extend(letters);
            }
        }
        for (letter, places) in &outgoing {
            let here = places.iter().map(|&place| (letter.from, place));
            self.introduced.extend(here);
        }
        let expected: BTreeSet<usize> = self
            .placement
            .own()
            .flat_map(|worker| self.senders(worker, occasion))
            .filter(|&sender| !self.is_here(sender))
            .collect();
        let expected: Vec<usize> = expected.into_iter().collect();
        transport.begin(outgoing, &expected)
    }

    /// A worker's letters: a public copy goes whole to those who have not had it yet.
    fn letters(
        &self,
        worker: usize,
        report: Report,
        places: Vec<usize>,
        occasion: &Occasion<'_>,
        engine: &mut dyn Engine,
    ) -> Vec<(Letter, Vec<usize>)> {
        let Some(row) = self.placement.row_of(worker) else {
            return vec![];
        };
        let messages = self.messages(worker, report, occasion);
        let is_public = messages.iter().any(|message| message.public_copy.is_some());
        let knows = |place: &usize| !is_public || self.introduced.contains(&(worker, *place));
        let (known, new): (Vec<usize>, Vec<usize>) = places.into_iter().partition(knows);
        let mut letters = Vec::new();
        for (fresh, places) in [(false, known), (true, new)] {
            if places.is_empty() {
                continue;
            }
            let mut numbers = Vec::new();
            for message in &messages {
                let coding = self.coding_of(message, fresh);
                let mut vector = engine.outgoing(row, message, occasion.terms);
                if let (Some((copy, _)), true) = (message.public_copy, fresh) {
                    let copy = Message::of([(crate::algorithm::Vector::Extra(copy), 1.0)]);
                    let copy = engine.outgoing(row, &copy, occasion.terms);
                    vector.iter_mut().zip(copy).for_each(|(d, c)| *d += c);
                }
                let units = coding.encode(vector, &occasion.terms.draw(row));
                if numbers.is_empty() {
                    numbers = units;
                } else {
                    numbers.extend(units);
                }
            }
            if occasion.statistics {
                numbers.extend(engine.statistics(row));
            }
            let letter = Letter {
                from: worker,
                round: occasion.terms.round,
                exchange: occasion.setting.exchange as u32,
                report,
                whole: true,
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
    pub(super) fn hear(
        &mut self,
        occasion: &Occasion<'_>,
        engine: &dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Heard, TransportError> {
        let mut heard = Heard::default();
        for letter in transport.finish()? {
            let (from, report) = (letter.from, letter.report);
            let (messages, statistics) = self
                .open(letter, occasion, engine)
                .map_err(|what| TransportError::Letter { from, what })?;
            heard.senders.push(from);
            heard.guests.push(Guest { messages });
            heard.statistics.push(statistics);
            heard.reports.insert(from, report);
        }
        Ok(heard)
    }

    /// The vectors of a letter.
    fn open(
        &mut self,
        letter: Letter,
        occasion: &Occasion<'_>,
        engine: &dyn Engine,
    ) -> Result<(Vec<Vec<f32>>, Vec<f32>), LetterError> {
        let width = engine.layout().parameter_count();
        let statistics = match occasion.statistics {
            true => engine.layout().statistic_count(),
            false => 0,
        };
        let sent = self.messages(letter.from, letter.report, occasion);
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
            return Ok((vec![letter.numbers], vec![]));
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
                messages.push(vector);
                continue;
            }
            let key = (letter.from, number);
            if letter.fresh {
                self.copies.insert(key, vector.clone());
                messages.push(vector);
            } else {
                let (round, exchange) = (letter.round, letter.exchange);
                let copy = self.copies.get_mut(&key);
                let copy = copy.ok_or(LetterError::Turn { round, exchange })?;
                copy.iter_mut().zip(vector).for_each(|(c, d)| *c += d);
                messages.push(copy.clone());
            }
        }
        Ok((messages, rest.to_vec()))
    }

    /// Everyone tells everyone how it did; then the models that are used by someone travel.
    pub(super) fn choose(
        &mut self,
        occasion: &Occasion<'_>,
        reports: &mut [Report],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Heard, TransportError> {
        let everywhere: Vec<usize> = (0..self.placement.processes())
            .filter(|&process| process != self.placement.this())
            .collect();
        let card = |worker: usize| Letter {
            from: worker,
            round: occasion.terms.round,
            exchange: occasion.setting.exchange as u32,
            report: reports[worker],
            whole: true,
            fresh: false,
            numbers: vec![],
        };
        let cards = self.placement.own().map(|w| (card(w), everywhere.clone()));
        let others: Vec<usize> = (0..reports.len()).filter(|&w| !self.is_here(w)).collect();
        transport.begin(cards.collect(), &others)?;
        for letter in transport.finish()? {
            reports[letter.from] = letter.report;
        }
        let Occasion {
            algorithm,
            exchange,
            setting,
            ..
        } = occasion;
        let parts = exchange.parts(*algorithm, setting, reports);
        let used = |worker: usize| -> Vec<usize> {
            let used = parts[worker]
                .plan
                .assignments
                .iter()
                .flat_map(|a| &a.messages);
            used.map(|entry| entry.0)
                .filter(|&from| from != worker)
                .collect()
        };
        let mut outgoing = Vec::new();
        for worker in self.placement.own() {
            let places = self.places(worker, &used);
            if !places.is_empty() {
                let letters = self.letters(worker, reports[worker], places, occasion, engine);
                outgoing.extend(letters);
            }
        }
        let chosen: BTreeSet<usize> = self
            .placement
            .own()
            .flat_map(used)
            .filter(|&sender| !self.is_here(sender))
            .collect();
        let chosen: Vec<usize> = chosen.into_iter().collect();
        transport.begin(outgoing, &chosen)?;
        self.hear(occasion, engine, transport)
    }

    /// The mean of everyone's messages, as one more guest.
    pub(super) fn average(
        &mut self,
        occasion: &Occasion<'_>,
        reports: &[Report],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Heard, TransportError> {
        let width = engine.layout().parameter_count();
        let mut sum: Vec<f32> = Vec::new();
        let mut count = 0.0;
        let mut numbers = 0;
        for worker in self.placement.own() {
            let messages = self.messages(worker, reports[worker], occasion);
            numbers = messages.len();
            let row = self.placement.row_of(worker).unwrap_or(0);
            if Some(worker) == self.experiment.centre {
                continue;
            }
            let mut all = Vec::new();
            for message in &messages {
                all.extend(engine.outgoing(row, message, occasion.terms));
            }
            if occasion.statistics {
                all.extend(engine.statistics(row));
            }
            if sum.is_empty() {
                sum = all;
            } else {
                sum.iter_mut().zip(all).for_each(|(sum, x)| *sum += x);
            }
            count += 1.0;
        }
        let statistics = match occasion.statistics {
            true => engine.layout().statistic_count(),
            false => 0,
        };
        sum.resize(numbers * width + statistics, 0.0);
        sum.push(count);
        transport.all_reduce(&mut sum)?;
        let part = 1.0 / sum.pop().unwrap_or(1.0);
        sum.iter_mut().for_each(|x| *x *= part);
        let statistics = sum.split_off(numbers * width);
        let messages = match numbers {
            1 => vec![sum],
            _ => sum
                .chunks_exact(width.max(1))
                .map(<[f32]>::to_vec)
                .collect(),
        };
        Ok(Heard {
            senders: vec![],
            guests: vec![Guest { messages }],
            statistics: vec![statistics],
            reports: BTreeMap::new(),
            has_mean: true,
        })
    }
}

impl Heard {
    /// The row of a worker in an engine with these guests.
    fn row(&self, worker: usize, placement: &Placement) -> usize {
        placement.row_of(worker).unwrap_or_else(|| {
            let found = self.senders.binary_search(&worker);
            let guest = found.unwrap_or_else(|_| panic!("worker {worker} was not heard"));
            placement.own().len() + guest
        })
    }

    /// Parts and weights by the rows of an engine instead of the workers' numbers.
    pub(super) fn localise(&self, parts: &mut [Part], placement: &Placement) {
        let mean = placement.own().len() + self.guests.len().saturating_sub(1);
        for part in parts {
            part.worker = self.row(part.worker, placement);
            for assignment in &mut part.plan.assignments {
                // What has no weight was perhaps not even sent.
                assignment.messages.retain(|entry| entry.1 != 0.0);
                for entry in &mut assignment.messages {
                    entry.0 = self.row(entry.0, placement);
                }
                if self.has_mean && assignment.mean != 0.0 {
                    assignment.messages.push((mean, assignment.mean));
                    assignment.mean = 0.0;
                }
            }
        }
    }

    /// The rows of this process out of weights for all workers.
    pub(super) fn weights(
        &self,
        all: Vec<Vec<(usize, f64)>>,
        placement: &Placement,
    ) -> Vec<Vec<(usize, f64)>> {
        let own = placement.own();
        if self.has_mean {
            return vec![vec![(own.len(), 1.0)]; own.len()];
        }
        let rows = all.into_iter().skip(own.start).take(own.len());
        let localise = |row: Vec<(usize, f64)>| {
            let row = row.into_iter();
            row.map(|(sender, weight)| (self.row(sender, placement), weight))
                .collect()
        };
        rows.map(localise).collect()
    }
}
