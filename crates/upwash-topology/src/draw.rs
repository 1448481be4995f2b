//! Drawings of graphs: shapes on a plane, which become SVG here and bitmaps or interactive pages elsewhere.

use crate::{Edge, Graph, GraphError, layout};
use std::fmt::Write;

/// The Okabe-Ito palette without black and yellow, which readers with color vision deficiency can distinguish.
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];
/// Further matchings repeat the colors with other dashes.
const DASHES: [&str; 4] = ["", "7 4", "2 4", "10 3 2 3"];
/// Nodes with a smaller radius are drawn without a number.
const SMALLEST_LABELED: f64 = 8.0;
/// With more matchings than this, a legend would be longer than the drawing.
const MAX_LEGEND: usize = 12;
const MARGIN: f64 = 34.0;
const HEADER: f64 = 56.0;
const INK: &str = "#222222";

/// A drawing of a graph, in pixels of SVG.
///
/// ```
/// use upwash_topology::{Drawing, GraphSpec};
/// let drawing = Drawing::new(&"paper:L1".parse::<GraphSpec>()?.build()?, "paper:L1");
/// let svg = drawing.svg();
/// assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
/// assert_eq!(svg.matches("<line ").count(), 12 + 5); // the links, and five in the legend
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    /// The width.
    pub width: f64,
    /// The height.
    pub height: f64,
    /// What it shows, for readers that do not see it.
    pub title: String,
    /// The shapes, from back to front.
    pub shapes: Vec<Shape>,
}

/// A part of a drawing.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Shape {
    /// A straight line, in the color of a matching.
    Line {
        /// Where it begins.
        from: [f64; 2],
        /// Where it ends.
        to: [f64; 2],
        /// Its width.
        width: f64,
        /// Its color, as `#rrggbb`.
        color: &'static str,
        /// Lengths of dashes and gaps, as in SVG; empty for a solid line.
        dash: &'static str,
        /// The workers that it links; `None` in the legend.
        link: Option<Edge>,
    },
    /// A worker.
    Node {
        /// Its position.
        center: [f64; 2],
        /// Its radius.
        radius: f64,
        /// The width of its outline.
        outline: f64,
        /// The color of its inside, as `#rrggbb`.
        fill: String,
        /// Its number.
        worker: usize,
    },
    /// A line of text.
    Text {
        /// The start of the baseline, or its middle if the text is centered.
        at: [f64; 2],
        /// The size of the font.
        size: f64,
        /// Whether it is centered.
        centered: bool,
        /// Whether it is bold.
        bold: bool,
        /// Its color, as `#rrggbb`.
        color: &'static str,
        /// The text.
        text: String,
        /// The worker whose number it is, if it is one.
        worker: Option<usize>,
    },
}

/// The sizes that all panels of a drawing share.
struct Panels {
    positions: Vec<[f64; 2]>,
    columns: usize,
    size: f64,
    height: f64,
    caption: f64,
    radius: f64,
}

impl Drawing {
    /// Draws a graph, with a color for each matching.
    pub fn new(graph: &Graph, title: &str) -> Self {
        Self::of_panels(graph, title, &[(0..graph.nodes()).collect()])
    }

