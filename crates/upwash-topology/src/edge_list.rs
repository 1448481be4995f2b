//! Parsers for graphs in text files.
//!
//! An edge list has one link per line, `u v`. A list of matchings has one matching per line, `u-v u-v ...`. In both,
//! `#` starts a comment. Nodes are numbered from 0. Unless the number of nodes is given, every number up to the largest
//! must occur: a file that counts from 1 would otherwise get an isolated worker 0.

use crate::graph::{MAX_EDGES, MAX_NODES};
use crate::{Edge, Graph, GraphError, Matching};

/// An error in a file, with its line counted from 1 (0 for the file as a whole).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Problem {
    fn at(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// Returns the nonempty lines with their numbers, without comments.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split('#').next().unwrap_or("").trim()))
        .filter(|(_, line)| !line.is_empty())
}

/// Parses a graph from lines of `u v`.
pub(crate) fn edges(text: &str, nodes: Option<usize>) -> Result<Graph, Problem> {
    let mut links = Links::new(nodes);
    let mut edges = Vec::new();
    for (line, content) in lines(text) {
        let fields: Vec<&str> = content.split_whitespace().collect();
        let [u, v] = fields[..] else {
            return Err(Problem::at(
                line,
                format!(
                    "expected two node numbers, found {} in `{}`: write one link per line, such as `0 1`",
                    fields.len(),
                    shorten(content)
                ),
            ));
        };
        edges.push(links.add(line, u, v)?);
    }
    Graph::new(links.count()?, edges).map_err(|error| Problem::at(0, error.to_string()))
}

/// Parses a graph from lines of `u-v u-v ...`, one matching per line.
pub(crate) fn matchings(text: &str, nodes: Option<usize>) -> Result<Graph, Problem> {
    let mut links = Links::new(nodes);
    let mut matchings: Vec<Matching> = Vec::new();
    let mut matching_lines = Vec::new();
    for (line, content) in lines(text) {
        let matching = content.split_whitespace().map(|pair| match pair.split_once('-') {
            Some((u, v)) => links.add(line, u, v),
            None => Err(Problem::at(
                line,
                format!("`{}` is not a link: write `0-1`, with spaces between links", shorten(pair)),
            )),
        });
        matchings.push(matching.collect::<Result<_, _>>()?);
        matching_lines.push(line);
    }
    Graph::from_matchings(links.count()?, matchings).map_err(|error| {
        let line = match error {
            GraphError::NotAMatching { matching, .. } => matching_lines[matching],
            _ => 0,
        };
        Problem::at(line, error.to_string())
    })
}

/// Validates links as they are read, so that an error can name the line.
struct Links {
    nodes: Option<usize>,
    seen: std::collections::BTreeMap<Edge, usize>,
}

impl Links {
    fn new(nodes: Option<usize>) -> Self {
        Self { nodes, seen: Default::default() }
    }

    fn add(&mut self, line: usize, u: &str, v: &str) -> Result<Edge, Problem> {
        let (u, v) = (self.node(line, u)?, self.node(line, v)?);
        let edge = (u.min(v), u.max(v));
        if u == v {
            return Err(Problem::at(line, GraphError::SelfLoop { node: u }.to_string()));
        }
        if let Some(first) = self.seen.insert(edge, line) {
            let error = GraphError::DuplicateEdge { u: edge.0, v: edge.1 };
            return Err(Problem::at(line, format!("{error} (first in line {first})")));
        }
        if self.seen.len() > MAX_EDGES {
            return Err(Problem::at(line, format!("too many links: at most {MAX_EDGES} are supported")));
        }
        Ok(edge)
    }

    fn node(&self, line: usize, text: &str) -> Result<usize, Problem> {
        let node: usize = text.parse().map_err(|_| {
            Problem::at(line, format!("`{}` is not a node number: nodes are 0, 1, 2, ...", shorten(text)))
        })?;
        match self.nodes {
            Some(nodes) if node >= nodes => Err(Problem::at(line, GraphError::OutOfRange { node, nodes }.to_string())),
            None if node >= MAX_NODES => Err(Problem::at(
                line,
                format!("node number {node} is too large: at most {} is supported", MAX_NODES - 1),
            )),
            _ => Ok(node),
        }
    }

    /// Returns the number of nodes. Call it after every link has been read.
    fn count(&self) -> Result<usize, Problem> {
        if self.seen.is_empty() {
            return Err(Problem::at(0, "the file has no links: write one link per line, such as `0 1`"));
        }
        if let Some(nodes) = self.nodes {
            return Ok(nodes);
        }
        let largest = self.seen.keys().map(|&(_, v)| v).max().unwrap_or(0);
        let mut linked = vec![false; largest + 1];
        self.seen.keys().for_each(|&(u, v)| {
            linked[u] = true;
            linked[v] = true;
        });
        match linked.iter().position(|&is_linked| !is_linked) {
            Some(missing) => Err(Problem::at(
                0,
                format!(
                    "no link has node {missing}, but one has node {largest}: number the nodes from 0 \
                     without gaps, or add `,nodes={}` if that worker is meant to be isolated",
                    largest + 1
                ),
            )),
            None => Ok(largest + 1),
        }
    }
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(24).flat_map(char::escape_default).collect();
    if text.chars().count() > 24 {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_links_with_comments_and_blank_lines() {
        let graph = edges("# a path\n0 1\n\n 2\t1 # the other half\n", None).unwrap();
        assert_eq!(graph.edges(), [(0, 1), (1, 2)]);
    }

    #[test]
    fn keeps_the_matchings_of_the_file() {
        let graph = matchings("0-1 3-2\n1-2 # bridge\n", None).unwrap();
        assert_eq!(graph.matchings(), [vec![(0, 1), (2, 3)], vec![(1, 2)]]);
    }

    #[test]
    fn errors_name_the_line() {
        let cases: [(&str, usize, &str); 9] = [
            ("0 1\n1 1\n", 2, "linked to itself"),
            ("0 1\n\n1 0\n", 3, "linked twice: keep one of the two (first in line 1)"),
            ("0 1\n0 x\n", 2, "`x` is not a node number"),
            ("0 1\n0 -1\n", 2, "`-1` is not a node number"),
            ("0 1 0.5\n", 1, "found 3 in `0 1 0.5`"),
            ("0 99999999999999999999\n", 1, "is not a node number"),
            ("0 4294967295\n", 1, "too large"),
            ("# nothing\n", 0, "the file has no links"),
            ("1 2\n2 3\n", 0, "no link has node 0"),
        ];
        for (text, line, message) in cases {
            let problem = edges(text, None).unwrap_err();
            assert_eq!(problem.line, line, "{text:?}: {problem:?}");
            assert!(problem.message.contains(message), "{text:?}: {problem:?}");
        }
        assert_eq!(edges("0 1\n0 4\n", Some(4)).unwrap_err().line, 2);
        assert_eq!(matchings("0-1\n\n0-2 2-3\n", None).unwrap_err().line, 3);
        assert_eq!(matchings("0-1\n2\n", None).unwrap_err().line, 2);
    }

    #[test]
    fn isolated_workers_are_allowed_if_the_number_of_nodes_is_given() {
        assert_eq!(edges("1 2\n", Some(4)).unwrap().degrees(), [0, 1, 1, 0]);
    }
}
