//! Tests of the named graphs, their syntax and their error messages.

#![allow(clippy::unwrap_used)]

use upwash_topology::{Graph, GraphKind, GraphSpec, Spectrum};

fn graph(spec: &str) -> Graph {
    spec.parse::<GraphSpec>().unwrap_or_else(|error| panic!("{error}")).build().unwrap()
}

#[test]
fn every_kind_has_the_expected_shape() {
    for (spec, nodes, edges, degrees) in [
        ("ring:8", 8, 8, 2..=2),
        ("ring:2", 2, 1, 1..=1),
        ("path:5", 5, 4, 1..=2),
        ("path:1", 1, 0, 0..=0),
        ("star:6", 6, 5, 1..=5),
        ("complete:7", 7, 21, 6..=6),
        ("grid:3x4", 12, 17, 2..=4),
        ("grid:1x5", 5, 4, 1..=2),
        ("torus:4x5", 20, 40, 4..=4),
        ("torus:2x4", 8, 12, 3..=3),
        ("hypercube:16", 16, 32, 4..=4),
        ("exponential:8", 8, 20, 5..=5),
        ("regular:10,degree=3,seed=1", 10, 15, 3..=3),
        ("regular:100,degree=98", 100, 4900, 98..=98),
        ("regular:60,degree=50,seed=2", 60, 1500, 50..=50),
        ("barabasi-albert:20,links=1", 20, 19, 1..=19),
        ("barabasi-albert:20,links=3", 20, 3 + 16 * 3, 1..=19),
    ] {
        let graph = graph(spec);
        assert_eq!((graph.nodes(), graph.edges().len()), (nodes, edges), "{spec}");
        assert!(graph.degrees().iter().all(|degree| degrees.contains(degree)), "{spec}");
        assert!(graph.is_connected(), "{spec}");
    }
}

#[test]
fn spectra_match_closed_forms() {
    // Hypercube: 2k, with binomial multiplicities. Complete: n. Star: 0, 1, ..., 1, n.
    let values = |spec| Spectrum::of(&graph(spec)).values().to_vec();
    let close = |left: &[f64], right: &[f64]| {
        assert_eq!(left.len(), right.len());
        left.iter().zip(right).for_each(|(x, y)| assert!((x - y).abs() < 1e-9, "{left:?}"));
    };
    close(&values("hypercube:8"), &[0.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 6.0]);
    close(&values("complete:4"), &[0.0, 4.0, 4.0, 4.0]);
    close(&values("star:5"), &[0.0, 1.0, 1.0, 1.0, 5.0]);
}

#[test]
fn number_of_matchings_is_minimal() {
    // Bipartite graphs (König) and complete graphs (round-robin tournament); an odd ring needs three.
    for (spec, matchings) in [
        ("ring:8", 2),
        ("ring:7", 3),
        ("torus:4x4", 4),
        ("hypercube:32", 5),
        ("star:9", 8),
        ("complete:8", 7),
        ("complete:9", 9),
        ("paper:L1", 5),
    ] {
        assert_eq!(graph(spec).matchings().len(), matchings, "{spec}");
    }
}

#[test]
fn graph_of_a_seed_never_changes() {
    assert_eq!(graph("erdos-renyi:8,p=0.3,seed=7").edges(), ERDOS_RENYI);
    assert_eq!(graph("regular:8,degree=3,seed=7").edges(), REGULAR);
    assert_eq!(graph("barabasi-albert:8,links=2,seed=7").edges(), BARABASI_ALBERT);
    assert_eq!(graph("geometric:8,radius=0.4,seed=7").edges(), GEOMETRIC);
    assert_ne!(graph("erdos-renyi:8,p=0.3,seed=8").edges(), ERDOS_RENYI);
}
const ERDOS_RENYI: &[(usize, usize)] = &[(0, 3), (0, 5), (0, 6), (2, 7), (3, 4)];
const REGULAR: &[(usize, usize)] =
    &[(0, 4), (0, 5), (0, 7), (1, 3), (1, 4), (1, 6), (2, 3), (2, 5), (2, 6), (3, 5), (4, 7), (6, 7)];
