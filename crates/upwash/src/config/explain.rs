//! Explains mistakes in configurations in the words of the user, with a suggestion.

use super::Config;
use crate::names::nearest;

/// What users of other programs write, and the key here.
const SPELLINGS: [(&str, &[&str]); 20] = [
    ("training.learning_rate", &["lr", "eta", "rate", "step_size", "learningrate", "base_lr"]),
    ("training.batch_size", &["bs", "batch", "batchsize", "train_batch_size", "minibatch"]),
    ("training.epochs", &["epoch", "max_epochs", "num_epochs", "n_epochs", "num_train_epochs", "total_epochs"]),
    ("training.weight_decay", &["wd", "l2", "decay_rate"]),
    ("training.momentum", &["beta", "mu"]),
    ("training.betas", &["adam_betas", "beta1", "beta2", "adam_beta1", "adam_beta2"]),
    ("training.epsilon", &["eps", "adam_epsilon"]),
    ("training.clip", &["grad_clip", "clip_grad_norm", "max_grad_norm", "gradient_clip_val", "clip_norm"]),
    ("training.optimizer", &["optim"]),
    ("training.decay", &["scheduler", "lr_scheduler", "schedule", "lr_schedule", "lr_decay"]),
    ("training.decay_at", &["milestones", "steps"]),
    ("training.decay_factor", &["gamma"]),
    ("training.warmup_epochs", &["warmup", "warm_up", "warmup_steps"]),
    ("training.test_every", &["eval_every", "eval_interval", "val_every", "check_val_every_n_epoch"]),
    ("training.checkpoint_every", &["save_every", "save_interval", "save_steps"]),
    ("training.initial_model", &["pretrained", "init_from", "checkpoint", "weights_file"]),
    ("seed", &["random_seed", "manual_seed", "rng_seed", "random_state"]),
    ("data.name", &["dataset", "data_set", "dataset_name"]),
    ("model", &["network_name", "net", "arch", "architecture", "model_name"]),
    ("graph.topology", &["topology", "graph_name", "num_workers", "world_size", "nodes", "num_nodes"]),
];

/// An option of the command line, for settings that are no part of a configuration.
const FLAGS: [(&str, &[&str]); 3] = [
    ("--device", &["device", "gpu", "gpus", "cuda", "accelerator"]),
    ("--precision", &["precision", "amp", "dtype", "fp16", "bf16"]),
    ("--out", &["out", "output", "output_dir", "save_dir", "log_dir"]),
];

/// The error of a parser, without a position in the text.
pub(super) fn without_position(error: &toml::de::Error) -> String {
    explained(error, error.message())
}

/// The error of a parser, with its position in the text and the line there.
pub(super) fn with_position(error: &toml::de::Error) -> String {
    explained(error, &error.to_string())
}

/// `text` is the parser's message, perhaps with its position.
fn explained(error: &toml::de::Error, text: &str) -> String {
    let message = error.message();
    let text = text.trim_end().replace(message.trim_end(), &plain(message));
    let mut quoted = message.split('`').skip(1).step_by(2);
    let is_unknown = message.starts_with("unknown") && !message.contains("did you mean");
    let Some(unknown) = quoted.next().filter(|_| is_unknown) else {
        return text;
    };
    if unknown.is_empty() {
        return "a part of the key is empty: write for example training.epochs=3".into();
    }
    let siblings: Vec<&str> = quoted.collect();
    let suggestion = match nearest(unknown, siblings.iter().copied()) {
        // People who write [graph] name = "ring:8".
        _ if unknown == "name" && siblings.contains(&"topology") => did_you_mean("topology"),
        Some(sibling) => did_you_mean(sibling),
        None if message.starts_with("unknown field") => suggestion(unknown),
        None => String::new(),
    };
    match suggestion.is_empty() {
        true => text,
        // The list of all keys would hide it.
        false => text.split(", expected one of").next().unwrap_or_default().trim_end().to_owned() + &suggestion,
    }
}

