//! Drawing of a graph: links in the color of their matching, workers by degree (size) and test accuracy (color).

use crate::Run;
use crate::figure::COLORS;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A graph, or one of its copies, in which the workers are at other nodes.
pub(crate) struct Drawing {
    /// Position in the unit square, size and color of each worker.
    workers: Vec<([f64; 2], f64, RGBColor)>,
    links: Vec<(usize, usize, RGBColor)>,
    caption: String,
}

/// The color scale of the page, from dark to bright, so that it also works in grayscale print.
const SCALE: [(u8, u8, u8); 5] =
    [(0x44, 0x01, 0x54), (0x3b, 0x52, 0x8b), (0x21, 0x91, 0x8c), (0x5e, 0xc9, 0x62), (0xfd, 0xe7, 0x25)];

impl Drawing {
    /// The drawings of a run with their names: the graph, and the copies that differ from it.
    pub(crate) fn of(run: &Run) -> Vec<(String, Self)> {
        let Some(graph) = &run.graph else {
            return vec![];
        };
        let identity: Vec<usize> = (0..run.workers).collect();
        let mut all = vec![("graph".to_owned(), Self::new(run, &identity))];
        for (copy, nodes) in graph.relabelings.iter().enumerate() {
            if *nodes != identity {
                all.push((format!("graph-copy-{}", copy + 1), Self::new(run, nodes)));
            }
        }
        all.into_iter().filter_map(|(name, drawing)| Some((name, drawing?))).collect()
    }

    /// Draws worker k at node `nodes[k]`; `None` if that is not a node of the graph.
    fn new(run: &Run, nodes: &[usize]) -> Option<Self> {
        let graph = run.graph.as_ref()?;
        let mut worker_at = vec![0; nodes.len()];
        for (worker, &node) in nodes.iter().enumerate() {
            *worker_at.get_mut(node)? = worker;
        }
        let (mut links, mut degrees) = (vec![], vec![0_usize; run.workers]);
        for (number, matching) in graph.matchings.iter().enumerate() {
            for &(a, b) in matching {
                let (a, b) = (*worker_at.get(a)?, *worker_at.get(b)?);
                degrees[a] += 1;
                degrees[b] += 1;
                links.push((a, b, COLORS[number % COLORS.len()]));
            }
        }
        let accuracies = run.last_accuracies();
        let known = || accuracies.iter().map(|entry| entry.1);
        let (low, high) = (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
        let color = |worker: usize| {
            let found = accuracies.iter().find(|entry| entry.0 == worker);
            let fraction = found.map(|entry| (entry.1 - low) / (high - low).max(1e-12));
            fraction.map_or(RGBColor(0xbb, 0xbb, 0xbb), scale_color)
        };
        let largest = degrees.iter().copied().max().unwrap_or(1).max(1) as f64;
        // Circles shrink as the number of workers grows.
        let scale = (8.0 / run.workers as f64).sqrt().min(1.0);
        let (least, span) = (8.0 * scale, 10.0 * scale);
        let worker = |worker: usize| {
            let size = least + span * degrees[worker] as f64 / largest;
            Some((*graph.positions.get(nodes[worker])?, size, color(worker)))
        };
        Some(Self {
            workers: (0..run.workers).map(worker).collect::<Option<_>>()?,
            links,
            caption: match accuracies.is_empty() {
                true => String::new(),
                false => format!("test accuracy from {:.2} % (dark) to {:.2} % (bright)", 100.0 * low, 100.0 * high),
            },
        })
    }

    pub(crate) fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        title: &str,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let (width, height) = area.dim_in_pixel();
        let unit = f64::from(scale);
        let font = |size: u32, horizontal| {
            ("sans-serif", (size * scale) as i32).into_font().color(&BLACK).pos(Pos::new(horizontal, VPos::Center))
        };
        let middle = width as i32 / 2;
        let line = |y: u32| (middle, (y * scale) as i32);
        area.draw(&Text::new(title, line(20), font(15, HPos::Center)))?;
        let below = (middle, height as i32 - (20 * scale) as i32);
        area.draw(&Text::new(self.caption.as_str(), below, font(12, HPos::Center)))?;
        // The graph is centered and as large as fits between title and caption.
        let range = |axis: usize| {
            let all = || self.workers.iter().map(|worker| worker.0[axis]);
            (all().fold(1.0, f64::min), all().fold(0.0, f64::max))
        };
        let ((left, right), (top, bottom)) = (range(0), range(1));
        let room = [f64::from(width) - 120.0 * unit, f64::from(height) - 120.0 * unit];
        let size = (room[0] / (right - left).max(0.1)).min(room[1] / (bottom - top).max(0.1));
        let at = |[x, y]: [f64; 2]| {
            let center = [f64::from(width) / 2.0, f64::from(height) / 2.0];
            let (x, y) = (x - (left + right) / 2.0, y - (top + bottom) / 2.0);
            ((center[0] + x * size) as i32, (center[1] + y * size) as i32)
        };
        let few = self.workers.len() <= 100;
        let thick = if few { 2 * scale } else { (scale / 2).max(1) };
        for &(a, b, color) in &self.links {
            let ends = vec![at(self.workers[a].0), at(self.workers[b].0)];
            area.draw(&PathElement::new(ends, color.stroke_width(thick)))?;
        }
        for (number, &(position, size, color)) in self.workers.iter().enumerate() {
            let (point, size) = (at(position), (size * unit) as i32);
            area.draw(&Circle::new(point, size, color.filled()))?;
            if few {
                area.draw(&Circle::new(point, size, BLACK.stroke_width(scale)))?;
                let label = (point.0 + size + 4 * scale as i32, point.1);
                area.draw(&Text::new(number.to_string(), label, font(12, HPos::Left)))?;
            }
        }
        area.present()
    }
}

/// The color of a fraction from 0 to 1.
fn scale_color(fraction: f64) -> RGBColor {
    let position = fraction.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let first = (position as usize).min(SCALE.len() - 2);
    let between = |a: u8, b: u8| {
        let (a, b) = (f64::from(a), f64::from(b));
        (a + (b - a) * (position - first as f64)).round() as u8
    };
    let (a, b) = (SCALE[first], SCALE[first + 1]);
    RGBColor(between(a.0, b.0), between(a.1, b.1), between(a.2, b.2))
}
