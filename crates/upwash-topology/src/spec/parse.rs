//! Parses graph specifications, with a specific message for each mistake.

use super::kinds::KINDS;
use super::{GraphKind, GraphSpec, RandomOptions, SpecError};
use crate::graph::{MAX_EDGES, MAX_NODES};
use crate::paper;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

impl FromStr for GraphSpec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let (name, rest) = spec.split_once(':').unwrap_or((spec, ""));
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let distance = |kind: &&GraphKind| strsim::damerau_levenshtein(kind.name, name);
            let nearest = KINDS.iter().min_by_key(distance).filter(|kind| distance(kind) <= 3);
            return Err(SpecError::UnknownName {
                spec: spec.into(),
                name: name.into(),
                nearest: nearest.map(|kind| kind.name),
            });
        };
        parse(kind.name, rest).map_err(|problem| SpecError::Syntax {
            spec: spec.into(),
            problem,
            syntax: kind.syntax,
            example: kind.example,
        })
    }
}

/// Parses the part after the colon. This function makes the checks whose message can refer to the syntax;
/// [`Graph::new`](crate::Graph::new) makes the others.
fn parse(name: &str, rest: &str) -> Result<GraphSpec, String> {
    if name == "file" || name == "matchings" {
        return file_spec(name, rest);
    }
    if name == "paper" {
        return paper_spec(rest);
    }

    let mut options = Options::split(rest)?;
    let size = options.size.clone();
    let spec = match name {
        "ring" => GraphSpec::Ring(worker_count(2, &size)?),
        "path" => GraphSpec::Path(worker_count(1, &size)?),
        "star" => GraphSpec::Star(worker_count(2, &size)?),
        "complete" => {
            let n = worker_count(1, &size)?;
            check_link_count(n * (n - 1) / 2)?;
            GraphSpec::Complete(n)
        }
        "grid" => sides(&size, 1).map(|(rows, columns)| GraphSpec::Grid(rows, columns))?,
        "torus" => sides(&size, 2).map(|(rows, columns)| GraphSpec::Torus(rows, columns))?,
        "hypercube" => match worker_count(2, &size)? {
            n if n.is_power_of_two() => GraphSpec::Hypercube(n),
            n => {
                let below = 1usize << n.ilog2();
                let near = format!("{below} or {}", below.saturating_mul(2));
                return Err(format!("{n} is not a power of two (the nearest are {near})"));
            }
        },
        "exponential" => GraphSpec::Exponential(worker_count(2, &size)?),
        "erdos-renyi" => {
            let p = options.take("p")?;
            if !(p > 0.0 && p <= 1.0) {
                return Err(format!("p={p} is out of range: p must be above 0 and at most 1"));
            }
            GraphSpec::ErdosRenyi(options.random(worker_count(1, &size)?)?, p)
        }
        "geometric" => {
            let radius: f64 = options.take("radius")?;
            if !(radius > 0.0 && radius.is_finite()) {
                return Err(format!("radius={radius} is out of range: the radius must be above 0 and finite"));
            }
            GraphSpec::Geometric(options.random(worker_count(1, &size)?)?, radius)
        }
        "regular" => {
            let (n, degree): (_, usize) = (worker_count(2, &size)?, options.take("degree")?);
            if degree == 0 || degree >= n {
                return Err(format!("degree={degree} is not between 1 and {}", n - 1));
            }
            if n % 2 == 1 && degree % 2 == 1 {
                return Err(format!("{n} workers cannot all have {degree} links: make one of the two numbers even"));
            }
            check_link_count(n * degree / 2)?;
            GraphSpec::Regular(options.random(n)?, degree)
        }
        _ => {
            let (n, links): (_, usize) = (worker_count(2, &size)?, options.take("links")?);
            if links == 0 || links >= n {
                return Err(format!("links={links} is not between 1 and {}", n - 1));
            }
            check_link_count(n * links)?;
            GraphSpec::BarabasiAlbert(options.random(n)?, links)
        }
    };
    options.finish()?;
    Ok(spec)
}

