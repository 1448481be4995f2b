//! The round loop.

use super::RunError;
use super::correspondence::{Correspondence, Occasion};
use super::course::Course;
use super::heard::Heard;
use super::report::{Event, Next, Status};
use super::team::Team;
use crate::algorithm::{Algorithm, Exchange, Message, Part, Report, Setting, Vector};
use crate::clock::Transfer;
use crate::config::Statistics;
use crate::engine::Turn;
use crate::mix::Terms;
use crate::transport::{Begin, News};
use std::collections::BTreeSet;

pub(super) fn run(
    course: &mut Course<'_>,
    algorithm: &dyn Algorithm,
    team: &mut Team<'_>,
) -> Result<Status, RunError> {
    let (experiment, workers) = (course.experiment, course.experiment.workers());
    let (placement, own) = (team.placement.clone(), team.placement.own());
    let mut post = Correspondence::new(experiment, placement.clone());
    let asked = experiment.config.training.statistics == Statistics::Averaged;
    let (before, began) = (course.progress.sent, std::time::Instant::now());
    let mut next = Next::Continue;
    while !course.is_over() {
        let round = course.progress.round;
        if team.transport.is_asked() {
            let state = team.engine.state();
            team.transport.answer(round, state);
        }
        let begin = team.transport.may_begin(round, next == Next::Stop)?;
        for news in team.transport.news() {
            if let News::Joined { worker } | News::Lost { worker, .. } = news {
                post.forget(worker);
            }
            course.tell(&Event::Peer { round, news });
        }
        match begin {
            Begin::Go => {}
            Begin::Wait => {
                next = next.or(course.meanwhile());
                continue;
            }
            Begin::Stop => return Ok(course.stop(team)),
            Begin::Jump { round, adopted } => {
                course.jump(round);
                if let Some(state) = adopted
                    && let Err(what) = team.engine.restore(&state)
                {
                    let what = format!("a neighbour's model does not fit: {what}");
                    course.tell(&Event::Peer {
                        round,
                        news: News::Refused { what },
                    });
                }
                continue;
            }
        }
        let rate = course.rate(round as f64);
        let previous_rate = course.rate(round.saturating_sub(1) as f64);
        let up = experiment.schedule.round(round);
        course.begin_round();
        let degrees = up.receiver_counts();
        let exchanges = algorithm.exchanges(round);
        let occasion = |index: usize| Occasion {
            algorithm,
            exchange: exchanges[index],
            setting: Setting {
                round: &up,
                exchange: index,
                rate,
                previous_rate,
                momentum: experiment.config.training.momentum,
                centre: experiment.centre,
            },
            terms: Terms {
                centre: experiment.centre,
                round,
                offset: own.start as isize,
                more: index + 1 < exchanges.len(),
                ..Default::default()
            },
            statistics: asked && index == 0 && averages(exchanges[index]),
        };
        let reports_of = |losses: &[Option<f64>], numbers: &[f64]| -> Vec<Report> {
            let report = |i: usize| Report {
                loss: losses[i],
                degree: degrees[i],
                number: numbers[i],
            };
            (0..workers).map(report).collect()
        };
        // A message that leaves before the gradient carries the last loss, and travels meanwhile.
        let mut before_step = reports_of(&course.progress.losses, &course.progress.numbers);
        let elsewhere = !placement.is_whole();
        let early = exchanges.first() == Some(&Exchange::Early);
        if elsewhere && early {
            post.take_stock(&occasion(0), &mut before_step, team.transport);
            post.send(&occasion(0), &before_step, team.engine, team.transport)?;
        }

        // Everyone's gradient and step. A run that diverges ends before that spreads.
        let mut turns = vec![None; own.len()];
        for &worker in &course.here {
            let batch = round;
            turns[worker - own.start] = Some(Turn { batch, rate });
        }
        let scores = team.engine.step(&turns);
        let mut known = vec![None; workers];
        for (worker, score) in own.clone().zip(&scores) {
            known[worker] = score.map(|score| score.loss);
        }
        let losses: Vec<f64> = known.iter().map(|loss| loss.unwrap_or(f64::NAN)).collect();
        let lost = |worker: &usize| !course.is_sane(losses[*worker]);
        if let Some(worker) = course.here.iter().copied().find(lost) {
            team.transport.leave(worker, round)?;
            return Ok(course.diverged(worker, losses, team));
        }
        course.progress.losses = known;
        let started = course.progress.clocks.clone();
        for &worker in &course.here {
            course.progress.clocks[worker] += experiment.clock.gradient(worker, round);
        }

        course.leaders.now.fill(None);
        for (index, &exchange) in exchanges.iter().enumerate() {
            let occasion = occasion(index);
            let mut reports = match exchange {
                Exchange::Early => before_step.clone(),
                _ => reports_of(&course.progress.losses, &course.progress.numbers),
            };
            // What those elsewhere send, if anyone is elsewhere.
            let (engine, transport) = (&mut *team.engine, &mut *team.transport);
            let mut heard = match exchange {
                _ if !elsewhere => Heard::default(),
                Exchange::Nothing => Heard::default(),
                Exchange::Mean => post.average(&occasion, &reports, engine, transport)?,
                Exchange::Chosen => post.choose(&occasion, &mut reports, engine, transport)?,
                _ => {
                    if !(early && index == 0) {
                        post.take_stock(&occasion, &mut reports, transport);
                        post.send(&occasion, &reports, engine, transport)?;
                    }
                    post.hear(&occasion, engine, transport)?
                }
            };
            for (&sender, &report) in &heard.reports {
                reports[sender] = report;
            }
            let by_links = matches!(exchange, Exchange::Neighbours | Exchange::Early);
            let mended = match elsewhere && by_links {
                true => post.mended(&up, &reports, &heard, team.transport),
                false => None,
            };
            // Everyone's row, from what it knows; then all rows at once.
            let setting = &Setting {
                round: mended.as_ref().unwrap_or(&up),
                ..occasion.setting
            };
            let mut parts = exchange.parts_of(own.clone(), algorithm, setting, &reports);
            for part in &parts {
                if let Some(number) = part.plan.number {
                    course.progress.numbers[part.worker] = number;
                }
                if part.plan.leaders.is_some() {
                    course.leaders.now[part.worker] = part.plan.leaders;
                }
            }
            note_links(course, exchange, setting, &parts);
            if elsewhere {
                heard.localise(&mut parts, &placement, round)?;
            }
            let guests = std::mem::take(&mut heard.guests);
            team.engine.exchange_with(&parts, guests, occasion.terms);
            let mut numbers = 0;
            if occasion.statistics {
                let mut weights = exchange.safe_weights(setting);
                if elsewhere {
                    weights = heard.weights(weights, &placement, round)?;
                }
                let guests = std::mem::take(&mut heard.statistics);
                team.engine.mix_statistics(&weights, guests);
                numbers = team.engine.layout().statistic_count();
            }
            if !elsewhere {
                let width = team.engine.layout().parameter_count();
                let bytes = |part: &Part| bytes(&part.messages, width) + 4 * numbers as u64;
                count_traffic(course, exchange, setting, &started, &parts, bytes);
            }
        }
        for (worker, score) in own.clone().zip(&scores) {
            if let Some(score) = score {
                course.count(worker, *score);
            }
        }
        if elsewhere {
            // What has really been sent, and how long it really took.
            course.progress.sent = before.after(team.transport.traffic(), began.elapsed());
        } else {
            let clocks = course.training.iter().map(|&i| course.progress.clocks[i]);
            course.progress.sent.simulated_seconds = clocks.fold(0.0, f64::max);
        }
        next = course.end_round(losses, team);
        if let Some(failure) = team.failure.take() {
            return Err(failure.into());
        }
    }
    Ok(Status::Finished)
}

/// Over which links an exchange goes.
fn note_links(course: &mut Course<'_>, exchange: Exchange, setting: &Setting<'_>, parts: &[Part]) {
    match exchange {
        // Of all that could be heard, leaders were.
        Exchange::Chosen => {
            for part in parts {
                let leaders = part.plan.leaders.into_iter().flatten();
                leaders
                    .filter(|leader| *leader != part.worker)
                    .for_each(|leader| course.met(leader, part.worker));
            }
        }
        // An all-reduce goes round in a ring, as it is counted.
        Exchange::Mean => {
            let ring = course.training.clone();
            let pairs = ring.iter().zip(ring.iter().cycle().skip(1));
            pairs
                .filter(|(one, other)| one != other)
                .for_each(|(one, other)| course.met(*one, *other));
        }
        _ => {
            for worker in 0..setting.workers() {
                let senders = exchange.senders(worker, setting);
                senders.for_each(|sender| course.met(sender, worker));
            }
        }
    }
}

/// Whether running statistics are averaged in such an exchange.
fn averages(exchange: Exchange) -> bool {
    matches!(
        exchange,
        Exchange::Neighbours | Exchange::Early | Exchange::Mean | Exchange::Centre
    )
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
