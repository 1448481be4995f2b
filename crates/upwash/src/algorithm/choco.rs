//! CHOCO-SGD: gossip with compressed differences.

use super::{
    Algorithm, Assignment, Definition, InitialValue, LocalView, Method, Options, Outgoing, Plan, StateVector, Vector,
};
use crate::compress::Compression;
use crate::config::ConfigError;

pub(super) const DEFINITION: Definition = Definition {
    name: "choco",
    about: "D-PSGD that sends compressed differences from public copies of the models",
    paper: "Koloskova, Stich, Jaggi 2019, Decentralized SGD with Compressed Communication",
    build: |options| Ok(Method::Synchronous(Box::new(Choco::read(options)?))),
};

/// Every model has a public copy c_i. Workers send Q(y_i - c_i). Then c_i' = c_i + Q(y_i - c_i) and
/// x_i' = y_i + step (sum W_ij c_j' - c_i').
///
/// ```
/// use upwash::{algorithm::{Algorithm, Choco}, compress::Compression};
/// let choco = Choco { compression: Compression::TopK(0.1), step: 0.4 };
/// assert_eq!(choco.display_name(), "CHOCO-SGD (top-k 0.1, step 0.4)");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Choco {
    /// The compression Q.
    pub compression: Compression,
    /// The fraction of the way that models move toward the average of the copies.
    pub step: f64,
}

const COPY: usize = 0;

impl Choco {
    fn read(options: &mut Options<'_>) -> Result<Self, ConfigError> {
        let about = "how differences are compressed: top-k, random-k, sign, eight-bit or none";
        let part = "the fraction of the entries that top-k and random-k send";
        let part = options.number("part", 0.1, 1e-9..=1.0, part)?;
        let kinds = [
            ("top-k", Compression::TopK(part)),
            ("random-k", Compression::RandomK(part)),
            ("sign", Compression::Sign),
            ("eight-bit", Compression::EightBit),
            ("none", Compression::None),
        ];
        let compression = options.choice("compressor", &kinds, about)?;
        // Coarser compression needs smaller steps. The defaults are at most half of the largest step that still learned
        // the digits on L1.
        let default = match compression {
            Compression::TopK(part) => (1.25 * part).clamp(1e-3, 1.0),
            Compression::RandomK(part) => (0.25 * part).clamp(1e-3, 1.0),
            Compression::Sign => 0.25,
            Compression::EightBit | Compression::None => 1.0,
        };
        let about = "the fraction of the way that models move toward the average of the copies";
        let step = options.number("consensus_step", default, 1e-9..=1.0, about)?;
        Ok(Self { compression, step })
    }
}

impl Algorithm for Choco {
    fn messages(&self, _: &LocalView<'_>) -> Vec<Outgoing> {
        let public_copy = Some((COPY, self.compression));
        vec![Outgoing { public_copy, ..Outgoing::stepped() }]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let mut model = Assignment::mixed(Vector::Model, view.weights(false));
        model.scale(self.step);
        model.add(view.worker, -self.step);
        model.own = Outgoing::stepped().content;
        model.into()
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        vec![StateVector { name: "public copy", start: InitialValue::Zero }]
    }

    fn display_name(&self) -> String {
        let how = match self.compression {
            Compression::None => "not compressed".into(),
            Compression::TopK(part) => format!("top-k {part}"),
            Compression::RandomK(part) => format!("random-k {part}"),
            Compression::Sign => "sign".into(),
            Compression::EightBit => "eight-bit".into(),
        };
        format!("CHOCO-SGD ({how}, step {})", self.step)
    }

    fn consensus_step(&self) -> Option<f64> {
        Some(self.step)
    }

    fn supports_leaders(&self) -> bool {
        true
    }
}
