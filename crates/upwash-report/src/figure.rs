//! Figures for papers, as SVG and PNG: the same charts as on the HTML page.

mod chart;

use crate::drawing::Drawing;
use crate::{Epoch, Run};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::sync::Once;

/// The font of PNG figures, embedded so that none has to be installed.
const FONT: &[u8] = include_bytes!("../assets/DejaVuSans.ttf");
/// The Okabe-Ito palette, as on the page.
pub(crate) const COLORS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x8a, 0x8a, 0x00),
    RGBColor(0x7a, 0x7f, 0x87),
];
/// Width and height of a figure in SVG units.
const SIZE: (u32, u32) = (640, 420);
/// Pixels of a PNG per SVG unit.
const PNG_SCALE: u32 = 3;

/// Up to this many lines, all are named in the legend.
const MAX_LEGEND: usize = 17;

/// Shortens a title so that it fits the width of a figure.
fn shortened(title: &str) -> String {
    const MAX_LENGTH: usize = 76;
    match title.chars().count() > MAX_LENGTH {
        true => title.chars().take(MAX_LENGTH - 1).chain(['…']).collect(),
        false => title.to_owned(),
    }
}

/// A figure of one or more runs.
pub struct Figure {
    /// The file name, without an extension.
    pub name: String,
    title: String,
    content: Content,
}

enum Content {
    Graph(Drawing),
    Chart(Chart),
}

/// A line chart.
struct Chart {
    x_label: &'static str,
    y_label: &'static str,
    log: bool,
    lines: Vec<Line>,
}

struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    color: RGBColor,
    dashed: bool,
    /// Whether the line is the mean of the others, which is drawn thick.
    is_mean: bool,
}

impl Line {
    /// The line at position `number` in a chart, which determines its color and dashes.
    fn new(name: String, points: Vec<(f64, f64)>, number: usize) -> Self {
        Self {
            name,
            points,
            color: COLORS[number % COLORS.len()],
            dashed: number / COLORS.len() % 2 == 1,
            is_mean: false,
        }
    }
}

/// All figures of these runs: those of each run, then those that compare the runs.
pub fn figures(runs: &[Run]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let suffix = match runs.len() {
            1 => String::new(),
            _ => format!("-{}", number + 1),
        };
        figures.extend(run_figures(run, &suffix));
    }
    figures.extend(COMPARISONS.iter().map(|comparison| comparison.figure(runs)));
    figures.retain(|figure| match &figure.content {
        Content::Graph(_) => true,
        Content::Chart(chart) => chart.lines.iter().any(|line| !line.points.is_empty()),
    });
    figures
}

/// The figures of one run: its graph and copies, and charts with a line for each worker.
fn run_figures(run: &Run, suffix: &str) -> Vec<Figure> {
    let title = shortened(&format!("{}: {}", run.name, run.algorithm));
    let drawings = Drawing::of(run).into_iter().map(|(name, drawing)| {
        let copy = name.strip_prefix("graph-copy-");
        Figure {
            title: copy.map_or(title.clone(), |copy| format!("{title}, copy {copy}")),
            name: format!("{name}{suffix}"),
            content: Content::Graph(drawing),
        }
    });
    let mut figures: Vec<Figure> = drawings.collect();
    let loss: WorkerValue = |epoch, worker| *epoch.losses.get(worker)?;
    let accuracy: WorkerValue = |epoch, worker| Some(100.0 * (*epoch.accuracies.as_ref()?.get(worker)?)?);
    for (name, y_label, log, value) in
        [("loss", "training loss", true, loss), ("accuracy", "test accuracy, %", false, accuracy)]
    {
        figures.push(Figure {
            name: format!("{name}{suffix}"),
            title: title.clone(),
            content: Content::Chart(Chart { x_label: "epoch", y_label, log, lines: worker_lines(run, value) }),
        });
    }
    figures
}

/// A worker's value in an epoch; `None` if unknown.
type WorkerValue = fn(&Epoch, usize) -> Option<f64>;

/// A line for each worker other than the server, and their mean.
fn worker_lines(run: &Run, value: WorkerValue) -> Vec<Line> {
    let workers = (0..run.workers).filter(|worker| Some(*worker) != run.server);
    let line = |worker: usize| {
        let point = |epoch: &Epoch| Some((epoch.epoch as f64, value(epoch, worker)?));
        let points = run.epochs.iter().filter_map(point).collect();
        Line::new(format!("worker {worker}"), points, worker)
    };
    let mut lines: Vec<Line> = workers.map(line).collect();
    lines.push(Line { name: "mean".into(), points: mean(&lines), color: BLACK, dashed: false, is_mean: true });
    lines
}

/// A chart that compares runs, with a line for each.
struct Comparison {
    name: &'static str,
    title: &'static str,
    x_label: &'static str,
    y_label: &'static str,
    log: bool,
    point: fn(&Run, &Epoch) -> Option<(f64, f64)>,
}

impl Comparison {
    const fn accuracy(
        name: &'static str,
        x_label: &'static str,
        point: fn(&Run, &Epoch) -> Option<(f64, f64)>,
    ) -> Self {
        Self { name, title: "", x_label, y_label: "mean test accuracy, %", log: false, point }
    }

