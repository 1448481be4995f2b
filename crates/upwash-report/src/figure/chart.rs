//! Drawing of line charts.

use super::{Chart, Line, MAX_LEGEND};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::ops::Range;

type DrawResult<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

impl Chart {
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
        let outline = edges.concat();
        (outline.len() > 2).then_some(outline)
    }

    /// The smallest and the largest coordinate of all points.
    fn range(&self, coordinate: fn(&(f64, f64)) -> f64) -> (f64, f64) {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let points = points.filter(|point| self.is_drawable(point.1)).map(coordinate);
        points.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    }

    pub(super) fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        title: &str,
        scale: u32,
    ) -> DrawResult<B> {
        let (x, y) = (self.range(|point| point.0), self.range(|point| point.1));
        let x: Range<f64> = match x.1 > x.0 {
            true => x.0..x.1,
            false => x.0 - 1.0..x.1 + 1.0,
        };
        area.fill(&WHITE)?;
        let mut builder = ChartBuilder::on(area);
        builder.margin(10 * scale).margin_right(22 * scale).x_label_area_size(42 * scale).y_label_area_size(62 * scale);
        if !title.is_empty() {
            builder.caption(title, font(15, scale));
        }
        // Over less than a factor of ten, a logarithmic axis would have no labels.
        if self.log && y.1 >= 10.0 * y.0 {
            let y = y.0 / 1.1..y.1 * 1.1;
            self.draw_on(builder.build_cartesian_2d(x, y.log_scale())?, scale)?;
        } else {
            let margin = ((y.1 - y.0) * 0.05).max(1e-9);
            let y = y.0 - margin..y.1 + margin;
            self.draw_on(builder.build_cartesian_2d(x, y)?, scale)?;
        }
        area.present()
    }

    /// Draws axes, band, lines and legend.
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
        for line in &self.lines {
            self.draw_line(&mut chart, line, scale)?;
        }
        chart
            .configure_series_labels()
            .position(match self.y_label.contains("accuracy") {
                true => SeriesLabelPosition::LowerRight,
                false => SeriesLabelPosition::UpperRight,
            })
            .legend_area_size(24 * scale)
            .margin(8 * scale)
            .background_style(WHITE.mix(0.85))
            .label_font(font(11, scale))
            .draw()
    }

    fn draw_line<'a, B: DrawingBackend + 'a, Y: Ranged<ValueType = f64>>(
        &self,
        chart: &mut ChartContext<'a, B, Cartesian2d<RangedCoordf64, Y>>,
        line: &Line,
        scale: u32,
    ) -> DrawResult<B> {
        let width = if line.is_mean { 3 * scale } else { 3 * scale / 2 };
        let style = line.color.stroke_width(width);
        let points = line.points.iter().copied();
        let points = points.filter(|point| self.is_drawable(point.1));
        let drawn = match line.dashed {
            true => {
                let (dash, gap) = (6 * scale, 4 * scale);
                chart.draw_series(DashedLineSeries::new(points, dash, gap, style))?
            }
            false => chart.draw_series(LineSeries::new(points, style))?,
        };
        // The names of many lines would cover the chart.
        if line.is_mean || self.lines.len() <= MAX_LEGEND {
            let length = 18 * scale as i32;
            let (first, gap) = match line.dashed {
                true => (length / 3, length / 3),
                false => (length, 0),
            };
            let rest = vec![(first + gap, 0), (length.max(first + gap), 0)];
            drawn.label(&line.name).legend(move |(x, y)| {
                EmptyElement::at((x, y))
                    + PathElement::new(vec![(0, 0), (first, 0)], style)
                    + PathElement::new(rest.clone(), style)
            });
        }
        Ok(())
    }
}

fn font(size: u32, scale: u32) -> (&'static str, i32) {
    ("sans-serif", (size * scale) as i32)
}

/// The label of a tick.
fn label(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        size if !(1e-3..1e6).contains(&size) => format!("{number:.0e}"),
        // Rounded to four decimals, without trailing zeros.
        _ => format!("{}", (number * 1e4).round() / 1e4),
    }
}
