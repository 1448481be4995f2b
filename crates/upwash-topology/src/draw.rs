//! Drawings of graphs, as SVG.

use crate::{Graph, GraphError, layout};
use std::fmt::Write;

/// The color-blind-safe palette of Okabe and Ito, without black and yellow.
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];
/// Dash patterns. Matchings beyond the sixth repeat the colors with another pattern.
const DASHES: [&str; 4] = ["", "7 4", "2 4", "10 3 2 3"];
/// The smallest radius of a node that is labeled with its worker's number.
const SMALLEST_LABELED: f64 = 8.0;
/// The largest number of matchings for which a legend is drawn.
const MAX_LEGEND: usize = 12;

/// Draws the graph as SVG, with its matchings in colors.
///
/// ```
/// use upwash_topology::{GraphSpec, draw};
/// let svg = draw(&"paper:L1".parse::<GraphSpec>()?.build()?, "paper:L1");
/// assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
/// assert_eq!(svg.matches("<line ").count(), 12 + 5); // the links, and five in the legend
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
pub fn draw(graph: &Graph, title: &str) -> String {
    let labels: Vec<usize> = (0..graph.nodes()).collect();
    picture(graph, title, &[labels])
}

/// Draws relabeled copies of the graph side by side: same shape, different worker numbers.
///
/// ```
/// use upwash_topology::{GraphSpec, draw_rotation, paper_relabelings};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let svg = draw_rotation(&l1, "paper:L1", &paper_relabelings())?;
/// assert_eq!(svg.matches("<circle ").count(), 3 * 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn draw_rotation(graph: &Graph, title: &str, relabelings: &[Vec<usize>]) -> Result<String, GraphError> {
    let worker_at = |relabeling: &Vec<usize>| crate::graph::inverse(relabeling, graph.nodes());
    let labels = relabelings.iter().map(worker_at).collect::<Result<Vec<_>, _>>()?;
    Ok(picture(graph, title, &labels))
}

/// Draws one panel for each of `copies`, which give the worker at each node.
fn picture(graph: &Graph, title: &str, copies: &[Vec<usize>]) -> String {
    let n = graph.nodes();
    let matchings = graph.matchings();
    let positions = layout(graph);
    // Make the panel large enough that the closest nodes do not touch, within limits.
    let closest = smallest_distance(&positions);
    let ideal = 2.4 * SMALLEST_LABELED / closest.max(1e-3) + 68.0;
    let panel = ideal.clamp(360.0, if n > 200 { 900.0 } else { 1200.0 });
    let (margin, header) = (34.0, 56.0);
    let columns = copies.len().min(4);
    let rows = copies.len().div_ceil(columns.max(1));
    // A flat graph (such as a path) does not need a square panel.
    let from_middle = positions.iter().map(|position| (position[1] - 0.5).abs());
    let height_used = 2.0 * from_middle.fold(0.0, f64::max);
    let inner = panel - 2.0 * margin;
    let panel_height = (height_used * inner + 2.0 * margin).max(120.0);
    let legend_columns = (panel * columns as f64 / 170.0) as usize;
    let legend_rows = if matchings.len() <= MAX_LEGEND { matchings.len().div_ceil(legend_columns) } else { 1 };
    let caption = if copies.len() > 1 { 22.0 } else { 0.0 };
    let width = panel * columns as f64;
    let height = header + rows as f64 * (panel_height + caption) + 20.0 * legend_rows as f64 + 16.0;
    let radius = (0.4 * closest * inner).clamp(1.5, 15.0);
    let stroke = (radius / 5.0).clamp(0.6, 2.6);

    let mut svg = String::new();
    // Writing to a string cannot fail.
    let out = &mut svg;
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="Helvetica, Arial, sans-serif" role="img">
<title>{}</title>
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="16" y="28" font-size="15" font-weight="bold" fill="#222222">{}</text>
<text x="16" y="46" font-size="12" fill="#666666">{}, {}, {}</text>"##,
        escape(title),
        escape(title),
        count(n, "worker"),
        count(graph.edges().len(), "link"),
        count(matchings.len(), "matching"),
    );
    for (index, workers) in copies.iter().enumerate() {
        let (row, column) = (index / columns, index % columns);
        let at = |node: usize| {
            let [x, y] = positions[node];
            (
                panel * column as f64 + margin + x * inner,
                header + (panel_height + caption) * row as f64 + panel_height / 2.0 + (y - 0.5) * inner,
            )
        };
        for (j, matching) in matchings.iter().enumerate() {
            for &(u, v) in matching {
                let ((x1, y1), (x2, y2)) = (at(u), at(v));
                line(out, [x1, y1, x2, y2], j, stroke);
            }
        }
        for (node, &worker) in workers.iter().enumerate() {
            circle(out, at(node), worker, radius, stroke);
        }
        if copies.len() > 1 {
            let _ = writeln!(
                out,
                r##"<text x="{:.0}" y="{:.0}" font-size="13" text-anchor="middle" fill="#444444">copy {index}</text>"##,
                panel * (column as f64 + 0.5),
                header + (panel_height + caption) * row as f64 + panel_height + 10.0
            );
        }
    }
    legend(out, matchings, height - 20.0 * legend_rows as f64, legend_columns);
    svg.push_str("</svg>\n");
    svg
}

/// Draws a node, with its worker's number if there is room.
fn circle(out: &mut String, (x, y): (f64, f64), worker: usize, radius: f64, stroke: f64) {
    let _ = writeln!(
        out,
        r##"<circle cx="{x:.1}" cy="{y:.1}" r="{radius:.1}" fill="#ffffff" stroke="#222222" stroke-width="{:.1}"/>"##,
        stroke.min(1.6)
    );
    if radius >= SMALLEST_LABELED - 0.5 {
        let size = radius * if worker > 99 { 0.8 } else { 1.0 };
        let _ = writeln!(
            out,
            r##"<text x="{x:.1}" y="{:.1}" font-size="{size:.1}" text-anchor="middle" fill="#222222">{worker}</text>"##,
            y + 0.36 * size
        );
    }
}

fn legend(out: &mut String, matchings: &[Vec<crate::Edge>], top: f64, columns: usize) {
    if matchings.len() > MAX_LEGEND {
        let _ = writeln!(
            out,
            r##"<text x="16" y="{top:.0}" font-size="12" fill="#666666">matchings share 24 combinations of color and dash</text>"##
        );
        return;
    }
    for (j, matching) in matchings.iter().enumerate() {
        let (x, y) = (16.0 + 170.0 * (j % columns) as f64, top + 20.0 * (j / columns) as f64);
        line(out, [x, y, x + 22.0, y], j, 2.6);
        let links = if matching.len() == 1 { "link" } else { "links" };
        let _ = writeln!(
            out,
            r##"<text x="{:.0}" y="{:.0}" font-size="12" fill="#444444">matching {j} ({} {links})</text>"##,
            x + 28.0,
            y + 4.0,
            matching.len()
        );
    }
}

fn line(out: &mut String, [x1, y1, x2, y2]: [f64; 4], matching: usize, stroke: f64) {
    let color = COLORS[matching % COLORS.len()];
    let dash = DASHES[matching / COLORS.len() % DASHES.len()];
    let dash = if dash.is_empty() { String::new() } else { format!(r#" stroke-dasharray="{dash}""#) };
    let _ = writeln!(
        out,
        r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}" stroke-width="{stroke:.1}"{dash}/>"#
    );
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
