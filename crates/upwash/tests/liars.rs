//! One liar among the workers: its neighbors clip what it sends.
//!
//! The liar is an algorithm that wraps another one, in one process: it changes what worker [`LIAR`] sends, and the liar
//! itself trains alone. The task is far from saturated, so that any round without progress shows.
#![allow(clippy::unwrap_used)]

use upwash::algorithm::{Algorithm, Definition, LocalView, Method, Options, Outgoing, Plan, Registry, WorkerStats};
use upwash::config::ConfigError;
use upwash::experiment::{DataPaths, Experiment};
use upwash::{Config, Trainer};

const LIAR: usize = 3;

/// What the liar sends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// Its model times a factor.
    Times(f64),
    /// To every receiver, the receiver's model mirrored at the liar's: 2 x receiver - model.
    Mirrored,
    /// Its model, with a claimed loss of 0.
    Claim,
}

const LIES: [(&str, Lie); 6] = [
    ("none", Lie::Times(1.0)),
    ("-1", Lie::Times(-1.0)),
    ("3", Lie::Times(3.0)),
    ("1e6", Lie::Times(1e6)),
    ("mirrored", Lie::Mirrored),
    ("claim", Lie::Claim),
];

/// An algorithm among whose workers is a liar.
#[derive(Debug)]
struct WithLiar {
    base: Box<dyn Algorithm>,
    lie: Lie,
}

impl Algorithm for WithLiar {
    fn base(&self) -> Option<&dyn Algorithm> {
        Some(&*self.base)
    }

    fn supports_clipping(&self) -> bool {
        self.base.supports_clipping()
    }

    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        let mut messages = self.base.messages(view);
        if let (LIAR, Lie::Times(factor)) = (view.worker, self.lie) {
            let content = messages.iter_mut().flat_map(|message| &mut message.content);
            content.for_each(|entry| entry.1 *= factor);
        }
        messages
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        if view.worker == LIAR && self.lie != Lie::Times(1.0) {
            return Plan::alone();
        }
        let mut received = view.received.to_vec();
        // A receiver that evaluates models does not look at claims.
        if self.lie == Lie::Claim && !self.verifies_leaders() {
            let claims = received.iter_mut().filter(|(sender, _)| *sender == LIAR);
            claims.for_each(|(_, stats)| *stats = WorkerStats { loss: Some(0.0), ..*stats });
        }
        let mut plan = self.base.plan(&LocalView { received: &received, ..*view });
        if self.lie == Lie::Mirrored {
            // w (2 m_i - m_j) is 2 w m_i - w m_j.
            let model = plan.model();
            let weight = model.weight(LIAR);
            model.add(LIAR, -2.0 * weight);
            model.add(view.worker, 2.0 * weight);
        }
        plan
    }
}

/// `algorithm.name = "liar"`, with the options of the base and `lie`.
const DEFINITION: Definition = Definition {
    name: "liar",
    about: "",
    paper: "",
    build: |options: &mut Options<'_>| -> Result<Method, ConfigError> {
        let lie = options.choice("lie", &LIES, "")?;
        let base = options.base("dpsgd")?;
        Ok(Method::Synchronous(Box::new(WithLiar { base, lie })))
    },
};

/// The mean test accuracy of the honest workers, in percent.
fn accuracy(graph: &str, base: &str, lie: &str, more: &str, seed: u64) -> f64 {
    let text = format!(
        "seed = {seed}\nmodel = \"mlp:64\"\n[graph]\ntopology = \"{graph}\"\n\
         [algorithm]\nname = \"liar\"\nbase = \"{base}\"\nlie = \"{lie}\"\n{more}\n\
         [training]\nepochs = 200\nlearning_rate = 0.001\nmomentum = 0.0\ndecay = \"cosine\"\ntest_every = 200\nstart = \"equal\"\n"
    );
    let config = Config::parse(&text, &[]).unwrap();
    let trainer = Trainer::new(config).registry(Registry::standard().with(DEFINITION));
    let summary = trainer.run().unwrap();
    let honest = summary.per_worker.iter().filter(|worker| worker.id != LIAR);
    let honest: Vec<f64> = honest.map(|worker| 100.0 * worker.test_accuracy).collect();
    honest.iter().sum::<f64>() / honest.len() as f64
}