fn file_spec(name: &str, rest: &str) -> Result<GraphSpec, String> {
    let (path, nodes) = match rest.rsplit_once(",nodes=") {
        Some((path, count)) => (path, Some(worker_count(1, count)?)),
        None => (rest, None),
    };
    if path.is_empty() {
        return Err("the path is missing".into());
    }
    let path = PathBuf::from(path);
    Ok(match name {
        "file" => GraphSpec::File(path, nodes),
        _ => GraphSpec::Matchings(path, nodes),
    })
}

fn paper_spec(rest: &str) -> Result<GraphSpec, String> {
    let (graph, links) = rest.split_once('@').unwrap_or((rest, "13"));
    let which = ["L1", "L2", "L3"].iter().position(|&known| known == graph);
    let which = which.ok_or_else(|| format!("the paper's graphs are L1, L2 and L3, not `{graph}`"))? + 1;
    let links = number(links, "the number of links")?;
    if !paper::SIZES.iter().any(|&(label, _)| label == links) {
        return Err(format!("the paper's numbers of links are 13, 11, 9, 7 and 5, not {links}"));
    }
    Ok(GraphSpec::Paper(which, links))
}

/// The size, and the options `key=value` or `key` that follow it.
struct Options<'a> {
    size: String,
    given: BTreeMap<&'a str, &'a str>,
}

impl<'a> Options<'a> {
    fn split(rest: &'a str) -> Result<Self, String> {
        let mut parts = rest.split(',');
        let size = parts.next().unwrap_or("").to_string();
        if size.is_empty() {
            return Err("the size is missing".into());
        }
        let mut given = BTreeMap::new();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if given.insert(key, value).is_some() {
                return Err(format!("`{key}` is given twice"));
            }
        }
        Ok(Self { size, given })
    }

    fn take<T: FromStr>(&mut self, key: &str) -> Result<T, String> {
        let value = self.given.remove(key).ok_or_else(|| format!("`{key}=` is missing"))?;
        number(value, key)
    }

    fn random(&mut self, nodes: usize) -> Result<RandomOptions, String> {
        let seed = if self.given.contains_key("seed") { self.take("seed")? } else { 0 };
        let connected = match self.given.remove("connected") {
            None => false,
            Some("") => true,
            Some(value) => return Err(format!("`connected={value}`: write `connected` alone, without a value")),
        };
        Ok(RandomOptions { nodes, seed, connected })
    }

    fn finish(self) -> Result<(), String> {
        match self.given.keys().next() {
            Some(unknown) => Err(format!("unknown option `{unknown}`")),
            None => Ok(()),
        }
    }
}

fn number<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{what}: `{text}` is not a number or is out of range"))
}

fn worker_count(least: usize, size: &str) -> Result<usize, String> {
    let n = number(size, "the number of workers")?;
    if n < least {
        return Err(format!("{n} workers are too few: at least {least} are needed"));
    }
    // Check before anything is allocated, so that a mistyped size does not exhaust memory.
    if n > MAX_NODES {
        return Err(format!("{n} workers are too many: at most {MAX_NODES} are supported"));
    }
    Ok(n)
}

fn check_link_count(links: usize) -> Result<(), String> {
    if links > MAX_EDGES {
        return Err(format!("{links} links are too many: at most {MAX_EDGES} are supported"));
    }
    Ok(())
}

fn sides(size: &str, least: usize) -> Result<(usize, usize), String> {
    let (rows, columns) = size.split_once('x').ok_or_else(|| format!("`{size}` is not ROWSxCOLUMNS, such as 4x4"))?;
    let side = |text| {
        let side: usize = number(text, "a side")?;
        if side < least { Err(format!("a side of {side} is too short: use at least {least}")) } else { Ok(side) }
    };
    let (rows, columns) = (side(rows)?, side(columns)?);
    let workers = rows.saturating_mul(columns);
    worker_count(1, &workers.to_string())?;
    Ok((rows, columns))
}
