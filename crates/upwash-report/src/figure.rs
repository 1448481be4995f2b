//! Figures for papers, as SVG and PNG: the same charts as on the HTML page.

mod chart;

use crate::charts::{CHARTS, ChartSpec, Lines};
use crate::drawing::{self, AccuracyScale};
use crate::{Epoch, Run};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
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
    let joint = |spec| runs.iter().map(|run| worker_chart(spec, run).ranges).fold(Ranges::EMPTY, Ranges::join);
    let ranges: Vec<Ranges> = worker_charts().map(joint).collect();
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
        for (spec, &ranges) in worker_charts().zip(&ranges) {
            let (name, chart) = (format!("{}{suffix}", spec.name), Chart { ranges, ..worker_chart(spec, run) });
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

/// A chart with a line for each run.
fn run_chart(spec: &ChartSpec, runs: &[Run]) -> Chart {
    let line = |(number, run): (usize, &Run)| {
        let point = |epoch: &Epoch| Some((spec.x.value(run, epoch)?, spec.y.value(run, epoch)?));
        Line::new(run.name.clone(), run.epochs.iter().filter_map(point).collect(), number)
    };
    let lines = runs.iter().enumerate().map(line).collect();
    Chart::new([spec.x.label(), spec.y.label()], spec.log, lines)
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
