//! Drawing of line charts.

use super::axis::{label, log_ticks};
use super::{Chart, Line, MAX_LEGEND, Ranges};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// The height of a row of the legend, and the length of the lines in it, in SVG units.
const LEGEND_ROW: u32 = 18;
const SWATCH: u32 = 18;

/// Lines of fewer points show their points, too: a line of one would not be seen.
const MIN_LINE: usize = 3;

const EMPTY_RANGE: (f64, f64) = (f64::INFINITY, f64::NEG_INFINITY);

type DrawResult<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

impl Ranges {
    pub(super) const EMPTY: Self = Self { x: EMPTY_RANGE, y: EMPTY_RANGE };

    /// The ranges of two charts together.
    pub(super) fn join(self, other: Self) -> Self {
        let join = |one: (f64, f64), other: (f64, f64)| (one.0.min(other.0), one.1.max(other.1));
        Self { x: join(self.x, other.x), y: join(self.y, other.y) }
    }
}

impl Chart {
    /// A chart of these lines, with the labels of the x and y axes.
    pub(super) fn new([x_label, y_label]: [&'static str; 2], log: bool, lines: Vec<Line>) -> Self {
        let mut chart = Self { x_label, y_label, log, lines, ranges: Ranges::EMPTY, y_axis: None };
        let points = chart.lines.iter().flat_map(|line| &line.points).filter(|point| chart.is_drawable(point.1));
        chart.ranges = points.map(|&(x, y)| Ranges { x: (x, x), y: (y, y) }).fold(Ranges::EMPTY, Ranges::join);
        chart
    }

    /// Whether a point can be drawn: logarithmic axes have no zero.
    fn is_drawable(&self, y: f64) -> bool {
        y.is_finite() && (!self.log || y > 0.0)
    }

    /// The outline of the area between the lowest and the highest line, for charts with a mean.
    fn band(&self) -> Option<Vec<(f64, f64)>> {
        let mean = self.lines.iter().find(|line| line.is_mean)?;
        let others = || self.lines.iter().filter(|line| !line.is_mean);
        let mut edges = [vec![], vec![]];
        for &(x, _) in &mean.points {
            let at_x = |line: &Line| line.points.iter().find(|point| point.0 == x).copied();
            let all = others().filter_map(at_x).filter(|point| self.is_drawable(point.1));
            let (low, high) =
                all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (_, y)| (low.min(y), high.max(y)));
            if low <= high {
                edges[0].push((x, high));
                edges[1].insert(0, (x, low));
            }
        }
        let mut outline = edges.concat();
        outline.iter_mut().for_each(|point| point.1 = point.1.max(self.bottom()));
        (outline.len() > 2).then_some(outline)
    }

    /// What is below this is cut off.
    fn bottom(&self) -> f64 {
        self.y_axis.as_ref().map_or(f64::NEG_INFINITY, |axis| axis.start)
    }

