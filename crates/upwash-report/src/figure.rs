//! Figures for papers, as SVG and PNG: those of the page.

use crate::Run;
use crate::drawing::Drawing;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::sync::Once;

/// Letters of PNG figures: none need be installed.
const FONT: &[u8] = include_bytes!("../assets/DejaVuSans.ttf");
/// Okabe and Ito's colors, as on the page.
pub(crate) const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x8a, 0x8a, 0x00),
    RGBColor(0x7a, 0x7f, 0x87),
];
/// A figure's width and height, in SVG's units; a PNG has three dots for each.
const SIZE: (u32, u32) = (640, 420);
const DOTS: u32 = 3;

/// Lines that have their names in the figure.
const NAMED: usize = 17;

/// A title that fits.
fn shortened(title: &str) -> String {
    const MOST: usize = 76;
    match title.chars().count() > MOST {
        true => title.chars().take(MOST - 1).chain(['…']).collect(),
        false => title.to_owned(),
    }
}

/// A picture of runs.
pub struct Figure {
    /// What it is called, as a file's name.
    pub name: String,
    title: String,
    content: Content,
}

enum Content {
    Graph(Drawing),
    Chart(Chart),
}

/// A chart of lines.
struct Chart {
    across: &'static str,
    up: &'static str,
    log: bool,
    lines: Vec<Line>,
}

struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    color: RGBColor,
    dashed: bool,
    wide: bool,
}

/// All figures of these runs.
pub fn figures(runs: &[Run]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let file = |what: &str| match runs.len() {
            1 => what.to_string(),
            _ => format!("{what}-{}", number + 1),
        };
        let workers = || (0..run.workers).filter(|worker| Some(*worker) != run.server);
        let losses = |worker: usize| {
            let epochs = run.epochs.iter();
            epochs
                .filter_map(|e| Some((e.epoch as f64, (*e.losses.get(worker)?)?)))
                .collect()
        };
        let accuracies = |worker: usize| {
            let epochs = run.epochs.iter();
            let point = |e: &crate::Epoch| {
                Some((
                    e.epoch as f64,
                    100.0 * (*e.accuracies.as_ref()?.get(worker)?)?,
                ))
            };
            epochs.filter_map(point).collect()
        };
        let lines = |points: &dyn Fn(usize) -> Vec<(f64, f64)>| -> Vec<Line> {
            let mut lines: Vec<Line> = workers()
                .map(|worker| Line {
                    name: format!("worker {worker}"),
                    points: points(worker),
                    color: COLOURS[worker % COLOURS.len()],
                    dashed: worker / COLOURS.len() % 2 == 1,
                    wide: false,
                })
                .collect();
            lines.push(Line {
                name: "mean".into(),
                points: mean(&lines),
                color: BLACK,
                dashed: false,
                wide: true,
            });
            lines
        };
        let title = shortened(&format!("{}: {}", run.name, run.algorithm));
        for (name, drawing) in Drawing::of(run) {
            let copy = name.strip_prefix("graph-copy-");
            figures.push(Figure {
                title: copy.map_or(title.clone(), |copy| format!("{title}, copy {copy}")),
                name: file(&name),
                content: Content::Graph(drawing),
            });
        }
        let mut add = |name: &str, up, log, lines| {
            let across = "epoch";
            figures.push(Figure {
                name: file(name),
                title: title.clone(),
                content: Content::Chart(Chart {
                    across,
                    up,
                    log,
                    lines,
                }),
            });
        };
        add("loss", "training loss", true, lines(&losses));
        add("accuracy", "test accuracy, %", false, lines(&accuracies));
    }
    type Point = fn(&Run, &crate::Epoch) -> Option<(f64, f64)>;
    let together: [(&str, &str, &'static str, &'static str, bool, Point); 6] = [
        (
            "worst-loss",
            "The worst worker",
            "epoch",
            "largest training loss",
            true,
            |run, e| Some((e.epoch as f64, known(run, &e.losses).reduce(f64::max)?)),
        ),
        (
            "worst-accuracy",
            "The worst worker",
            "epoch",
            "smallest test accuracy, %",
            false,
            |run, e| {
                Some((
                    e.epoch as f64,
                    100.0 * known(run, e.accuracies.as_ref()?).reduce(f64::min)?,
                ))
            },
        ),
        (
            "accuracy-rounds",
            "",
            "rounds",
            "mean test accuracy, %",
            false,
            |run, e| Some(((e.epoch * run.rounds_per_epoch) as f64, accuracy(run, e)?)),
        ),
        (
            "accuracy-bytes",
            "",
            "GB sent",
            "mean test accuracy, %",
            false,
            |run, e| Some((e.bytes as f64 / 1e9, accuracy(run, e)?)),
        ),
        (
            "accuracy-time",
            "",
            "simulated seconds",
            "mean test accuracy, %",
            false,
            |run, e| Some((e.seconds, accuracy(run, e)?)),
        ),
        (
            "consensus",
            "",
            "epoch",
            "distance from the average",
            true,
            |_, e| Some((e.epoch as f64, e.consensus?)),
        ),
    ];
    for (name, title, across, up, log, point) in together {
        let line = |(number, run): (usize, &Run)| Line {
            name: run.name.clone(),
            points: run
                .epochs
                .iter()
                .filter_map(|epoch| point(run, epoch))
                .collect(),
            color: COLOURS[number % COLOURS.len()],
            dashed: number / COLOURS.len() % 2 == 1,
            wide: false,
        };
        figures.push(Figure {
            name: name.into(),
            title: title.into(),
            content: Content::Chart(Chart {
                across,
                up,
                log,
                lines: runs.iter().enumerate().map(line).collect(),
            }),
        });
    }
    figures.retain(|figure| match &figure.content {
        Content::Graph(_) => true,
        Content::Chart(chart) => chart.lines.iter().any(|line| !line.points.is_empty()),
    });
    figures
}

