//! The page: one file that needs nothing else.

use crate::Run;

const TEMPLATE: &str = include_str!("../assets/page.html");
const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");
/// Apache ECharts, as it was published.
const CHARTS: &str = include_str!("../assets/echarts.min.js");

/// Points of a line: more would not be seen.
const POINTS: usize = 400;

/// A page with these runs side by side.
pub fn page(runs: &[Run]) -> String {
    let thinned: Vec<Run> = runs.iter().map(thinned).collect();
    // Within a script nothing may look like a tag, whatever a run is called.
    let data = serde_json::to_string(&thinned).unwrap_or_else(|_| "[]".into());
    let data = data.replace('<', "\\u003c");
    let title = runs
        .iter()
        .map(|run| run.name.as_str())
        .collect::<Vec<_>>()
        .join(", ");
    let mut page = String::with_capacity(CHARTS.len() + data.len() + 64 * 1024);
    let mut rest = TEMPLATE;
    // What is put in is not looked at again: it may hold anything.
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let Some((name, after)) = after.split_once("}}") else {
            break;
        };
        page.push_str(match name {
            "style" => STYLE,
            "script" => SCRIPT,
            "charts" => CHARTS,
            "data" => &data,
            _ => "",
        });
        if name == "title" {
            page.push_str(&escaped(&title));
        }
        rest = after;
    }
    page.push_str(rest);
    page
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// At most so many epochs, the last among them, and all in which models were tested while those are few enough.
fn thinned(run: &Run) -> Run {
    let mut run = run.clone();
    let count = run.epochs.len();
    if count > POINTS {
        let step = count.div_ceil(POINTS);
        let tested = run
            .epochs
            .iter()
            .filter(|epoch| epoch.accuracies.is_some())
            .count();
        let mut place = 0;
        run.epochs.retain(|epoch| {
            place += 1;
            place % step == 0 || place == count || (tested <= POINTS && epoch.accuracies.is_some())
        });
    }
    run
}
