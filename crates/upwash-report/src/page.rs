//! The page: one file that needs nothing else.

use crate::{Epoch, Graph, Now, Run};
use serde::Serialize;
use upwash::run::Status;

const TEMPLATE: &str = include_str!("../assets/page.html");
const STYLE: &str = include_str!("../assets/page.css");
/// One after the other, in a scope of their own.
const SCRIPTS: [&str; 5] = [
    include_str!("../assets/page/charts.js"),
    include_str!("../assets/page/figures.js"),
    include_str!("../assets/page/sections.js"),
    include_str!("../assets/page/live.js"),
    include_str!("../assets/page/start.js"),
];
/// Apache ECharts, as it was published.
const CHARTS: &str = include_str!("../assets/echarts.min.js");

/// Points of a line: more would not be seen.
pub(crate) const POINTS: usize = 400;
/// So many workers have a line each; of more, so few are drawn: the band and the mean tell the rest.
const LINES: usize = 32;
const FEW_LINES: usize = 16;

/// A page with these runs side by side.
pub fn page(runs: &[Run]) -> String {
    let views: Vec<View<'_>> = runs.iter().map(View::new).collect();
    let data = serde_json::to_string(&views).unwrap_or_else(|_| "[]".into());
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    put_together(&names.join(", "), &data, "")
}

/// The same page for a run that goes on: it asks the server that it came from for [messages](crate::Viewer) at
/// `events`, and sends it control requests at `control/...`.
pub fn live_page(name: &str) -> String {
    put_together(name, "null", "connect-src 'self'; ")
}

fn put_together(title: &str, data: &str, policy: &str) -> String {
    // Within a script nothing may look like a tag, whatever a run is called.
    let data = data.replace('<', "\\u003c");
    let script = format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPTS.concat());
    let mut page = String::with_capacity(CHARTS.len() + data.len() + 64 * 1024);
    let mut rest = TEMPLATE;
    // What is put in is not looked at again: it may hold anything.
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let Some((name, after)) = after.split_once("}}") else {
            break;
        };
        page.push_str(match name {
            "style" => STYLE,
            "script" => &script,
            "charts" => CHARTS,
            "data" => &data,
            "policy" => policy,
            _ => "",
        });
        if name == "title" {
            page.push_str(&escaped(title));
        }
        rest = after;
    }
    page.push_str(rest);
    page
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// A run as the page needs it: no more lines and points than can be seen.
#[derive(Serialize)]
pub(crate) struct View<'a> {
    name: &'a str,
    algorithm: &'a str,
    graph_name: &'a str,
    graph: &'a Option<Graph>,
    workers: usize,
    server: Option<usize>,
    processes: usize,
    rounds: u64,
    rounds_per_epoch: u64,
    /// Whose lines are drawn.
    drawn: Vec<usize>,
    config: &'a str,
    #[serde(flatten)]
    more: More<'a>,
}

/// What changes while a run goes on.
#[derive(Serialize)]
pub(crate) struct More<'a> {
    rounds_run: u64,
    epochs: Vec<Row>,
    /// Losses of some rounds.
    batches: Vec<Batch>,
    /// Everyone's accuracy in the end, or the last time it was tested.
    ends: Vec<Option<f64>>,
    averaged_accuracy: Option<f64>,
    notices: &'a [String],
    now: &'a Now,
    ending: &'a Option<Status>,
}

#[derive(Serialize)]
struct Batch {
    round: u64,
    /// Of those who are drawn.
    losses: Vec<Option<f64>>,
    /// Of all.
    loss: Option<Spread>,
}