/// "\ndid you mean ...?" for a key that does not exist where it was written, or nothing.
pub(crate) fn suggestion(unknown: &str) -> String {
    let name = unknown.rsplit('.').next().unwrap_or(unknown).to_lowercase().replace('-', "_");
    let among = |table: &[(&'static str, &[&str])]| {
        table.iter().find(|(_, others)| others.contains(&name.as_str())).map(|(key, _)| *key)
    };
    if let Some(flag) = among(&FLAGS) {
        return format!("\nthis is no part of a configuration: use the option {flag}");
    }
    let keys = keys();
    // A name that two tables have says nothing.
    let same_name = || match keys.iter().filter(|key| key.rsplit('.').next() == Some(&name)).collect::<Vec<_>>()[..] {
        [only] => Some(only.as_str()),
        _ => None,
    };
    let last = |key: &String| key.rsplit('.').next().unwrap_or(key).to_owned();
    let similar = || {
        let lasts: Vec<String> = keys.iter().map(last).collect();
        let found = nearest(&name, lasts.iter().map(String::as_str))?;
        keys.iter().find(|key| last(key) == found).map(String::as_str)
    };
    let found = among(&SPELLINGS).or_else(same_name).or_else(similar);
    let place = if found == Some(unknown) { " at the top level, before the first [table]" } else { "" };
    found.map_or_else(String::new, |key| format!("\ndid you mean `{key}`{place}?"))
}

fn did_you_mean(key: &str) -> String {
    format!("\ndid you mean `{key}`?")
}

/// The paths of all keys.
fn keys() -> Vec<String> {
    let schema = schemars::schema_for!(Config).to_value();
    let Some(top) = schema["properties"].as_object() else { return vec![] };
    let mut keys = Vec::new();
    for (name, value) in top {
        let table = value["$ref"].as_str().and_then(|target| target.strip_prefix("#/$defs/"));
        match table.and_then(|table| schema["$defs"][table]["properties"].as_object()) {
            Some(inner) => keys.extend(inner.keys().map(|key| format!("{name}.{key}"))),
            None => keys.push(name.clone()),
        }
    }
    keys
}

/// Says what a value must be without the names of types in this program.
fn plain(message: &str) -> String {
    if message.starts_with("wanted string or table") {
        return "this is not allowed here: write one of its names".into();
    }
    let message =
        message.trim_end().replace("unknown field", "unknown key").replace("unknown variant", "unknown value");
    let Some((before, expected)) = message.split_once(", expected ") else {
        return message;
    };
    let wanted = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of at least 0",
        "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a tuple of size 2" => "a pair such as [3, 10.0]",
        "a map" => "a table",
        "path string" => "a path in quotes",
        "an array of length 2" => "a pair such as [0.9, 0.999]",
        "struct DataConfig" => "a table, for example data.name",
        "struct GraphConfig" => "a table, for example graph.topology",
        "struct AlgorithmConfig" => "a table, for example algorithm.name",
        _ if expected.starts_with("struct ") => "a table",
        "string only" => "one of its names",
        _ => expected,
    };
    let before = before.replace("unit variant", "this").replace("invalid type: ", "").replace("invalid value: ", "");
    let before = before.replace("sequence", "a list").replace("map", "a table");
    // "invalid type: integer `-3`, expected u64" names the value; errors of the syntax name what is wrong with it.
    if message.starts_with("invalid length ") {
        return format!("a list of another length is needed: write {wanted}");
    }
    match message.starts_with("invalid type") || message.starts_with("invalid value") {
        true => format!("{before} is not allowed here: write {wanted}"),
        false => format!("{before}, expected {wanted}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text, &[]).unwrap_err().to_string()
    }

    #[test]
    fn spellings_of_other_programs_lead_to_the_key() {
        let keys = keys();
        for (key, others) in SPELLINGS {
            assert!(keys.iter().any(|known| known == key), "{key}");
            for other in others {
                let said = error(&format!("{other} = 1\n"));
                assert!(said.contains(&format!("`{key}`?")), "{other}: {said}");
            }
        }
        // In the right table, in the wrong one, and at the top level.
        for text in ["learning_rate = 1", "[training]\nlr = 1", "[graph]\nlearning_rate = 1", "[model]\nlr = 1"] {
            assert!(error(text).contains(if text.contains("model") { "line 1" } else { "learning_rate`?" }), "{text}");
        }
        assert!(error("device = 'cuda'").contains("use the option --device"));
        for nothing_like_it in ["zzzz = 1", "x = 1", "qwertyuiop = 1"] {
            assert!(!error(nothing_like_it).contains("did you mean"), "{nothing_like_it}");
        }
    }

    #[test]
    fn messages_name_no_types_of_this_program() {
        for (text, said) in [
            ("seed = \"x\"", "string \"x\" is not allowed here: write a whole number of at least 0"),
            ("seed = -3", "integer `-3` is not allowed here: write a whole number of at least 0"),
            ("training = 3", "integer `3` is not allowed here: write a table"),
            ("[training]\nepochs = 2.5", "floating point `2.5` is not allowed here"),
            ("[training]\nnesterov = 1", "write true or false"),
            ("[training]\ndecay = 3", "write one of its names"),
            ("data = \"mnist\"", "write a table, for example data.name"),
            ("algorithm = \"dpsgd\"", "write a table, for example algorithm.name"),
            ("[training]\ndecay_at = 3", "write a list"),
            ("[clock]\nslow = [3]", "write a pair"),
            ("model = [1]", "a list is not allowed here: write a string"),
        ] {
            let error = error(text);
            assert!(error.contains(said) && error.contains("line "), "{text}: {error}");
            for internal in ["u64", "usize", "f64", "struct ", "tuple", "variant identifier"] {
                assert!(!error.contains(internal), "{text}: {error}");
            }
        }
    }
}
