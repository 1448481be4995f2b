//! The registry of algorithms.

use super::options::one_of;
use super::{Algorithm, Asynchronous, OptionInfo, Options};
use crate::config::{ConfigError, GraphConfig};

/// An algorithm of either kind, as a definition builds it.
#[derive(Debug)]
pub enum Method {
    /// All workers run in synchronous rounds.
    Synchronous(Box<dyn Algorithm>),
    /// Workers never wait for all others.
    Asynchronous(Box<dyn Asynchronous>),
}

/// The name, description and constructor of an algorithm.
///
/// ```
/// use upwash::algorithm::Registry;
/// let dpsgd = Registry::standard();
/// assert!(dpsgd.find("dpsgd").is_some_and(|dpsgd| dpsgd.paper.contains("2017")));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// The value of `algorithm.name` that selects it.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// The paper that introduced it.
    pub paper: &'static str,
    /// Reads the options and builds the algorithm.
    pub build: fn(&mut Options<'_>) -> Result<Method, ConfigError>,
}

/// The algorithms that a configuration can name.
#[derive(Clone, Debug)]
pub struct Registry {
    definitions: Vec<Definition>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::standard()
    }
}

impl Registry {
    /// All built-in algorithms.
    ///
    /// ```
    /// # use upwash::algorithm::Registry;
    /// assert!(Registry::standard().iter().count() >= 19);
    /// ```
    pub fn standard() -> Self {
        let definitions = vec![
            super::al_dsgd::DEFINITION,
            super::dpsgd::DEFINITION,
            super::matcha::DEFINITION,
            super::gossip_pga::DEFINITION,
            super::choco::DEFINITION,
            super::d2::DEFINITION,
            super::gradient_tracking::DEFINITION,
            super::sgp::DEFINITION,
            super::qg_momentum::DEFINITION,
            super::all_reduce::DEFINITION,
            super::local_sgd::DEFINITION,
            super::slowmo::DEFINITION,
            super::parameter_server::DEFINITION,
            super::easgd::DEFINITION,
            super::lsgd::DEFINITION,
            super::ad_psgd::DEFINITION,
            super::gosgd::DEFINITION,
            super::async_easgd::DEFINITION,
            super::downpour::DEFINITION,
        ];
        Self { definitions }
    }

    /// Adds a definition, replacing any definition of the same name.
    ///
    /// ```
    /// # use upwash::algorithm::Registry;
    /// let own = *Registry::standard().find("dpsgd").unwrap();
    /// let with = Registry::standard().with(upwash::algorithm::Definition { name: "own", ..own });
    /// assert!(with.find("own").is_some());
    /// ```
    #[must_use]
    pub fn with(mut self, definition: Definition) -> Self {
        self.definitions.retain(|known| known.name != definition.name);
        self.definitions.push(definition);
        self
    }

    /// The definition of this name, if there is one.
    ///
    /// ```
    /// # use upwash::algorithm::Registry;
    /// assert!(Registry::standard().find("sgd").is_none());
    /// ```
    pub fn find(&self, name: &str) -> Option<&Definition> {
        self.iter().find(|definition| definition.name == name)
    }

    /// All definitions.
    ///
    /// ```
    /// # use upwash::algorithm::Registry;
    /// assert_eq!(Registry::standard().iter().next().unwrap().name, "al-dsgd");
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &Definition> {
        self.definitions.iter()
    }

    /// Builds the algorithm of this name with these options. Also returns the options that the algorithm has.
    pub fn build(
        &self,
        name: &str,
        given: &toml::Table,
        graph: &GraphConfig,
    ) -> Result<(Method, Vec<OptionInfo>), ConfigError> {
        let value = |key: String, value: String, must| Err(ConfigError::Value { key, value, must });
        let Some(definition) = self.find(name) else {
            let must = one_of(Some(name), self.iter().map(|definition| definition.name));
            return value("algorithm.name".into(), format!("\"{name}\""), must);
        };
        let mut options = Options::new(given, graph, self);
        let method = (definition.build)(&mut options)?;
        let unread = options.unread().next();
        let read = options.into_read();
        if let Some(key) = unread {
            let given = given[key].to_string();
            let must = match read.is_empty() {
                true => format!("{name} has no options"),
                false => format!(
                    "not an option of {name}; its options are {}",
                    one_of(Some(key), read.iter().map(|option| option.key)).replacen("one of ", "", 1)
                ),
            };
            return value(format!("algorithm.{key}"), given, must);
        }
        Ok((method, read))
    }
}

/// Properties that both kinds have.
impl Method {
    /// A readable name.
    pub fn display_name(&self) -> String {
        match self {
            Self::Synchronous(algorithm) => algorithm.display_name(),
            Self::Asynchronous(algorithm) => algorithm.display_name(),
        }
    }

    /// Whether it needs a server.
    pub fn has_server(&self) -> bool {
        match self {
            Self::Synchronous(algorithm) => algorithm.has_server(),
            Self::Asynchronous(algorithm) => algorithm.has_server(),
        }
    }

    /// Whether all workers start from the same model by default.
    pub fn starts_equal(&self) -> bool {
        match self {
            Self::Synchronous(algorithm) => algorithm.starts_equal(),
            Self::Asynchronous(_) => true,
        }
    }

    /// The state vectors that it keeps for every worker.
    pub fn state_vectors(&self) -> Vec<super::StateVector> {
        match self {
            Self::Synchronous(algorithm) => algorithm.state_vectors(),
            Self::Asynchronous(_) => vec![],
        }
    }

    /// The links that it uses.
    pub fn links(&self) -> super::Links {
        match self {
            Self::Synchronous(algorithm) => algorithm.links(),
            Self::Asynchronous(_) => super::Links::None,
        }
    }

    /// The synchronous algorithm, if it is one.
    pub fn synchronous(&self) -> Option<&dyn Algorithm> {
        match self {
            Self::Synchronous(algorithm) => Some(&**algorithm),
            Self::Asynchronous(_) => None,
        }
    }
}