fn known<'a>(run: &'a Run, values: &'a [Option<f64>]) -> impl Iterator<Item = f64> + 'a {
    let trains = values
        .iter()
        .enumerate()
        .filter(|(worker, _)| Some(*worker) != run.server);
    trains.filter_map(|(_, value)| *value)
}

fn accuracy(run: &Run, epoch: &crate::Epoch) -> Option<f64> {
    let all: Vec<f64> = known(run, epoch.accuracies.as_ref()?).collect();
    (!all.is_empty()).then(|| 100.0 * all.iter().sum::<f64>() / all.len() as f64)
}

/// A number beside an axis.
fn label(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        size if !(1e-3..1e6).contains(&size) => format!("{number:.0e}"),
        // As many digits as it takes, and no more.
        _ => format!("{}", (number * 1e4).round() / 1e4),
    }
}

/// The mean of lines that have the same places.
fn mean(lines: &[Line]) -> Vec<(f64, f64)> {
    let mut sums: std::collections::BTreeMap<u64, (f64, usize)> = Default::default();
    for &(x, y) in lines.iter().flat_map(|line| &line.points) {
        let sum = sums.entry(x as u64).or_default();
        *sum = (sum.0 + y, sum.1 + 1);
    }
    sums.into_iter()
        .map(|(x, (sum, count))| (x as f64, sum / count as f64))
        .collect()
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedLine {
    /// As the legend has it.
    pub name: String,
    /// Across and up.
    pub points: Vec<(f64, f64)>,
    /// The number of a color.
    pub color: usize,
    /// Whether it is dashed.
    pub dashed: bool,
}

impl Figure {
    /// A chart of these lines; none where there is nothing to draw.
    pub fn of_lines(
        name: &str,
        title: &str,
        [across, up]: [&'static str; 2],
        lines: Vec<NamedLine>,
    ) -> Option<Self> {
        let lines: Vec<Line> = lines
            .into_iter()
            .map(|line| Line {
                name: line.name,
                points: line.points,
                color: COLOURS[line.color % COLOURS.len()],
                dashed: line.dashed,
                wide: false,
            })
            .collect();
        lines
            .iter()
            .any(|line| !line.points.is_empty())
            .then(|| Self {
                name: name.into(),
                title: title.into(),
                content: Content::Chart(Chart {
                    across,
                    up,
                    log: false,
                    lines,
                }),
            })
    }

    /// As SVG.
    pub fn svg(&self) -> Result<String, String> {
        let mut text = String::new();
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        self.draw(&area, 1).map_err(|error| error.to_string())?;
        drop(area);
        Ok(text)
    }

    /// As PNG: three dots for each of SVG's units.
    pub fn png(&self) -> Result<Vec<u8>, String> {
        let (width, height) = (DOTS * SIZE.0, DOTS * SIZE.1);
        let mut dots = vec![0; 3 * (width * height) as usize];
        let area = BitMapBackend::with_buffer(&mut dots, (width, height)).into_drawing_area();
        self.draw(&area, DOTS).map_err(|error| error.to_string())?;
        drop(area);
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(png::ColorType::Rgb);
        let written = encoder
            .write_header()
            .and_then(|mut writer| writer.write_image_data(&dots));
        written.map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        // SVG names letters, but their widths are needed all the same.
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

impl Chart {
    /// Between the lowest and the highest of those around a mean.
    fn band(&self, usable: impl Fn(f64) -> bool) -> Option<Vec<(f64, f64)>> {
        let mean = self.lines.iter().find(|line| line.wide)?;
        let others = || self.lines.iter().filter(|line| !line.wide);
        let mut edges = [vec![], vec![]];
        for &(x, _) in &mean.points {
            let here = |line: &Line| line.points.iter().find(|point| point.0 == x).copied();
            let all = others().filter_map(here).filter(|point| usable(point.1));
            let (low, high) = all
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (_, y)| {
                    (low.min(y), high.max(y))
                });
            if low <= high {
                edges[0].push((x, high));
                edges[1].insert(0, (x, low));
            }
        }
        let shape = edges.concat();
        (shape.len() > 2).then_some(shape)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        title: &str,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let usable = |y: f64| y.is_finite() && (!self.log || y > 0.0);
        let points = || {
            self.lines
                .iter()
                .flat_map(|line| &line.points)
                .filter(|point| usable(point.1))
        };
        let least = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::NEG_INFINITY, f64::max);
        let (x, y) = (
            (least(|p| p.0), most(|p| p.0)),
            (least(|p| p.1), most(|p| p.1)),
        );
        let x = if x.1 > x.0 {
            x.0..x.1
        } else {
            x.0 - 1.0..x.1 + 1.0
        };
        area.fill(&WHITE)?;
        let font = |size: u32| ("sans-serif", (size * scale) as i32);
        let mut builder = ChartBuilder::on(area);
        builder
            .margin(10 * scale)
            .margin_right(22 * scale)
            .x_label_area_size(42 * scale)
            .y_label_area_size(62 * scale);
        if !title.is_empty() {
            builder.caption(title, font(15));
        }
        // The two kinds of axes are of different types, and what is done with them the same.
        macro_rules! finish {
            ($chart:expr) => {{
                let mut chart = $chart;
                chart
                    .configure_mesh()
                    .disable_x_mesh()
                    .light_line_style(WHITE)
                    .bold_line_style(BLACK.mix(0.12).stroke_width(scale))
                    .axis_style(BLACK.stroke_width(scale))
                    .label_style(font(12))
                    .axis_desc_style(font(13))
                    .x_label_formatter(&|x| label(*x))
                    .y_label_formatter(&|y| label(*y))
                    .x_desc(self.across)
                    .y_desc(self.up)
                    .draw()?;
                if let Some(band) = self.band(usable) {
                    chart.draw_series([Polygon::new(band, BLACK.mix(0.1))])?;
                }
                for line in &self.lines {
                    let style =
                        line.color
                            .stroke_width(if line.wide { 3 * scale } else { 3 * scale / 2 });
                    let points = line.points.iter().copied().filter(|point| usable(point.1));
                    let length = 18 * scale as i32;
                    let drawn = match line.dashed {
                        true => {
                            let (dash, gap) = (6 * scale, 4 * scale);
                            chart.draw_series(DashedLineSeries::new(points, dash, gap, style))?
                        }
                        false => chart.draw_series(LineSeries::new(points, style))?,
                    };
                    // Names of many would cover the chart.
                    if line.wide || self.lines.len() <= NAMED {
                        let (first, gap) = if line.dashed {
                            (length / 3, length / 3)
                        } else {
                            (length, 0)
                        };
                        drawn.label(&line.name).legend(move |(x, y)| {
                            EmptyElement::at((x, y))
                                + PathElement::new(vec![(0, 0), (first, 0)], style)
                                + PathElement::new(
                                    vec![(first + gap, 0), (length.max(first + gap), 0)],
                                    style,
                                )
                        });
                    }
                }
                chart
                    .configure_series_labels()
                    .position(if self.up.contains("accuracy") {
                        SeriesLabelPosition::LowerRight
                    } else {
                        SeriesLabelPosition::UpperRight
                    })
                    .legend_area_size(24 * scale)
                    .margin(8 * scale)
                    .background_style(WHITE.mix(0.85))
                    .label_font(font(11))
                    .draw()?;
            }};
        }
        // Below a factor of ten a logarithmic axis would have no number.
        if self.log && y.1 >= 10.0 * y.0 {
            let y = y.0 / 1.1..y.1 * 1.1;
            finish!(builder.build_cartesian_2d(x, y.log_scale())?);
        } else {
            let room = ((y.1 - y.0) * 0.05).max(1e-9);
            finish!(builder.build_cartesian_2d(x, y.0 - room..y.1 + room)?);
        }
        area.present()
    }
}