const CLIP: &str = "robust = \"clip\"";

/// One seed of the table below.
#[test]
fn one_liar_costs_little() {
    let reference = accuracy("complete:8", "dpsgd", "none", "", 1);
    assert!(reference > 50.0 && reference < 90.0, "the task is saturated, or nothing is learned: {reference}");
    for lie in ["-1", "mirrored"] {
        let clipped = accuracy("complete:8", "dpsgd", lie, CLIP, 1);
        assert!(clipped > reference - 3.0, "{lie}: {clipped} instead of {reference}");
    }
    let honest = accuracy("complete:8", "dpsgd", "none", CLIP, 1);
    assert!(honest > reference - 0.5, "clipping costs {}", reference - honest);
    // The lie is not harmless.
    let plain = accuracy("complete:8", "dpsgd", "-1", "", 1);
    assert!(plain < reference - 20.0, "{plain} without clipping, {reference} without a liar");
}

/// The error of a configuration, or its warnings.
fn prepared(text: &str) -> Result<Vec<String>, String> {
    let config = Config::parse(text, &[]).map_err(|error| error.to_string())?;
    let experiment = Experiment::prepare(config, &DataPaths::default()).map_err(|error| error.to_string())?;
    Ok(experiment.warnings)
}

#[test]
fn clipping_is_refused_where_it_breaks_the_algorithm() {
    for name in ["d2", "gradient-tracking", "sgp", "choco", "all-reduce", "gossip-pga"] {
        let error = prepared(&format!("[algorithm]\nname = \"{name}\"\nrobust = \"clip\"\n")).unwrap_err();
        assert!(error.contains("algorithm.robust") && error.contains("not supported by"), "{name}: {error}");
    }
    let over_choco = "[algorithm]\nname = \"al-dsgd\"\nbase = \"choco\"\nrobust = \"clip\"\n";
    assert!(prepared(over_choco).unwrap_err().contains("not supported by"));
}

#[test]
fn workers_with_few_neighbors_are_named() {
    let warnings = |graph: &str, more: &str| {
        let text = format!("[graph]\ntopology = \"{graph}\"\n[algorithm]\nname = \"dpsgd\"\n{more}");
        prepared(&text).unwrap().into_iter().filter(|warning| warning.contains("robust")).collect::<Vec<_>>()
    };
    assert!(warnings("complete:8", CLIP).is_empty() && warnings("torus:4x4", CLIP).is_empty());
    let weak = warnings("star:5", CLIP);
    assert!(weak.len() == 1 && weak[0].contains("workers [1, 2, 3, 4] have fewer"), "{weak:?}");
    assert!(warnings("star:5", "").is_empty());
}

/// All lies, graphs and seeds. docs/algorithms.md has the table that this prints.
#[test]
#[ignore = "takes minutes"]
fn table_of_lies() {
    for (graph, base, clip) in [
        ("complete:8", "dpsgd", CLIP),
        ("torus:4x4", "dpsgd", CLIP),
        ("complete:8", "al-dsgd", "robust = \"clip\"\nleaders = \"verified\""),
        ("torus:4x4", "al-dsgd", "robust = \"clip\"\nleaders = \"verified\""),
    ] {
        let means = |lie: &str, more: &str| -> Vec<f64> {
            (1..=5).map(|seed| accuracy(graph, base, lie, more, seed)).collect()
        };
        let reference = means("none", "");
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        println!("{base} on {graph}: without a liar {:.2}", mean(&reference));
        for (lie, _) in LIES {
            let clipped = means(lie, clip);
            let worst = clipped.iter().zip(&reference).map(|(a, b)| a - b).fold(f64::INFINITY, f64::min);
            let plain = accuracy(graph, base, lie, "", 1);
            println!(
                "  {lie:>8}: clipped {:6.2} ({:+.2}, worst seed {worst:+.2}), not clipped (seed 1) {plain:6.2}",
                mean(&clipped),
                mean(&clipped) - mean(&reference)
            );
        }
    }
}
