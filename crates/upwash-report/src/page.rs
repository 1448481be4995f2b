//! The HTML page: one self-contained file.

use crate::{Epoch, Graph, LiveState, Run};
use serde::Serialize;
use upwash::run::Status;

const TEMPLATE: &str = include_str!("../assets/page.html");
const STYLE: &str = include_str!("../assets/page.css");
/// The scripts, concatenated in this order inside one function scope.
const SCRIPTS: [&str; 5] = [
    include_str!("../assets/page/charts.js"),
    include_str!("../assets/page/figures.js"),
    include_str!("../assets/page/sections.js"),
    include_str!("../assets/page/live.js"),
    include_str!("../assets/page/start.js"),
];
/// Apache ECharts, unmodified.
const CHARTS: &str = include_str!("../assets/echarts.min.js");

/// How many points a line has at most. More could not be told apart in a chart.
pub(crate) const MAX_POINTS: usize = 400;
/// Up to this many workers, each has its own line.
const MAX_LINES: usize = 32;
/// With more workers, about this many have a line. The mean and the band between extremes cover all workers.
const FEW_LINES: usize = 16;

/// A page that shows these runs side by side.
pub fn page(runs: &[Run]) -> String {
    let views: Vec<View<'_>> = runs.iter().map(View::new).collect();
    let data = serde_json::to_string(&views).unwrap_or_else(|_| "[]".into());
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    assemble(&names.join(", "), &data, "")
}

/// The page for a run in progress. It requests [messages](crate::Viewer) from its server at `events` and posts control
/// requests to `control/...`.
pub fn live_page(name: &str) -> String {
    assemble(name, "null", "connect-src 'self'; ")
}

fn assemble(title: &str, data: &str, policy: &str) -> String {
    // A `<` in the name of a run must not end the script element.
    let data = data.replace('<', "\\u003c");
    let script = format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPTS.concat());
    let mut page = String::with_capacity(CHARTS.len() + data.len() + 64 * 1024);
    let mut rest = TEMPLATE;
    // Inserted text is not searched for placeholders, since it may contain anything.
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

/// A run reduced to the lines and points that the page draws.
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
    /// The workers that have a line.
    drawn: Vec<usize>,
    config: &'a str,
    #[serde(flatten)]
    progress: RunProgress<'a>,
}

/// What changes while a run is in progress.
#[derive(Serialize)]
pub(crate) struct RunProgress<'a> {
    rounds_run: u64,
    epochs: Vec<EpochRow>,
    /// Batch losses of a sample of the rounds.
    batches: Vec<BatchRow>,
    /// The last test accuracy of each worker.
    ends: Vec<Option<f64>>,
    averaged_accuracy: Option<f64>,
    notices: &'a [String],
    now: &'a LiveState,
    ending: &'a Option<Status>,
}

#[derive(Serialize)]
struct BatchRow {
    round: u64,
    /// The losses of the drawn workers.
    losses: Vec<Option<f64>>,
    /// The spread over all workers.
    loss: Option<Spread>,
}

#[derive(Serialize)]
struct EpochRow {
    epoch: u64,
    /// The losses of the drawn workers.
    losses: Vec<Option<f64>>,
    /// The test accuracies of the drawn workers.
    accuracies: Option<Vec<Option<f64>>>,
    /// The spread of the losses over all workers.
    loss: Option<Spread>,
    /// The spread of the test accuracies over all workers.
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
            drawn: drawn_workers(run),
            config: &run.config,
            progress: RunProgress::new(run, thinned(&run.epochs), 0),
        }
    }
}

impl<'a> RunProgress<'a> {
    /// These epochs, and the kept rounds from `first_round` on.
    pub(crate) fn new(run: &'a Run, epochs: Vec<&Epoch>, first_round: u64) -> Self {
        let (training, drawn) = (training_workers(run), drawn_workers(run));
        let mut ends = vec![None; run.workers];
        // `last_accuracies` has only workers below `run.workers`.
        run.last_accuracies().into_iter().for_each(|(worker, accuracy)| ends[worker] = Some(accuracy));
        let select = |workers: &[usize], values: &[Option<f64>]| -> Vec<Option<f64>> {
            workers.iter().map(|&worker| values.get(worker).copied().flatten()).collect()
        };
        let row = |epoch: &Epoch| EpochRow {
            epoch: epoch.epoch,
            losses: select(&drawn, &epoch.losses),
            accuracies: epoch.accuracies.as_ref().map(|all| select(&drawn, all)),
            loss: Spread::of(&select(&training, &epoch.losses)),
            accuracy: epoch.accuracies.as_ref().and_then(|all| Spread::of(&select(&training, all))),
            consensus: epoch.consensus,
            bytes: epoch.bytes,
            seconds: epoch.seconds,
        };
        let rows = &run.batches.rows;
        let batches = rows[rows.partition_point(|row| row.0 < first_round)..].iter();
        let batch = |(round, losses): &(u64, Vec<Option<f64>>)| BatchRow {
            round: *round,
            losses: select(&drawn, losses),
            loss: Spread::of(&select(&training, losses)),
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

/// All workers but the server.
fn training_workers(run: &Run) -> Vec<usize> {
    (0..run.workers).filter(|worker| Some(*worker) != run.server).collect()
}

/// The workers that have a line.
fn drawn_workers(run: &Run) -> Vec<usize> {
    let training = training_workers(run);
    let step = match training.len() {
        ..=MAX_LINES => 1,
        many => many.div_ceil(FEW_LINES),
    };
    training.into_iter().step_by(step).collect()
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

/// A sample of the epochs: the first, the last, at most [`MAX_POINTS`] between them, and at most [`MAX_POINTS`] of
/// those with an evaluation.
pub(crate) fn thinned(epochs: &[Epoch]) -> Vec<&Epoch> {
    let step = |count: usize| count.div_ceil(MAX_POINTS).max(1);
    let tested = epochs.iter().filter(|epoch| epoch.accuracies.is_some());
    let (every, every_test) = (step(epochs.len()), step(tested.count()));
    let (last, mut tests) = (epochs.len().saturating_sub(1), 0);
    let keep = |(index, epoch): &(usize, &Epoch)| {
        tests += usize::from(epoch.accuracies.is_some());
        let test = epoch.accuracies.is_some() && tests % every_test == 0;
        test || (index + 1) % every == 0 || *index == 0 || *index == last
    };
    let kept = epochs.iter().enumerate().filter(keep);
    kept.map(|(_, epoch)| epoch).collect()
}
