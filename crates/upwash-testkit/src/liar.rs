//! One liar among the workers: an algorithm that wraps another one, in one process. It changes what worker [`LIAR`] sends,
//! and the liar itself trains alone.

use upwash::algorithm::{Algorithm, Definition, LocalView, Method, Options, Outgoing, Plan, Registry, WorkerStats};
use upwash::config::ConfigError;
use upwash::run::Summary;
use upwash::{Config, WorkerId};

/// The worker that lies.
pub const LIAR: WorkerId = WorkerId(3);

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

/// The names of the lies; `none` is an honest worker.
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

/// Every lie.
pub const NAMES: [&str; 5] = ["-1", "3", "1e6", "mirrored", "claim"];

/// Clipping as a configuration has it.
pub const CLIP: &str = "robust = \"clip\"";

/// A configuration with a liar, for a task that is far from saturated, so that any round without progress shows. It needs
/// a [`registry`].
///
/// # Panics
/// If the configuration is invalid.
#[must_use]
pub fn config(graph: &str, base: &str, lie: &str, more: &str, seed: u64) -> Config {
    let text = format!(
        "seed = {seed}\nmodel = \"mlp:64\"\n[graph]\ntopology = \"{graph}\"\n\
         [algorithm]\nname = \"liar\"\nbase = \"{base}\"\nlie = \"{lie}\"\n{more}\n\
         [training]\nepochs = 200\nlearning_rate = 0.001\nmomentum = 0.0\ndecay = \"cosine\"\ntest_every = 200\nstart = \"equal\"\n"
    );
    Config::parse(&text, &[]).expect("the configuration should be valid")
}

/// All algorithms, and the one with a liar.
#[must_use]
pub fn registry() -> Registry {
    Registry::standard().with(DEFINITION)
}

/// The mean test accuracy of the honest workers, in percent.
#[must_use]
pub fn honest_accuracy(summary: &Summary) -> f64 {
    let honest = summary.per_worker.iter().filter(|worker| worker.id != LIAR);
    let honest: Vec<f64> = honest.map(|worker| 100.0 * worker.test_accuracy).collect();
    honest.iter().sum::<f64>() / honest.len() as f64
}