#[derive(Serialize)]
struct Row {
    epoch: u64,
    /// Of those who are drawn.
    losses: Vec<Option<f64>>,
    accuracies: Option<Vec<Option<f64>>>,
    /// Of all.
    loss: Option<Spread>,
    accuracy: Option<Spread>,
    consensus: Option<f64>,
    bytes: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct Spread {
    low: f64,
    mean: f64,
    high: f64,
}

impl<'a> View<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        Self {
            name: &run.name,
            algorithm: &run.algorithm,
            graph_name: &run.graph_name,
            graph: &run.graph,
            workers: run.workers,
            server: run.server,
            processes: run.processes,
            rounds: run.rounds,
            rounds_per_epoch: run.rounds_per_epoch,
            drawn: drawn(run),
            config: &run.config,
            more: More::new(run, thinned(&run.epochs), 0),
        }
    }
}

impl<'a> More<'a> {
    /// With these epochs, and rounds from this one on.
    pub(crate) fn new(run: &'a Run, epochs: Vec<&Epoch>, first: u64) -> Self {
        let (trains, drawn) = (trains(run), drawn(run));
        let mut ends = vec![None; run.workers];
        run.last_accuracies().into_iter().for_each(|(worker, accuracy)| ends[worker] = Some(accuracy)); // only workers that there are
        let of = |workers: &[usize], values: &[Option<f64>]| -> Vec<Option<f64>> {
            workers.iter().map(|&worker| values.get(worker).copied().flatten()).collect()
        };
        let row = |epoch: &Epoch| Row {
            epoch: epoch.epoch,
            losses: of(&drawn, &epoch.losses),
            accuracies: epoch.accuracies.as_ref().map(|all| of(&drawn, all)),
            loss: Spread::of(&of(&trains, &epoch.losses)),
            accuracy: epoch.accuracies.as_ref().and_then(|all| Spread::of(&of(&trains, all))),
            consensus: epoch.consensus,
            bytes: epoch.bytes,
            seconds: epoch.seconds,
        };
        let rows = &run.batches.rows;
        let batches = rows[rows.partition_point(|row| row.0 < first)..].iter();
        let batch = |(round, losses): &(u64, Vec<Option<f64>>)| Batch {
            round: *round,
            losses: of(&drawn, losses),
            loss: Spread::of(&of(&trains, losses)),
        };
        Self {
            rounds_run: run.rounds_run,
            epochs: epochs.into_iter().map(row).collect(),
            batches: batches.map(batch).collect(),
            ends,
            averaged_accuracy: run.averaged_accuracy,
            notices: &run.notices,
            now: &run.now,
            ending: &run.ending,
        }
    }
}

/// All but a server.
fn trains(run: &Run) -> Vec<usize> {
    (0..run.workers).filter(|worker| Some(*worker) != run.server).collect()
}

/// Whose lines are drawn.
fn drawn(run: &Run) -> Vec<usize> {
    let trains = trains(run);
    let step = match trains.len() {
        ..=LINES => 1,
        many => many.div_ceil(FEW_LINES),
    };
    trains.into_iter().step_by(step).collect()
}

impl Spread {
    fn of(values: &[Option<f64>]) -> Option<Self> {
        let known: Vec<f64> = values.iter().flatten().copied().collect();
        Some(Self {
            low: known.iter().copied().reduce(f64::min)?,
            mean: known.iter().sum::<f64>() / known.len() as f64,
            high: known.iter().copied().reduce(f64::max)?,
        })
    }
}

/// Some of the epochs: the first, the last, and at most so many between; and of those in which models were tested as many.
pub(crate) fn thinned(epochs: &[Epoch]) -> Vec<&Epoch> {
    let step = |count: usize| count.div_ceil(POINTS).max(1);
    let tested = epochs.iter().filter(|epoch| epoch.accuracies.is_some());
    let (every, every_test) = (step(epochs.len()), step(tested.count()));
    let (last, mut tests) = (epochs.len().saturating_sub(1), 0);
    let keep = |(place, epoch): &(usize, &Epoch)| {
        tests += usize::from(epoch.accuracies.is_some());
        let test = epoch.accuracies.is_some() && tests % every_test == 0;
        test || (place + 1) % every == 0 || *place == 0 || *place == last
    };
    let kept = epochs.iter().enumerate().filter(keep);
    kept.map(|(_, epoch)| epoch).collect()
}