    pub(super) fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        title: &str,
        scale: u32,
    ) -> DrawResult<B> {
        let Ranges { x, y } = self.ranges;
        let x: Range<f64> = match x.1 > x.0 {
            true => x.0..x.1,
            false => x.0 - 1.0..x.1 + 1.0,
        };
        area.fill(&WHITE)?;
        let rows = self.legend_rows(area.dim_in_pixel().0, scale);
        let legend_height = rows.len() as u32 * LEGEND_ROW * scale;
        let (plot, below) = area.split_vertically(area.dim_in_pixel().1 - legend_height);
        let mut builder = ChartBuilder::on(&plot);
        builder.margin(10 * scale).margin_right(22 * scale).x_label_area_size(42 * scale).y_label_area_size(62 * scale);
        if !title.is_empty() {
            builder.caption(title, font(15, scale));
        }
        if self.log && y.0 > 0.0 {
            let y = y.0 / 1.1..y.1 * 1.1;
            let ticks = log_ticks(&y);
            self.draw_on(builder.build_cartesian_2d(x, y.log_scale().with_key_points(ticks))?, scale)?;
        } else {
            let margin = ((y.1 - y.0) * 0.05).max(1e-9);
            let y = self.y_axis.clone().unwrap_or(y.0 - margin..y.1 + margin);
            self.draw_on(builder.build_cartesian_2d(x, y)?, scale)?;
        }
        for (row, lines) in rows.iter().enumerate() {
            let middle = (LEGEND_ROW * scale) as i32 * row as i32 + (LEGEND_ROW * scale / 2) as i32;
            for (left, line) in lines {
                line.draw_name(&below, (*left as i32, middle), scale)?;
            }
        }
        area.present()
    }

    /// The rows of the legend below the plot: the lines with names, and where they are in their row.
    fn legend_rows(&self, width: u32, scale: u32) -> Vec<Vec<(u32, &Line)>> {
        let (first, last) = (72 * scale, width.saturating_sub(22 * scale));
        let mut rows: Vec<Vec<(u32, &Line)>> = Vec::new();
        let mut left = last;
        for line in self.lines.iter().filter(|line| self.is_named(line)) {
            // The backend can measure text only where it draws: a character is about half as wide as it is high.
            let needed = (SWATCH + 22) * scale + line.name.chars().count() as u32 * 13 * scale / 2;
            if left + needed > last || rows.is_empty() {
                rows.push(vec![]);
                left = first;
            }
            if let Some(row) = rows.last_mut() {
                row.push((left, line));
            }
            left += needed;
        }
        rows
    }

    /// The names of many lines would take more room than the chart.
    fn is_named(&self, line: &Line) -> bool {
        line.is_mean || self.lines.len() <= MAX_LEGEND
    }

    /// Draws axes, band and lines.
    fn draw_on<'a, B: DrawingBackend + 'a, Y>(
        &self,
        mut chart: ChartContext<'a, B, Cartesian2d<RangedCoordf64, Y>>,
        scale: u32,
    ) -> DrawResult<B>
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .bold_line_style(BLACK.mix(0.12).stroke_width(scale))
            .axis_style(BLACK.stroke_width(scale))
            .label_style(font(12, scale))
            .axis_desc_style(font(13, scale))
            .x_label_formatter(&|x| label(*x))
            .y_label_formatter(&|y| label(*y))
            .x_desc(self.x_label)
            .y_desc(self.y_label)
            .draw()?;
        if let Some(band) = self.band() {
            chart.draw_series([Polygon::new(band, BLACK.mix(0.1))])?;
        }
        self.lines.iter().try_for_each(|line| self.draw_line(&mut chart, line, scale))
    }

    fn draw_line<'a, B: DrawingBackend + 'a, Y: Ranged<ValueType = f64>>(
        &self,
        chart: &mut ChartContext<'a, B, Cartesian2d<RangedCoordf64, Y>>,
        line: &Line,
        scale: u32,
    ) -> DrawResult<B> {
        let points = line.points.iter().copied();
        let points: Vec<(f64, f64)> = points.filter(|point| self.is_drawable(point.1)).collect();
        let style = line.style(scale);
        if points.len() < MIN_LINE {
            let shown = points.iter().filter(|point| point.1 >= self.bottom());
            chart.draw_series(shown.map(|point| Circle::new(*point, (3 * scale) as i32, line.color.filled())))?;
        }
        for part in above(&points, self.bottom()) {
            match line.dashed {
                true => chart.draw_series(DashedLineSeries::new(part, 6 * scale, 4 * scale, style))?,
                false => chart.draw_series(LineSeries::new(part, style))?,
            };
        }
        Ok(())
    }
}

impl Line {
    fn style(&self, scale: u32) -> ShapeStyle {
        self.color.stroke_width(if self.is_mean { 3 * scale } else { 3 * scale / 2 })
    }

    /// Draws a piece of the line and its name.
    fn draw_name<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        (left, middle): (i32, i32),
        scale: u32,
    ) -> DrawResult<B> {
        let length = (SWATCH * scale) as i32;
        let pieces = if self.dashed { vec![(0, length / 3), (2 * length / 3, length)] } else { vec![(0, length)] };
        for (from, to) in pieces {
            let ends = vec![(left + from, middle), (left + to, middle)];
            area.draw(&PathElement::new(ends, self.style(scale)))?;
        }
        let place = (left + length + 6 * scale as i32, middle);
        let text = font(11, scale).into_font().into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(self.name.as_str(), place, text))
    }
}

/// The parts of a line above `bottom`.
fn above(points: &[(f64, f64)], bottom: f64) -> Vec<Vec<(f64, f64)>> {
    let (mut parts, mut part, mut last) = (Vec::new(), Vec::new(), None::<(f64, f64)>);
    for &(x, y) in points {
        if let Some((last_x, last_y)) = last
            && (last_y < bottom) != (y < bottom)
        {
            part.push((last_x + (bottom - last_y) / (y - last_y) * (x - last_x), bottom));
        }
        if y >= bottom {
            part.push((x, y));
        } else if !part.is_empty() {
            parts.push(std::mem::take(&mut part));
        }
        last = Some((x, y));
    }
    parts.push(part);
    parts
}

fn font(size: u32, scale: u32) -> (&'static str, i32) {
    ("sans-serif", (size * scale) as i32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_end_at_the_lower_edge() {
        let line = [(0.0, 4.0), (1.0, 0.0), (2.0, 0.0), (3.0, 8.0)];
        let parts = super::above(&line, 2.0);
        assert_eq!(parts, [vec![(0.0, 4.0), (0.5, 2.0)], vec![(2.25, 2.0), (3.0, 8.0)]]);
        assert_eq!(super::above(&line, f64::NEG_INFINITY), [line.to_vec()]);
    }
}
