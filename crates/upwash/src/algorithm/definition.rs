//! The registry of algorithms.

use super::clipping::Clipped;
use super::options::one_of;
use super::{Algorithm, Asynchronous, OptionInfo, Options};
use crate::config::{AlgorithmConfig, ConfigError, GraphConfig, suggestion};

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
            super::diloco::DEFINITION,
            super::noloco::DEFINITION,
            super::decentlam::DEFINITION,
            super::epidemic::DEFINITION,
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
            let must = self.one_of(name);
            return value("algorithm.name".into(), format!("\"{name}\""), must);
        };
        let mut options = Options::new(given, graph, self);
        let method = match (definition.build)(&mut options)? {
            Method::Synchronous(algorithm) => Method::Synchronous(Clipped::wrap(algorithm, &mut options)?),
            method => method,
        };
        let unread = options.unread().next();
        let read = options.into_read();
        if let Some(key) = unread {
            return value(format!("algorithm.{key}"), given[key].to_string(), self.explain_unread(name, key, &read));
        }
        Ok((method, read))
    }

    /// "must be one of ..." with all names, and a suggestion if one of them resembles the given name.
    pub fn one_of(&self, given: &str) -> String {
        one_of(Some(given), self.iter().map(|definition| definition.name))
    }

    /// Says why an algorithm that has read these options does not have another one.
    fn explain_unread(&self, name: &str, key: &str, read: &[OptionInfo]) -> String {
        let others = self.with_option(key);
        let owner = match others.is_empty() {
            true => String::new(),
            false => format!(", but of {}", others.join(", ")),
        };
        if read.is_empty() {
            return format!("{name} has no options{owner}: remove it, or run with --unset algorithm.{key}");
        }
        let names = one_of(Some(key), read.iter().map(|option| option.key));
        let names = names.strip_prefix("must be one of ").unwrap_or(&names).to_owned();
        let base = read.iter().find(|option| option.key == "base");
        let over = base.map_or(String::new(), |base| format!(" over {}", base.value.as_str().unwrap_or_default()));
        match others.is_empty() {
            true => format!("not an option of {name}{over}, whose options are {names}{}", suggestion(key)),
            false => format!(
                "not an option of {name}{over}{owner}: remove it, or run with --unset algorithm.{key}; the options here \
                 are {names}"
            ),
        }
    }

    /// The names of the algorithms that have an option by default.
    fn with_option(&self, key: &str) -> Vec<&'static str> {
        let has_option = |definition: &&Definition| {
            let built = self.build(definition.name, &Default::default(), &GraphConfig::default());
            built.is_ok_and(|(_, read)| read.iter().any(|option| option.key == key))
        };
        self.iter().filter(has_option).map(|definition| definition.name).collect()
    }

    /// Removes the [inherited](AlgorithmConfig::inherited) options that the algorithm does not have, but others have.
    /// Returns a warning for each.
    pub fn drop_inherited(&self, config: &mut AlgorithmConfig, graph: &GraphConfig) -> Vec<String> {
        let inherited = std::mem::take(&mut config.inherited);
        let mut own = config.options.clone();
        inherited.iter().for_each(|key| drop(own.remove(key)));
        // A misspelled key is reported later.
        own.retain(|key, _| !self.with_option(key).is_empty());
        let Ok((method, read)) = self.build(&config.name, &own, graph) else {
            return vec![];
        };
        let is_foreign =
            |key: &String| !read.iter().any(|option| option.key == key.as_str()) && !self.with_option(key).is_empty();
        let removed = inherited.into_iter().filter(is_foreign).filter_map(|key| config.options.remove_entry(&key));
        let warning = |(key, value)| {
            format!("algorithm.{key} = {value} is not used: {} has no such option", method.display_name())
        };
        removed.map(warning).collect()
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