const BARABASI_ALBERT: &[(usize, usize)] =
    &[(0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (2, 3), (2, 5), (3, 4), (4, 6), (5, 6), (5, 7), (6, 7)];
const GEOMETRIC: &[(usize, usize)] = &[(0, 5), (1, 2), (1, 6), (2, 6), (3, 4), (3, 5), (3, 6), (4, 6), (5, 7)];

#[test]
fn random_graphs_are_connected_on_request() {
    assert!((0..20).any(|s| !graph(&format!("erdos-renyi:16,p=0.12,seed={s}")).is_connected()));
    for seed in 0..20 {
        assert!(graph(&format!("erdos-renyi:16,p=0.12,seed={seed},connected")).is_connected());
        assert!(graph(&format!("geometric:16,radius=0.3,seed={seed},connected")).is_connected());
    }
    let never = "erdos-renyi:64,p=0.001,connected".parse::<GraphSpec>().unwrap().build();
    assert!(never.unwrap_err().to_string().contains("none of 1000 draws was connected"));
}

#[test]
fn random_graphs_have_the_expected_density() {
    let mean = |spec: &dyn Fn(u64) -> String| {
        (0..200).map(|seed| graph(&spec(seed)).edges().len()).sum::<usize>() as f64 / 200.0
    };
    let erdos = mean(&|seed| format!("erdos-renyi:20,p=0.3,seed={seed}"));
    assert!((erdos - 57.0).abs() < 2.0, "{erdos}"); // 190 pairs
    // All pairs of a random 3-regular graph on 6 nodes are equally likely to be linked: 9 links in 15 pairs.
    let pair = (0..600).filter(|seed| graph(&format!("regular:6,degree=3,seed={seed}")).edges().contains(&(1, 4)));
    assert!((300..420).contains(&pair.count()));
}

#[test]
fn specifications_survive_the_round_trip() {
    for kind in GraphKind::all() {
        let spec: GraphSpec = kind.example.parse().unwrap();
        assert_eq!(spec.to_string(), kind.example);
        assert_eq!(spec, spec.to_string().parse().unwrap());
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(json, format!("\"{}\"", kind.example));
        assert_eq!(serde_json::from_str::<GraphSpec>(&json).unwrap(), spec);
    }
    let spec: GraphSpec = "file:a,b.txt,nodes=4".parse().unwrap();
    assert_eq!(spec, GraphSpec::File("a,b.txt".into(), Some(4)));
}

#[test]
fn invalid_specifications_have_helpful_messages() {
    for (spec, message) in [
        ("rign:8", "did you mean `ring`?"),
        ("", "unknown kind ``"),
        ("ring", "the size is missing"),
        ("ring:x", "`x` is not a number"),
        ("ring:-3", "`-3` is not a number"),
        ("ring:1", "at least 2"),
        ("ring:99999999", "too many"),
        ("ring:8,seed=1", "unknown option `seed`"),
        ("torus:1x8", "a side of 1 is too short: use at least 2"),
        ("torus:16", "not ROWSxCOLUMNS"),
        ("torus:1000x1000", "too many"),
        ("complete:60000", "links are too many"),
        ("hypercube:12", "the nearest are 8 or 16"),
        ("erdos-renyi:8", "`p=` is missing"),
        ("erdos-renyi:8,p=0", "p=0 is out of range: p must be above 0"),
        ("erdos-renyi:8,p=nan", "must be above 0"),
        ("erdos-renyi:8,p=0.3,p=0.4", "`p` is given twice"),
        ("erdos-renyi:8,p=0.3,connected=yes", "write `connected` alone"),
        ("regular:7,degree=3", "make one of the two numbers even"),
        ("regular:8,degree=8", "not between 1 and 7"),
        ("barabasi-albert:8,links=0", "not between 1 and 7"),
        ("paper:L4", "not `L4`"),
        ("paper:L1@12", "not 12"),
        ("file:", "the path is missing"),
        ("file:x,nodes=0", "at least 1"),
    ] {
        let error = spec.parse::<GraphSpec>().unwrap_err().to_string();
        assert!(error.contains(message), "{spec}: {error}");
        assert!(error.contains(&format!("`{spec}`")), "{spec}: {error}");
    }
}

#[test]
fn files_are_read_relative_to_the_given_folder() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("good.txt", b"# square\n0 1\n1 2\n2 3\n3 0\n");
    write("bom.txt", "\u{feff}0 1\n".as_bytes());
    write("binary.txt", &[0, 159, 146, 150]);
    write("zeros.txt", b"0 1\0");
    write("loop.txt", b"0 1\n2 2\n");
    let build = |name: &str| format!("file:{name}").parse::<GraphSpec>().unwrap().located_in(folder.path()).build();
    assert_eq!(build("good.txt").unwrap().edges().len(), 4);
    assert_eq!(build("bom.txt").unwrap().edges().len(), 1);
    for (name, message) in [
        ("good.txt,nodes=3", "good.txt, line 4: node 3 is out of range"),
        ("missing.txt", "cannot read"),
        ("binary.txt", "not a text file"),
        ("zeros.txt", "not a text file"),
        ("loop.txt", "loop.txt, line 2: node 2 is linked to itself"),
        (".", "cannot read"),
    ] {
        let error = build(name).unwrap_err().to_string();
        assert!(error.contains(message), "{name}: {error}");
    }
}

#[test]
fn specifications_made_in_code_are_checked_like_parsed_ones() {
    for spec in [
        GraphSpec::Star(0),
        GraphSpec::Hypercube(0),
        GraphSpec::Hypercube(12),
        GraphSpec::Torus(1, 5),
        GraphSpec::Paper(9, 13),
        GraphSpec::Paper(1, 12),
        GraphSpec::Complete(1 << 20),
    ] {
        assert!(spec.build().is_err(), "{spec}");
    }
}

#[test]
fn invalid_links_matchings_and_relabelings_are_rejected() {
    let error = |nodes, edges: &[(usize, usize)]| Graph::new(nodes, edges.iter().copied()).unwrap_err().to_string();
    assert!(error(0, &[]).contains("no nodes"));
    assert!(error(3, &[(1, 1)]).contains("node 1 is linked to itself"));
    assert!(error(3, &[(0, 1), (1, 0)]).contains("0 and 1 are linked twice"));
    assert!(error(3, &[(0, 3)]).contains("node 3 is out of range"));
    let twice = Graph::from_matchings(3, [vec![(0, 1), (1, 2)]]).unwrap_err();
    assert!(twice.to_string().contains("matching 0 uses node 1 twice"));
    assert!(Graph::new(3, []).unwrap().relabeled(&[0, 0, 1]).is_err());
    assert!(Graph::new(3, []).unwrap().relabeled(&[0, 1]).is_err());
}