    /// Draws relabeled copies of a graph side by side.
    ///
    /// ```
    /// use upwash_topology::{Drawing, GraphSpec, paper_relabelings};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let svg = Drawing::of_rotation(&l1, "paper:L1", &paper_relabelings())?.svg();
    /// assert_eq!(svg.matches("<circle ").count(), 3 * 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_rotation(graph: &Graph, title: &str, relabelings: &[Vec<usize>]) -> Result<Self, GraphError> {
        let worker_at = |nodes: &Vec<usize>| crate::graph::inverse(nodes, graph.nodes());
        let panels = relabelings.iter().map(worker_at).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of_panels(graph, title, &panels))
    }

    /// Fills the nodes of workers with colors, as `#rrggbb`.
    #[must_use]
    pub fn with_fills(mut self, color: impl Fn(usize) -> String) -> Self {
        let mut dark = Vec::new();
        for shape in &mut self.shapes {
            match shape {
                Shape::Node { fill, worker, .. } => {
                    *fill = color(*worker);
                    if is_dark(fill) {
                        dark.push(*worker);
                    }
                }
                Shape::Text { color, worker: Some(worker), .. } if dark.contains(worker) => *color = "#ffffff",
                _ => {}
            }
        }
        self
    }

    /// Adds a line of text below the drawing.
    #[must_use]
    pub fn with_caption(mut self, caption: &str) -> Self {
        self.height += 20.0;
        self.text([16.0, self.height - 12.0], 12.0, "#444444", caption.into());
        self
    }

    /// One panel for each of `panels`, which give the worker at each node.
    fn of_panels(graph: &Graph, title: &str, panels: &[Vec<usize>]) -> Self {
        let matchings = graph.matchings();
        let sizes = Panels::new(graph, panels.len());
        let width = sizes.size * sizes.columns as f64;
        let legend_columns = (width / 170.0) as usize;
        let legend_rows = if matchings.len() <= MAX_LEGEND { matchings.len().div_ceil(legend_columns) } else { 1 };
        let rows = panels.len().div_ceil(sizes.columns.max(1));
        let top = HEADER + rows as f64 * (sizes.height + sizes.caption) + 16.0;
        let mut drawing =
            Self { width, height: top + 20.0 * legend_rows as f64, title: title.into(), shapes: Vec::new() };
        drawing.header(graph);
        for (index, workers) in panels.iter().enumerate() {
            drawing.panel(&sizes, index, workers, matchings);
            if panels.len() > 1 {
                drawing.panel_caption(&sizes, index);
            }
        }
        drawing.legend(matchings, top, legend_columns);
        drawing
    }

    fn header(&mut self, graph: &Graph) {
        let counts = [
            count(graph.nodes(), "worker"),
            count(graph.edges().len(), "link"),
            count(graph.matchings().len(), "matching"),
        ];
        let title = Shape::Text {
            at: [16.0, 28.0],
            size: 15.0,
            centered: false,
            bold: true,
            color: INK,
            text: self.title.clone(),
            worker: None,
        };
        self.shapes.push(title);
        self.text([16.0, 46.0], 12.0, "#666666", counts.join(", "));
    }

    fn panel(&mut self, sizes: &Panels, index: usize, workers: &[usize], matchings: &[Vec<Edge>]) {
        let stroke = (sizes.radius / 5.0).clamp(0.6, 2.6);
        for (j, matching) in matchings.iter().enumerate() {
            for &(u, v) in matching {
                let ends = [sizes.at(index, u), sizes.at(index, v)];
                self.line(ends, j, stroke, Some((workers[u], workers[v])));
            }
        }
        for (node, &worker) in workers.iter().enumerate() {
            let (center, radius) = (sizes.at(index, node), sizes.radius);
            let fill = "#ffffff".into();
            self.shapes.push(Shape::Node { center, radius, outline: stroke.min(1.6), fill, worker });
            if radius < SMALLEST_LABELED - 0.5 {
                continue;
            }
            let size = radius * if worker > 99 { 0.8 } else { 1.0 };
            self.shapes.push(Shape::Text {
                at: [center[0], center[1] + 0.36 * size],
                size,
                centered: true,
                bold: false,
                color: INK,
                text: worker.to_string(),
                worker: Some(worker),
            });
        }
    }

    fn panel_caption(&mut self, sizes: &Panels, index: usize) {
        let (row, column) = (index / sizes.columns, index % sizes.columns);
        self.shapes.push(Shape::Text {
            at: [
                sizes.size * (column as f64 + 0.5),
                HEADER + (sizes.height + sizes.caption) * row as f64 + sizes.height + 10.0,
            ],
            size: 13.0,
            centered: true,
            bold: false,
            color: "#444444",
            text: format!("copy {index}"),
            worker: None,
        });
    }

    fn legend(&mut self, matchings: &[Vec<Edge>], top: f64, columns: usize) {
        if matchings.len() > MAX_LEGEND {
            self.text([16.0, top], 12.0, "#666666", "matchings share 24 combinations of color and dash".into());
            return;
        }
        for (j, matching) in matchings.iter().enumerate() {
            let [x, y] = [16.0 + 170.0 * (j % columns) as f64, top + 20.0 * (j / columns) as f64];
            self.line([[x, y], [x + 22.0, y]], j, 2.6, None);
            let text = format!("matching {j} ({})", count(matching.len(), "link"));
            self.text([x + 28.0, y + 4.0], 12.0, "#444444", text);
        }
    }

    fn line(&mut self, [from, to]: [[f64; 2]; 2], matching: usize, width: f64, link: Option<Edge>) {
        let color = COLORS[matching % COLORS.len()];
        let dash = DASHES[matching / COLORS.len() % DASHES.len()];
        self.shapes.push(Shape::Line { from, to, width, color, dash, link });
    }

    fn text(&mut self, at: [f64; 2], size: f64, color: &'static str, text: String) {
        self.shapes.push(Shape::Text { at, size, centered: false, bold: false, color, text, worker: None });
    }

    /// The drawing as SVG. Lines have the workers that they link in `data-link`, circles and numbers their worker in
    /// `data-worker`, so that scripts can find them.
    pub fn svg(&self) -> String {
        let (width, height, title) = (self.width, self.height, escape(&self.title));
        let mut svg = format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="Helvetica, Arial, sans-serif" role="img">
<title>{title}</title>
<rect width="100%" height="100%" fill="#ffffff"/>
"##
        );
        for shape in &self.shapes {
            // Writing to a string cannot fail.
            let _ = shape.write_svg(&mut svg);
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Shape {
    fn write_svg(&self, svg: &mut String) -> std::fmt::Result {
        match self {
            Self::Line { from: [x1, y1], to: [x2, y2], width, color, dash, link } => {
                write!(svg, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}""#)?;
                write!(svg, r#" stroke-width="{width:.1}""#)?;
                if !dash.is_empty() {
                    write!(svg, r#" stroke-dasharray="{dash}""#)?;
                }
                if let Some((a, b)) = link {
                    write!(svg, r#" data-link="{} {}""#, a.min(b), a.max(b))?;
                }
                writeln!(svg, "/>")
            }
            Self::Node { center: [x, y], radius, outline, fill, worker } => {
                write!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius:.1}" fill="{fill}" stroke="{INK}""#)?;
                writeln!(svg, r#" stroke-width="{outline:.1}" data-worker="{worker}"/>"#)
            }
            Self::Text { at: [x, y], size, centered, bold, color, text, worker } => {
                write!(svg, r#"<text x="{x:.1}" y="{y:.1}" font-size="{size:.1}" fill="{color}""#)?;
                if *centered {
                    write!(svg, r#" text-anchor="middle""#)?;
                }
                if *bold {
                    write!(svg, r#" font-weight="bold""#)?;
                }
                if let Some(worker) = worker {
                    write!(svg, r#" data-worker="{worker}""#)?;
                }
                writeln!(svg, ">{}</text>", escape(text))
            }
        }
    }
}

impl Panels {
    fn new(graph: &Graph, count: usize) -> Self {
        let positions = layout(graph);
        // Make the panel large enough that the closest nodes do not touch, within limits.
        let closest = smallest_distance(&positions);
        let ideal = 2.4 * SMALLEST_LABELED / closest.max(1e-3) + 2.0 * MARGIN;
        let size = ideal.clamp(360.0, if graph.nodes() > 200 { 900.0 } else { 1200.0 });
        // A flat graph (such as a path) does not need a square panel.
        let from_middle = positions.iter().map(|position| (position[1] - 0.5).abs());
        let height_used = 2.0 * from_middle.fold(0.0, f64::max);
        let inner = size - 2.0 * MARGIN;
        Self {
            columns: count.min(4),
            size,
            height: (height_used * inner + 2.0 * MARGIN).max(120.0),
            caption: if count > 1 { 22.0 } else { 0.0 },
            radius: (0.4 * closest * inner).clamp(1.5, 15.0),
            positions,
        }
    }

    /// Where a node of a panel is.
    fn at(&self, panel: usize, node: usize) -> [f64; 2] {
        let (row, column) = (panel / self.columns, panel % self.columns);
        let ([x, y], inner) = (self.positions[node], self.size - 2.0 * MARGIN);
        [
            self.size * column as f64 + MARGIN + x * inner,
            HEADER + (self.height + self.caption) * row as f64 + self.height / 2.0 + (y - 0.5) * inner,
        ]
    }
}

/// Whether white text is easier to read on this color, `#rrggbb`, than black text.
fn is_dark(color: &str) -> bool {
    let channel =
        |at: usize| f64::from(color.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(255));
    0.299 * channel(1) + 0.587 * channel(3) + 0.114 * channel(5) < 128.0
}

/// Formats a count with its noun: `1 link`, `2 links`.
fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Returns the smallest distance between two nodes.
fn smallest_distance(positions: &[[f64; 2]]) -> f64 {
    let distance =
        |(i, j): (usize, usize)| (positions[i][0] - positions[j][0]).hypot(positions[i][1] - positions[j][1]);
    let pairs = (0..positions.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
    pairs.map(distance).fold(1.0, f64::min)
}

/// Escapes text for SVG and replaces control characters, which SVG does not allow.
fn escape(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
