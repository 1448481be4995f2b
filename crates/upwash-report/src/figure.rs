//! Figures for papers, as SVG and PNG: the same charts as on the HTML page.

mod axis;
mod chart;

use crate::charts::{CHARTS, ChartSpec, Lines, Quantity};
use crate::drawing::{self, AccuracyScale};
use crate::{Epoch, Run};
use axis::accuracy_axis;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::ops::Range;
use std::sync::Once;
use upwash_topology::Drawing;

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
    /// The ranges of the axes, which charts of several runs share.
    ranges: Ranges,
    /// The y axis, if it is not that of the range with a margin.
    y_axis: Option<Range<f64>>,
}

/// The least and the largest x and y of all points; infinite the wrong way round if there are none.
#[derive(Clone, Copy)]
struct Ranges {
    x: (f64, f64),
    y: (f64, f64),
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
    let scale = AccuracyScale::of(runs);
    let worker_charts = || CHARTS.iter().filter(|spec| spec.lines == Lines::Workers);
    let axes: Vec<Axes> = worker_charts().map(|spec| worker_axes(spec, runs)).collect();
    for (number, run) in runs.iter().enumerate() {
        let suffix = match runs.len() {
            1 => String::new(),
            _ => format!("-{}", number + 1),
        };
        let title = shortened(&format!("{}: {}", run.name, run.algorithm));
        for (name, drawing) in drawing::drawings(run, &title, scale) {
            let drawing = scale.iter().fold(drawing, |drawing, scale| drawing.with_caption(&scale.caption()));
            figures.push(Figure {
                name: format!("{name}{suffix}"),
                title: String::new(),
                content: Content::Graph(drawing),
            });
        }
        for (spec, (ranges, y_axis)) in worker_charts().zip(&axes) {
            let (ranges, y_axis) = (*ranges, y_axis.clone());
            let (name, chart) = (format!("{}{suffix}", spec.name), Chart { ranges, y_axis, ..worker_chart(spec, run) });
            figures.push(Figure { name, title: title.clone(), content: Content::Chart(chart) });
        }
    }
    for spec in CHARTS.iter().filter(|spec| spec.lines == Lines::Runs) {
        figures.push(Figure {
            name: spec.name.into(),
            title: spec.title.into(),
            content: Content::Chart(run_chart(spec, runs)),
        });
    }
    figures.retain(|figure| match &figure.content {
        Content::Graph(_) => true,
        Content::Chart(chart) => chart.lines.iter().any(|line| !line.points.is_empty()),
    });
    figures
}

/// A chart with a line for each worker other than the server, and their mean.
fn worker_chart(spec: &ChartSpec, run: &Run) -> Chart {
    let line = |worker: usize| {
        let point = |epoch: &Epoch| Some((spec.x.value(run, epoch)?, spec.y.of_worker(epoch, worker)?));
        Line::new(format!("worker {worker}"), run.epochs.iter().filter_map(point).collect(), worker)
    };
    let mut lines: Vec<Line> = run.training_workers().map(line).collect();
    lines.push(Line { name: "mean".into(), points: mean(&lines), color: BLACK, dashed: false, is_mean: true });
    Chart::new([spec.x.label(), spec.y.label()], spec.log, lines)
}

/// The axes that a chart of the workers has for all runs.
type Axes = (Ranges, Option<Range<f64>>);

fn worker_axes(spec: &ChartSpec, runs: &[Run]) -> Axes {
    let charts: Vec<Chart> = runs.iter().map(|run| worker_chart(spec, run)).collect();
    let ranges = charts.iter().map(|chart| chart.ranges).fold(Ranges::EMPTY, Ranges::join);
    let lines = charts.iter().flat_map(|chart| &chart.lines).map(|line| line.points.as_slice());
    (ranges, if spec.y == Quantity::Accuracy { accuracy_axis(lines) } else { None })
}