    fn figure(&self, runs: &[Run]) -> Figure {
        let line = |(number, run): (usize, &Run)| {
            let points = run.epochs.iter().filter_map(|epoch| (self.point)(run, epoch));
            Line::new(run.name.clone(), points.collect(), number)
        };
        Figure {
            name: self.name.into(),
            title: self.title.into(),
            content: Content::Chart(Chart {
                x_label: self.x_label,
                y_label: self.y_label,
                log: self.log,
                lines: runs.iter().enumerate().map(line).collect(),
            }),
        }
    }
}

/// The charts that compare runs.
const COMPARISONS: [Comparison; 6] = [
    Comparison {
        name: "worst-loss",
        title: "Worst worker",
        x_label: "epoch",
        y_label: "largest training loss",
        log: true,
        point: |run, e| Some((e.epoch as f64, known_values(run, &e.losses).reduce(f64::max)?)),
    },
    Comparison {
        name: "worst-accuracy",
        title: "Worst worker",
        x_label: "epoch",
        y_label: "smallest test accuracy, %",
        log: false,
        point: |run, e| {
            let worst = known_values(run, e.accuracies.as_ref()?).reduce(f64::min)?;
            Some((e.epoch as f64, 100.0 * worst))
        },
    },
    Comparison::accuracy("accuracy-rounds", "rounds", |run, e| {
        Some(((e.epoch * run.rounds_per_epoch) as f64, accuracy(run, e)?))
    }),
    Comparison::accuracy("accuracy-bytes", "GB sent", |run, e| Some((e.bytes as f64 / 1e9, accuracy(run, e)?))),
    Comparison::accuracy("accuracy-time", "simulated seconds", |run, e| Some((e.seconds, accuracy(run, e)?))),
    Comparison {
        name: "consensus",
        title: "",
        x_label: "epoch",
        y_label: "consensus distance",
        log: true,
        point: |_, e| Some((e.epoch as f64, e.consensus?)),
    },
];

/// The known values of the workers other than the server.
fn known_values<'a>(run: &'a Run, values: &'a [Option<f64>]) -> impl Iterator<Item = f64> + 'a {
    let training = values.iter().enumerate().filter(|(worker, _)| Some(*worker) != run.server);
    training.filter_map(|(_, value)| *value)
}

/// The mean test accuracy in percent.
fn accuracy(run: &Run, epoch: &Epoch) -> Option<f64> {
    let all: Vec<f64> = known_values(run, epoch.accuracies.as_ref()?).collect();
    (!all.is_empty()).then(|| 100.0 * all.iter().sum::<f64>() / all.len() as f64)
}

/// The mean of the lines at each x.
fn mean(lines: &[Line]) -> Vec<(f64, f64)> {
    let mut sums: std::collections::BTreeMap<u64, (f64, usize)> = Default::default();
    for &(x, y) in lines.iter().flat_map(|line| &line.points) {
        let sum = sums.entry(x as u64).or_default();
        *sum = (sum.0 + y, sum.1 + 1);
    }
    sums.into_iter().map(|(x, (sum, count))| (x as f64, sum / count as f64)).collect()
}

/// A line of a chart with its legend entry.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedLine {
    /// The name in the legend.
    pub name: String,
    /// The points, as (x, y).
    pub points: Vec<(f64, f64)>,
    /// The index of the color in the palette.
    pub color: usize,
    /// Whether the line is dashed.
    pub dashed: bool,
}

impl Figure {
    /// A chart of these lines, with the labels of the x and y axes; `None` if no line has a point.
    pub fn from_lines(
        name: &str,
        title: &str,
        [x_label, y_label]: [&'static str; 2],
        lines: Vec<NamedLine>,
    ) -> Option<Self> {
        let lines: Vec<Line> = lines
            .into_iter()
            .map(|line| Line {
                name: line.name,
                points: line.points,
                color: COLORS[line.color % COLORS.len()],
                dashed: line.dashed,
                is_mean: false,
            })
            .collect();
        lines.iter().any(|line| !line.points.is_empty()).then(|| Self {
            name: name.into(),
            title: title.into(),
            content: Content::Chart(Chart { x_label, y_label, log: false, lines }),
        })
    }

    /// Renders the figure as SVG.
    pub fn svg(&self) -> Result<String, String> {
        let mut text = String::new();
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        self.draw(&area, 1).map_err(|error| error.to_string())?;
        drop(area);
        Ok(text)
    }

    /// Renders the figure as PNG, at three pixels per SVG unit.
    pub fn png(&self) -> Result<Vec<u8>, String> {
        let (width, height) = (PNG_SCALE * SIZE.0, PNG_SCALE * SIZE.1);
        let mut pixels = vec![0; 3 * (width * height) as usize];
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        self.draw(&area, PNG_SCALE).map_err(|error| error.to_string())?;
        drop(area);
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(png::ColorType::Rgb);
        let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
        written.map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        // An SVG only names its font, but layout needs the widths of the characters.
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let _ = register_font("sans-serif", FontStyle::Normal, FONT);
        });
        match &self.content {
            Content::Graph(drawing) => drawing.draw(area, &self.title, scale),
            Content::Chart(chart) => chart.draw(area, &self.title, scale),
        }
    }
}
