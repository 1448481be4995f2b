//! The HTML page: one self-contained file.

use crate::charts::{CHARTS as CHART_LIST, ChartSpec, Quantity};
use crate::drawing::{self, AccuracyScale};
use crate::{Epoch, Graph, LiveState, OverSeeds, Run};
use serde::Serialize;
use std::collections::BTreeMap;
use upwash::run::Status;

const TEMPLATE: &str = include_str!("../assets/page.html");
const STYLE: &str = include_str!("../assets/page.css");
/// The scripts, concatenated in this order inside one function scope.
const SCRIPTS: [&str; 6] = [
    include_str!("../assets/page/charts.js"),
    include_str!("../assets/page/axes.js"),
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
    let scale = AccuracyScale::of(runs);
    let views: Vec<View<'_>> = runs.iter().map(|run| View::new(run, scale)).collect();
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    assemble(&names.join(", "), Some(views), "")
}

/// The page for a run in progress. It requests [messages](crate::Viewer) from its server at `events` and posts control
/// requests to `control/...`.
pub fn live_page(name: &str) -> String {
    assemble(name, None, "connect-src 'self'; ")
}

/// The data of a page.
#[derive(Serialize)]
struct PageData<'a> {
    charts: &'a [ChartSpec],
    /// `None` on the live page, which receives its run from the server.
    runs: Option<Vec<View<'a>>>,
}

fn assemble(title: &str, runs: Option<Vec<View<'_>>>, policy: &str) -> String {
    let data = serde_json::to_string(&PageData { charts: &CHART_LIST, runs }).unwrap_or_else(|_| "{}".into());
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
    /// The graph and its copies as SVG.
    drawings: Vec<String>,
    workers: usize,
    server: Option<usize>,
    processes: usize,
    rounds: u64,
    rounds_per_epoch: u64,
    /// Whether a process is writing to its folder.
    is_running: bool,
    continuation: &'static str,
    /// Whether its seconds are real ones.
    is_real_time: bool,
    seed: Option<u64>,
    over_seeds: Option<OverSeeds>,
    /// When it was started, in seconds since 1970.
    time: Option<u64>,
    version: &'a Option<String>,
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
    /// The color of each worker in drawings, and what the colors mean.
    colors: Vec<String>,
    colors_caption: Option<String>,
    averaged_accuracy: Option<f64>,
    wall_seconds: Option<f64>,
    notices: &'a [String],
    participation: &'a [(usize, String)],
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
    /// Values of the whole run.
    #[serde(flatten)]
    values: BTreeMap<&'static str, Option<f64>>,
    /// The losses of the drawn workers.
    losses: Vec<Option<f64>>,
    /// The test accuracies of the drawn workers.
    accuracies: Option<Vec<Option<f64>>>,
    /// The spread of the losses over all workers.
    loss: Option<Spread>,
    /// The spread of the test accuracies over all workers.
    accuracy: Option<Spread>,
}

#[derive(Serialize)]
struct Spread {
    low: f64,
    mean: f64,
    high: f64,
}

impl<'a> View<'a> {
    pub(crate) fn new(run: &'a Run, scale: Option<AccuracyScale>) -> Self {
        let drawings = drawing::drawings(run, &run.name, scale);
        Self {
            name: &run.name,
            algorithm: &run.algorithm,
            graph_name: &run.graph_name,
            graph: &run.graph,
            drawings: drawings.into_iter().map(|(_, drawing)| drawing.svg()).collect(),
            workers: run.workers,
            server: run.server,
            processes: run.processes,
            rounds: run.rounds,
            rounds_per_epoch: run.rounds_per_epoch,
            is_running: run.is_running,
            continuation: run.continuation(),
            is_real_time: run.is_real_time,
            seed: run.seed(),
            over_seeds: run.over_seeds,
            time: run.time,
            version: &run.version,
            drawn: drawn_workers(run),
            config: &run.config,
            progress: RunProgress::new(run, scale, thinned(&run.epochs), 0),
        }
    }
}

impl<'a> RunProgress<'a> {
    /// These epochs, and the kept rounds from `first_round` on.
    pub(crate) fn new(run: &'a Run, scale: Option<AccuracyScale>, epochs: Vec<&Epoch>, first_round: u64) -> Self {
        let (training, drawn): (Vec<usize>, Vec<usize>) = (run.training_workers().collect(), drawn_workers(run));
        let mut ends = vec![None; run.workers];
        // `last_accuracies` has only workers below `run.workers`.
        run.last_accuracies().into_iter().for_each(|(worker, accuracy)| ends[worker] = Some(accuracy));
        let select = |workers: &[usize], values: &[Option<f64>]| -> Vec<Option<f64>> {
            workers.iter().map(|&worker| values.get(worker).copied().flatten()).collect()
        };
        let row = |epoch: &Epoch| EpochRow {
            values: Quantity::OF_RUN.iter().map(|quantity| (quantity.key(), quantity.value(run, epoch))).collect(),
            losses: select(&drawn, &epoch.losses),
            accuracies: epoch.accuracies.as_ref().map(|all| select(&drawn, all)),
            loss: Spread::of(&select(&training, &epoch.losses)),
            accuracy: epoch.accuracies.as_ref().and_then(|all| Spread::of(&select(&training, all))),
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
            colors: drawing::worker_colors(run, scale),
            colors_caption: scale.map(|scale| scale.caption()),
            averaged_accuracy: run.averaged_accuracy,
            wall_seconds: run.wall_seconds,
            notices: &run.notices,
            participation: &run.participation,
            now: &run.now,
            ending: &run.ending,
        }
    }
}

/// The workers that have a line.
fn drawn_workers(run: &Run) -> Vec<usize> {
    let training: Vec<usize> = run.training_workers().collect();
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
