//! The configuration as a JSON schema, and as a page of documentation.

mod template;

pub use template::template;

use crate::algorithm::{OptionInfo, Registry};
use crate::config::{Config, GraphConfig};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The JSON schema of configurations, with the options of every built-in algorithm.
///
/// ```
/// let schema = upwash::schema::configuration();
/// assert_eq!(schema["$defs"]["TrainingConfig"]["properties"]["epochs"]["default"], 20);
/// assert!(schema["$defs"]["AlgorithmConfig"]["properties"]["budget"]["description"].is_string());
/// ```
pub fn configuration() -> Value {
    let mut schema = schemars::schema_for!(Config).to_value();
    let registry = Registry::standard();
    let algorithm = &mut schema["$defs"]["AlgorithmConfig"];
    let names: Vec<&str> = registry.iter().map(|definition| definition.name).collect();
    algorithm["properties"]["name"]["examples"] = json!(names);
    for (_, options) in algorithm_options(&registry) {
        for option in options {
            // Options of one name mean the same in all algorithms; their defaults may differ.
            algorithm["properties"][option.key] = json!({ "type": json_type(&option), "description": option.about });
        }
    }
    // Own algorithms have own options.
    algorithm["additionalProperties"] = true.into();
    schema
}

/// Every built-in algorithm with the options that it reads.
fn algorithm_options(registry: &Registry) -> Vec<(&'static str, Vec<OptionInfo>)> {
    let graph = GraphConfig::default();
    let options = |name: &'static str| Some(registry.build(name, &Default::default(), &graph).ok()?.1);
    registry.iter().filter_map(|definition| Some((definition.name, options(definition.name)?))).collect()
}

fn json_type(option: &OptionInfo) -> &'static str {
    match option.default {
        toml::Value::Boolean(_) => "boolean",
        toml::Value::Integer(_) => "integer",
        toml::Value::Float(_) => "number",
        _ => "string",
    }
}

/// All keys with their defaults and meanings, in Markdown.
pub fn reference() -> String {
    let schema = configuration();
    let mut text = String::from(
        "# Configuration reference\n\n\
         Printed by `upwash config reference`. Every key is optional. `upwash config show CONFIG.toml` prints a configuration \
         with its defaults, `upwash config check` checks it, and `upwash config schema` prints the JSON schema for editors.\n",
    );
    let top = properties(&schema);
    let is_table = |value: &Value| value.get("$ref").is_some();
    text.push_str("\n## Top level\n\n");
    write_table(&mut text, top.iter().filter(|(_, value)| !is_table(value)), &schema);
    for (name, value) in top.iter().filter(|(_, value)| is_table(value)) {
        let _ = writeln!(text, "\n## `[{name}]`\n\n{}\n", description(value));
        match name.as_str() {
            "algorithm" => write_algorithms(&mut text),
            _ => write_table(&mut text, properties(resolved(value, &schema)).iter(), &schema),
        }
    }
    let peer = &schema["$defs"]["PeerConfig"];
    let _ = writeln!(text, "\n## `[[network.peers]]`\n\n{}\n", description(peer));
    write_table(&mut text, properties(peer).iter(), &schema);
    text
}

fn properties(schema: &Value) -> Map<String, Value> {
    schema["properties"].as_object().cloned().unwrap_or_default()
}

fn description(value: &Value) -> String {
    value["description"].as_str().unwrap_or_default().replace('\n', " ")
}

/// What a reference points to.
fn resolved<'a>(value: &'a Value, schema: &'a Value) -> &'a Value {
    let target = value["$ref"].as_str().or_else(|| value["anyOf"][0]["$ref"].as_str());
    let name = target.and_then(|target| target.strip_prefix("#/$defs/"));
    name.map_or(value, |name| &schema["$defs"][name])
}

fn write_table<'a>(text: &mut String, keys: impl Iterator<Item = (&'a String, &'a Value)>, schema: &Value) {
    text.push_str("| key | default | meaning |\n|---|---|---|\n");
    for (key, value) in keys {
        let default = match value.get("default") {
            None | Some(Value::Null) => String::new(),
            Some(default) => format!("`{default}`"),
        };
        let mut meaning = description(value);
        for choice in resolved(value, schema)["oneOf"].as_array().into_iter().flatten() {
            if let Some(name) = choice["const"].as_str() {
                let _ = write!(meaning, "<br>`{name}`: {}", description(choice));
            }
        }
        let _ = writeln!(text, "| `{key}` | {default} | {} |", meaning.replace('|', "\\|"));
    }
}

/// Each algorithm has its own options.
fn write_algorithms(text: &mut String) {
    let registry = Registry::standard();
    text.push_str(
        "`name` selects the algorithm (default `\"al-dsgd\"`); the other keys are its options. An algorithm over a base also \
         takes the options of the base. `upwash algorithms NAME` prints papers and properties.\n\n\
         | algorithm | option | default | meaning |\n|---|---|---|---|\n",
    );
    for (name, options) in algorithm_options(&registry) {
        if options.is_empty() {
            let _ = writeln!(text, "| `{name}` | | | no options |");
        }
        for option in options {
            let _ = writeln!(text, "| `{name}` | `{}` | `{}` | {} |", option.key, option.default, option.about);
        }
    }
}