/// A chart with a line for each run. Those of the mean and of the worst accuracy have the same axis.
fn run_chart(spec: &ChartSpec, runs: &[Run]) -> Chart {
    let points = |run: &Run, y: Quantity| -> Vec<(f64, f64)> {
        run.epochs.iter().filter_map(|epoch| Some((spec.x.value(run, epoch)?, y.value(run, epoch)?))).collect()
    };
    let line = |(number, run): (usize, &Run)| Line::new(run.name.clone(), points(run, spec.y), number);
    let chart = Chart::new([spec.x.label(), spec.y.label()], spec.log, runs.iter().enumerate().map(line).collect());
    let accuracies = [Quantity::MeanAccuracy, Quantity::SmallestAccuracy];
    if !accuracies.contains(&spec.y) {
        return chart;
    }
    let all: Vec<_> = accuracies.iter().flat_map(|y| runs.iter().map(|run| points(run, *y))).collect();
    Chart { y_axis: accuracy_axis(all.iter().map(Vec::as_slice)), ..chart }
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
            content: Content::Chart(Chart::new([x_label, y_label], false, lines)),
        })
    }

    /// Renders the figure as SVG.
    pub fn svg(&self) -> Result<String, String> {
        if let Content::Graph(drawing) = &self.content {
            return Ok(drawing.svg());
        }
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
            Content::Graph(drawing) => drawing::draw(drawing, area),
            Content::Chart(chart) => chart.draw(area, &self.title, scale),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A run of two workers, whose losses are multiplied by a factor.
    fn run(folder: &std::path::Path, epochs: u32, factor: f64) -> Run {
        let started = r#"{"event":"started","version":1,"round":0,"algorithm":"D-PSGD","graph":"ring:2","workers":2,"parameters":10,"rounds":100,"rounds_per_epoch":10,"batch_size":8,"time":1794000000,"upwash":"0.1.0"}"#;
        let epoch = |epoch: u32| {
            let losses = [1.0, 1.5].map(|worker| factor * worker / f64::from(epoch));
            let accuracies = losses.map(|loss| 1.0 - loss / 2.0);
            format!(
                r#"{{"event":"epoch","epoch":{epoch},"train_losses":{losses:?},"test_accuracies":{accuracies:?},"consensus_distance":0.1,"bytes_sent":1000,"messages_sent":1,"simulated_seconds":1}}"#
            )
        };
        let lines: Vec<String> = std::iter::once(started.to_owned()).chain((1..=epochs).map(epoch)).collect();
        std::fs::write(folder.join("events.jsonl"), lines.join("\n") + "\n").unwrap();
        Run::read(folder).unwrap()
    }

    #[test]
    fn figures_of_several_runs_share_their_axes() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let runs = [run(folders[0].path(), 40, 1.0), run(folders[1].path(), 30, 0.5)];
        let figures = figures(&runs);
        let chart = |name: &str| match &figures.iter().find(|figure| figure.name == name).unwrap().content {
            Content::Chart(chart) => chart,
            Content::Graph(_) => panic!("{name} is a graph"),
        };
        for name in ["loss", "accuracy"] {
            let [one, other] = [1, 2].map(|run| chart(&format!("{name}-{run}")));
            assert_eq!((one.ranges.x, one.ranges.y), (other.ranges.x, other.ranges.y), "{name}");
            assert_eq!(one.y_axis, other.y_axis, "{name}");
            assert_eq!(one.ranges.x, (1.0, 40.0));
        }
        // In the first epoch the worst worker has 25 %; after a third of the epochs all have more than 94 %.
        let axis = chart("accuracy-1").y_axis.clone().unwrap();
        assert!((90.0..95.0).contains(&axis.start) && axis.end == 100.0, "{axis:?}");
        assert_eq!(chart("mean-accuracy").y_axis, chart("worst-accuracy").y_axis);
        assert!(chart("mean-accuracy").y_axis.as_ref().unwrap().start > 90.0);
        assert_eq!(chart("loss-1").y_axis, None);
    }

    #[test]
    fn single_points_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let circles = |epochs: u32| {
            let figures = figures(&[run(folder.path(), epochs, 1.0)]);
            let figure = figures.iter().find(|figure| figure.name == "accuracy").unwrap();
            figure.svg().unwrap().matches("<circle").count()
        };
        // Two workers and their mean.
        assert_eq!((circles(1), circles(2), circles(3)), (3, 6, 0));
    }
}
