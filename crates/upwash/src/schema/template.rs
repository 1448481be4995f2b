//! A configuration to start from: every key with its meaning and its default.

use super::{algorithm_options, configuration, description, properties, resolved};
use crate::algorithm::Registry;
use crate::config::Config;
use serde_json::{Map, Value};
use std::fmt::Write;

/// The width of comments.
const WIDTH: usize = 80;

/// The keys that most runs set. The others are commented out.
const COMMON: [&str; 12] = [
    "seed",
    "model",
    "data.name",
    "data.partition",
    "graph.topology",
    "graph.weights",
    "graph.copies",
    "algorithm.name",
    "training.epochs",
    "training.batch_size",
    "training.learning_rate",
    "training.decay",
];

/// Values of keys that have no default.
const EXAMPLES: [(&str, &str); 24] = [
    ("workers", "8"),
    ("data.train_examples", "1000"),
    ("data.test_examples", "200"),
    ("data.image_size", "32"),
    ("data.augmentation", "\"crop-and-flip\""),
    ("graph.directed_edges", "[[0, 1], [1, 2], [2, 0]]"),
    ("training.initial_model", "\"runs/first/model.safetensors\""),
    ("training.keep_best", "true"),
    ("training.optimizer", "\"sgd\""),
    ("training.momentum", "0.9"),
    ("training.nesterov", "true"),
    ("training.weight_decay", "0.0001"),
    ("training.betas", "[0.9, 0.95]"),
    ("training.epsilon", "1e-8"),
    ("training.decay_norms_and_biases", "true"),
    ("training.clip", "1.0"),
    ("training.decay_at", "[10.0, 15.0]"),
    ("clock.gradient_seconds", "0.02"),
    ("clock.gradient_spread", "0.05"),
    ("clock.straggler_probability", "0.05"),
    ("clock.straggler_factor", "10.0"),
    ("clock.slow", "[[3, 10.0]]"),
    ("clock.megabits", "1000.0"),
    ("clock.latency_ms", "0.2"),
];

/// Every key with its meaning and its default, as a configuration. Keys that most runs leave alone are commented out.
///
/// ```
/// let config = upwash::Config::parse(&upwash::schema::template(), &[])?;
/// assert_eq!(config, upwash::Config::default());
/// # Ok::<(), upwash::config::ConfigError>(())
/// ```
pub fn template() -> String {
    let schema = configuration();
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    let mut text = String::from(
        "# A configuration of Upwash: `upwash train FILE`. Every key is optional and stands\n\
         # here with its default. Lines that begin with `#` and a key are examples.\n",
    );
    let top = properties(&schema);
    let is_table = |value: &Value| value.get("$ref").is_some();
    let mut writer = Writer { text: &mut text, schema: &schema };
    writer.keys("", &top.clone().into_iter().filter(|(_, value)| !is_table(value)).collect(), &defaults);
    for (name, value) in top.iter().filter(|(name, value)| is_table(value) && *name != "network") {
        let _ = write!(writer.text, "\n[{name}]\n");
        writer.keys(&format!("{name}."), &properties(resolved(value, &schema)), &defaults[name]);
    }
    text.push_str("\n# [network] lists the addresses and keys of workers on several machines:\n# docs/peers.md\n");
    text
}

struct Writer<'a> {
    text: &'a mut String,
    schema: &'a Value,
}

impl Writer<'_> {
    fn keys(&mut self, path: &str, keys: &Map<String, Value>, defaults: &Value) {
        let is_algorithm = path == "algorithm.";
        for (key, value) in keys.iter().filter(|(key, _)| !is_algorithm || *key == "name") {
            self.comment(&description(value));
            for choice in resolved(value, self.schema)["oneOf"].as_array().into_iter().flatten() {
                if let Some(name) = choice["const"].as_str() {
                    self.comment(&format!("- {name}: {}", description(choice)));
                }
            }
            self.key(&format!("{path}{key}"), key, &defaults[key]);
        }
        if is_algorithm {
            self.algorithm_options();
        }
    }

    /// The options of the default algorithm.
    fn algorithm_options(&mut self) {
        self.comment("The other keys are options of the algorithm: `upwash algorithms NAME` prints them.");
        let default = Config::default().algorithm.name;
        let all = algorithm_options(&Registry::standard());
        for option in all.into_iter().filter(|(name, _)| *name == default).flat_map(|(_, options)| options) {
            self.comment(option.about);
            let _ = writeln!(self.text, "#{} = {}", option.key, option.default);
        }
    }

    fn key(&mut self, path: &str, key: &str, default: &Value) {
        let example = EXAMPLES.iter().find(|(known, _)| *known == path).map(|(_, example)| (*example).to_owned());
        // A list of strings, numbers or pairs reads the same in JSON and TOML.
        let value = match default {
            Value::Null => example.or_else(|| self.first_choice(path)).unwrap_or_default(),
            _ => example.unwrap_or_else(|| default.to_string()),
        };
        let mark = if COMMON.contains(&path) { "" } else { "#" };
        let _ = writeln!(self.text, "{mark}{key} = {value}");
    }

    /// The first of the names that an optional key can have.
    fn first_choice(&self, path: &str) -> Option<String> {
        let (table, key) = path.split_once('.')?;
        let table = &properties(self.schema)[table];
        let value = properties(resolved(table, self.schema))[key].clone();
        let first = &resolved(&value, self.schema)["oneOf"][0]["const"];
        first.as_str().map(|name| format!("\"{name}\""))
    }

    /// Writes text as a comment of several lines.
    fn comment(&mut self, text: &str) {
        let mut line = String::from("#");
        for word in text.split_whitespace() {
            if line.len() + 1 + word.len() > WIDTH {
                let _ = writeln!(self.text, "{line}");
                line = "#".into();
            }
            let _ = write!(line, " {word}");
        }
        let _ = writeln!(self.text, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that begin with `#` and no space.
    fn examples(text: &str) -> Vec<&str> {
        text.lines().filter(|line| line.starts_with('#') && !line.starts_with("# ")).collect()
    }

    #[test]
    fn every_example_is_valid() {
        let text = template();
        assert!(examples(&text).len() > 30, "{text}");
        for example in examples(&text) {
            let changed = text.replacen(&format!("\n{example}\n"), &format!("\n{}\n", &example[1..]), 1);
            assert_ne!(changed, text, "{example}");
            // What some options need besides them.
            let needs = match example {
                _ if example.contains("decay_at") => Some("training.decay=steps"),
                _ if example.contains("nesterov") => Some("training.momentum=0.9"),
                _ if ["betas", "epsilon", "decay_norms"].iter().any(|key| example.contains(key)) => {
                    Some("training.optimizer=adamw")
                }
                _ => None,
            };
            let sets: Vec<String> = needs.into_iter().map(Into::into).collect();
            if let Err(error) = Config::parse(&changed, &sets) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn every_key_is_there_and_lines_are_short() {
        let text = template();
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        for key in ["seed =", "keep_best =", "initial_model =", "#slow =", "#w_best =", "[clock]"] {
            assert!(text.contains(key), "{key}");
        }
    }
}
