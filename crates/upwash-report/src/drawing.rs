//! The graph of a run, with its workers colored by test accuracy.

use crate::Run;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use upwash_topology::{Drawing, Graph, Shape};

/// Colors for test accuracies, the same for all runs of a page or a set of figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccuracyScale {
    low: f64,
    high: f64,
}

/// Viridis, from dark to bright, which is also legible in grayscale print.
const COLORS: [[u8; 3]; 5] =
    [[0x44, 0x01, 0x54], [0x3b, 0x52, 0x8b], [0x21, 0x91, 0x8c], [0x5e, 0xc9, 0x62], [0xfd, 0xe7, 0x25]];
/// Differences below two points are drawn small.
const SMALLEST_RANGE: f64 = 0.02;

impl AccuracyScale {
    /// The scale of these runs; `None` if no accuracy is known.
    pub(crate) fn of<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Option<Self> {
        let accuracies: Vec<f64> =
            runs.into_iter().flat_map(|run| run.last_accuracies()).map(|(_, value)| value).collect();
        let low = accuracies.iter().copied().reduce(f64::min)?;
        let high = accuracies.iter().copied().reduce(f64::max)?;
        let missing = (SMALLEST_RANGE - (high - low)).max(0.0) / 2.0;
        Some(Self { low: low - missing, high: high + missing })
    }

    fn color(&self, accuracy: f64) -> String {
        let place = ((accuracy - self.low) / (self.high - self.low)).clamp(0.0, 1.0) * (COLORS.len() - 1) as f64;
        let first = (place as usize).min(COLORS.len() - 2);
        let channel = |index: usize| {
            let [a, b] = [COLORS[first][index], COLORS[first + 1][index]].map(f64::from);
            (a + (b - a) * (place - first as f64)).round() as u8
        };
        format!("#{:02x}{:02x}{:02x}", channel(0), channel(1), channel(2))
    }

    /// What the colors mean.
    pub(crate) fn caption(&self) -> String {
        let [low, high] = [self.low, self.high].map(|part| 100.0 * part);
        format!("test accuracy from {low:.1} % (dark) to {high:.1} % (bright)")
    }
}

/// The color of each worker; white where no accuracy is known.
pub(crate) fn worker_colors(run: &Run, scale: Option<AccuracyScale>) -> Vec<String> {
    let mut colors = vec!["#ffffff".to_owned(); run.workers];
    for (worker, accuracy) in run.last_accuracies() {
        if let Some(scale) = scale {
            colors[worker] = scale.color(accuracy);
        }
    }
    colors
}

/// The drawings of a run with their names: the graph, and the copies in which workers are at other nodes.
pub(crate) fn drawings(run: &Run, title: &str, scale: Option<AccuracyScale>) -> Vec<(String, Drawing)> {
    let build = |known: &crate::Graph| Graph::from_matchings(run.workers, known.matchings.clone()).ok();
    let (Some(known), Some(graph)) = (&run.graph, run.graph.as_ref().and_then(build)) else {
        return vec![];
    };
    let colors = worker_colors(run, scale);
    let identity: Vec<usize> = (0..run.workers).collect();
    let others = known.relabelings.iter().enumerate().filter(|(_, nodes)| **nodes != identity);
    let copies =
        others.map(|(copy, nodes)| (format!("graph-copy-{}", copy + 1), format!("{title}, copy {}", copy + 1), nodes));
    let all = std::iter::once(("graph".to_owned(), title.to_owned(), &identity)).chain(copies);
    all.filter_map(|(name, title, nodes)| {
        let drawing = Drawing::of_rotation(&graph, &title, std::slice::from_ref(nodes)).ok()?;
        Some((name, drawing.with_fills(|worker| colors[worker].clone())))
    })
    .collect()
}

/// Draws the shapes on a bitmap, as large as they fit.
pub(crate) fn draw<B: DrawingBackend>(
    drawing: &Drawing,
    area: &DrawingArea<B, Shift>,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    area.fill(&WHITE)?;
    let (width, height) = area.dim_in_pixel();
    let unit = (f64::from(width) / drawing.width).min(f64::from(height) / drawing.height);
    let left = (f64::from(width) - unit * drawing.width) / 2.0;
    let at = |[x, y]: [f64; 2]| ((left + unit * x).round() as i32, (unit * y).round() as i32);
    let pixels = |length: f64| (unit * length).round().max(1.0) as u32;
    for shape in &drawing.shapes {
        match shape {
            Shape::Line { from, to, width, color, .. } => {
                let stroke = rgb(color).stroke_width(pixels(*width));
                area.draw(&PathElement::new(vec![at(*from), at(*to)], stroke))?;
            }
            Shape::Node { center, radius, outline, fill, .. } => {
                area.draw(&Circle::new(at(*center), pixels(*radius), rgb(fill).filled()))?;
                area.draw(&Circle::new(at(*center), pixels(*radius), BLACK.stroke_width(pixels(*outline))))?;
            }
            Shape::Text { at: start, size, centered, color, text, .. } => {
                let anchor = if *centered { HPos::Center } else { HPos::Left };
                let font = ("sans-serif", unit * size).into_font().color(&rgb(color));
                // The backend aligns the bottom of descenders, not the baseline.
                let bottom = [start[0], start[1] + 0.21 * size];
                area.draw(&Text::new(text.as_str(), at(bottom), font.pos(Pos::new(anchor, VPos::Bottom))))?;
            }
            _ => {}
        }
    }
    area.present()
}

/// A color from `#rrggbb`.
fn rgb(color: &str) -> RGBColor {
    let channel = |at: usize| color.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0);
    RGBColor(channel(1), channel(3), channel(5))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Epoch;

    fn run(accuracies: &[f64]) -> Run {
        let accuracies: Vec<Option<f64>> = accuracies.iter().copied().map(Some).collect();
        let (losses, workers) = (vec![Some(1.0); accuracies.len()], accuracies.len());
        let accuracies = Some(accuracies);
        let epoch = Epoch { epoch: 1, losses, accuracies, consensus: None, bytes: 0, seconds: 0.0 };
        Run { workers, epochs: vec![epoch], ..Run::default() }
    }

    #[test]
    fn runs_share_one_scale_of_accuracies() {
        let runs = [run(&[0.20, 0.88]), run(&[0.94, 0.96])];
        let scale = AccuracyScale::of(&runs);
        let [first, second] = [&runs[0], &runs[1]].map(|run| worker_colors(run, scale));
        assert_eq!((first[0].as_str(), second[1].as_str()), ("#440154", "#fde725"), "the darkest and the brightest");
        assert!(first[1] != first[0] && first[1] != second[0] && second[0] != second[1]);
        // A difference of a tenth of a point is hardly visible, and workers that are equal are neither good nor bad.
        let close = run(&[0.900, 0.901]);
        let colors = worker_colors(&close, AccuracyScale::of([&close]));
        assert!(colors[0] != "#440154" && colors[1] != "#fde725", "{colors:?}");
        let equal = run(&[0.9, 0.9]);
        assert_eq!(worker_colors(&equal, AccuracyScale::of([&equal])), ["#21918c", "#21918c"]);
    }
}
