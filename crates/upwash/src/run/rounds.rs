//! The round loop.

use super::course::Course;
use super::report::{Next, Status};
use crate::algorithm::{Algorithm, Exchange, Message, Part, Report, Setting, Vector};
use crate::clock::Transfer;
use crate::config::Statistics;
use crate::engine::{Engine, Turn};
use crate::mix::Terms;
use std::collections::BTreeSet;

pub(super) fn run(
    course: &mut Course<'_>,
    algorithm: &dyn Algorithm,
    mut engine: &mut dyn Engine,
) -> Status {
    let (experiment, workers) = (course.experiment, course.experiment.workers());
    while !course.is_over() {
        let round = course.progress.round;
        let rate = course.rate(round as f64);
        let up = experiment.schedule.round(round);
        course.begin_round();

        // Everyone's gradient and step. A run that diverges ends before that spreads.
        let mut turns = vec![None; workers];
        for &worker in &course.training {
            let batch = round;
            turns[worker] = Some(Turn { batch, rate });
        }
        let scores = engine.step(&turns);
        let known: Vec<Option<f64>> = scores.iter().map(|score| Some((*score)?.loss)).collect();
        let losses: Vec<f64> = known.iter().map(|loss| loss.unwrap_or(f64::NAN)).collect();
        let lost = |worker: &usize| !course.is_sane(losses[*worker]);
        if let Some(worker) = course.training.iter().copied().find(lost) {
            return course.diverged(worker, losses, &mut engine);
        }
        let before = std::mem::replace(&mut course.progress.losses, known);
        let started = course.progress.clocks.clone();
        for &worker in &course.training {
            course.progress.clocks[worker] += experiment.clock.gradient(worker, round);
        }

        let degrees = up.receiver_counts();
        let exchanges = algorithm.exchanges(round);
        for (index, &exchange) in exchanges.iter().enumerate() {
            // A message that leaves before the gradient carries the last loss.
            let reported = match exchange {
                Exchange::Early => &before,
                _ => &course.progress.losses,
            };
            let report = |i: usize| Report {
                loss: reported[i],
                degree: degrees[i],
                number: course.progress.numbers[i],
            };
            let reports: Vec<Report> = (0..workers).map(report).collect();
            let setting = Setting {
                round: &up,
                exchange: index,
                rate,
                momentum: experiment.config.training.momentum,
                centre: experiment.centre,
            };
            // Everyone's row, from what it knows; then all rows at once.
            let parts = exchange.parts(algorithm, &setting, &reports);
            let centre = experiment.centre;
            let terms = Terms {
                centre,
                round,
                more: index + 1 < exchanges.len(),
                ..Default::default()
            };
            engine.exchange(&parts, terms);
            for part in &parts {
                if let Some(number) = part.plan.number {
                    course.progress.numbers[part.worker] = number;
                }
            }
            let mut numbers = 0;
            let averages = matches!(
                exchange,
                Exchange::Neighbours | Exchange::Early | Exchange::Mean | Exchange::Centre
            );
            let asked = experiment.config.training.statistics == Statistics::Averaged;
            if index == 0 && averages && asked {
                engine.mix_statistics(&exchange.safe_weights(&setting));
                numbers = engine.layout().statistic_count();
            }
            let width = engine.layout().parameter_count();
            let bytes = |part: &Part| bytes(&part.messages, width) + 4 * numbers as u64;
            count_traffic(course, exchange, &setting, &started, &parts, bytes);
        }
        for (worker, score) in scores.iter().enumerate() {
            if let Some(score) = score {
                course.count(worker, *score);
            }
        }
        let clocks = course.training.iter().map(|&i| course.progress.clocks[i]);
        course.progress.sent.simulated_seconds = clocks.fold(0.0, f64::max);
        if course.end_round(losses, &mut engine) == Next::Stop && !course.is_over() {
            let round = course.progress.round;
            return Status::Interrupted { round };
        }
    }
    Status::Finished
}

/// Bytes of messages as they would travel.
pub(super) fn bytes(messages: &[Message], width: usize) -> u64 {
    let bytes = |message: &Message| {
        let compression = message.public_copy.map(|(_, compression)| compression);
        compression.map_or(4 * width as u64, |compression| compression.bytes(width))
    };
    messages.iter().map(bytes).sum()
}

/// What an exchange sends, and how long that takes.
fn count_traffic(
    course: &mut Course<'_>,
    exchange: Exchange,
    setting: &Setting<'_>,
    started: &[f64],
    parts: &[Part],
    bytes: impl Fn(&Part) -> u64,
) {
    let experiment = course.experiment;
    let (clock, sent) = (&experiment.clock, &mut course.progress.sent);
    let clocks = &mut course.progress.clocks;
    if exchange == Exchange::Mean {
        let ring = &course.training;
        let bytes = parts.first().map_or(0, bytes);
        let hops = 2 * (ring.len() as u64).saturating_sub(1);
        sent.bytes_sent += hops * bytes;
        sent.messages_sent += hops * ring.len() as u64;
        clock.all_reduce(clocks, bytes, ring);
        if let (Some(to), Some(&from)) = (experiment.centre, ring.first()) {
            // The centre is told the result.
            sent.bytes_sent += bytes;
            sent.messages_sent += 1;
            clocks[to] = clocks[from] + clock.message(&Transfer { from, to, bytes });
        }
        return;
    }
    let mut transfers = Vec::new();
    for part in parts {
        let to = part.worker;
        let mut add = |from: usize| {
            let bytes = bytes(&parts[from]);
            transfers.push(Transfer { from, to, bytes });
        };
        match (exchange, &experiment.audience) {
            (Exchange::Chosen, _) => {
                let used = part.plan.assignments.iter().flat_map(|sum| &sum.messages);
                let others = used.map(|entry| entry.0).filter(|&from| from != to);
                let chosen: BTreeSet<usize> = others.collect();
                chosen.into_iter().for_each(add);
            }
            // Public copies are kept up to date wherever they will be needed.
            (Exchange::Neighbours | Exchange::Early, Some(senders)) => {
                senders[to].iter().copied().for_each(&mut add);
            }
            _ => exchange.senders(to, setting).for_each(&mut add),
        }
    }
    let messages = |transfer: &Transfer| parts[transfer.from].messages.len() as u64;
    sent.messages_sent += transfers.iter().map(messages).sum::<u64>();
    sent.bytes_sent += transfers.iter().map(|transfer| transfer.bytes).sum::<u64>();
    // What has nothing of the step in it can leave while the gradients are computed.
    let mut contents = parts.iter().flat_map(|part| &part.messages);
    let has_step = contents.any(|message| message.content.iter().any(|e| e.0 == Vector::Step));
    if exchange == Exchange::Early || exchange == Exchange::Centre && !has_step {
        let mut exchanged = started.to_vec();
        clock.exchange(&mut exchanged, &transfers);
        for (clock, exchanged) in clocks.iter_mut().zip(exchanged) {
            *clock = clock.max(exchanged);
        }
    } else {
        if exchange == Exchange::Chosen {
            clock.barrier(clocks);
        }
        clock.exchange(clocks, &transfers);
    }
}
