//! Algorithms by name.

use super::options::one_of;
use super::{Algorithm, Asynchronous, OptionInfo, Options};
use crate::config::{ConfigError, GraphConfig};

/// What a definition makes.
#[derive(Debug)]
pub enum Method {
    /// Rounds in step.
    Synchronous(Box<dyn Algorithm>),
    /// Workers that never wait for all.
    Asynchronous(Box<dyn Asynchronous>),
}

/// An algorithm's name, what is known of it, and how it is made from its options.
///
/// ```
/// use upwash::algorithm::Registry;
/// let dpsgd = Registry::standard();
/// assert!(dpsgd.find("dpsgd").is_some_and(|dpsgd| dpsgd.paper.contains("2017")));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// What `algorithm.name` calls it.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// Reads its options and makes it.
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
    /// All that are built in.
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

    /// With one more, which takes the place of one of the same name.
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

    /// The one of this name.
    ///
    /// ```
    /// # use upwash::algorithm::Registry;
    /// assert!(Registry::standard().find("sgd").is_none());
    /// ```
    pub fn find(&self, name: &str) -> Option<&Definition> {
        self.iter().find(|definition| definition.name == name)
    }

    /// All of them.
    ///
    /// ```
    /// # use upwash::algorithm::Registry;
    /// assert_eq!(Registry::standard().iter().next().unwrap().name, "al-dsgd");
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &Definition> {
        self.definitions.iter()
    }

    /// Makes the algorithm of this name with these options; says which options there were to read.
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
                    "no option of {name}, whose options are {}",
                    one_of(Some(key), read.iter().map(|option| option.key)).replacen("one of ", "", 1)
                ),
            };
            return value(format!("algorithm.{key}"), given, must);
        }
        Ok((method, read))
    }
}

/// What both kinds have in common.
impl Method {
    /// In words.
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

    /// Whether workers start alike unless the configuration says otherwise.
    pub fn starts_equal(&self) -> bool {
        match self {
            Self::Synchronous(algorithm) => algorithm.starts_equal(),
            Self::Asynchronous(_) => true,
        }
    }

    /// The vectors that it keeps for every worker.
    pub fn state_vectors(&self) -> Vec<super::StateVector> {
        match self {
            Self::Synchronous(algorithm) => algorithm.state_vectors(),
            Self::Asynchronous(_) => vec![],
        }
    }

    /// Which links it wants.
    pub fn links(&self) -> super::Links {
        match self {
            Self::Synchronous(algorithm) => algorithm.links(),
            Self::Asynchronous(_) => super::Links::None,
        }
    }

    /// The algorithm, if its rounds are in step.
    pub fn synchronous(&self) -> Option<&dyn Algorithm> {
        match self {
            Self::Synchronous(algorithm) => Some(&**algorithm),
            Self::Asynchronous(_) => None,
        }
    }
}
