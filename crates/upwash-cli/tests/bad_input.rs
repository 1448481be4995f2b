//! More than 300 invalid requests, in `bad-input.txt`: each is refused with a message that names the place and the remedy,
//! and leaves no file behind.
//!
//! A new request is a line `$ upwash ...` in that file. `UPWASH_RECORD=1 cargo test -p upwash-cli --test bad_input` writes
//! the messages below the requests; read the difference.
#![allow(clippy::unwrap_used)]

mod common;

use common::{said, upwash};
use std::collections::BTreeMap;
use std::path::Path;

/// Text that belongs to this program's source and not to its user.
const INTERNALS: [&str; 22] = [
    "panicked",
    "RUST_BACKTRACE",
    "struct ",
    "enum ",
    "tuple",
    "usize",
    "u64",
    "i64",
    "f64",
    "unwrap",
    "Some(",
    "Err(",
    ".unfinished",
    "unknown variant",
    "unit variant",
    "invalid digit",
    "literal",
    "stream did not",
    "entity not found",
    "path string",
    "invalid length",
    "unknown key ``",
];

/// The files that requests name.
const FILES: [(&str, &[u8]); 24] = [
    ("ok.toml", b"model = \"mlp:16\"\n[training]\nepochs = 2\n"),
    ("other.toml", b"model = \"cnn\"\n[training]\nepochs = 2\n"),
    ("broken.toml", b"seed = 1\n[training\nepochs = 2\n"),
    ("keys.toml", b"seed = 1\n\n[training]\nlearning_rat = 0.1\n"),
    ("types.toml", b"[training]\nepochs = \"many\"\n"),
    ("table.toml", b"training = 3\n"),
    ("twice.toml", b"seed = 1\nseed = 2\n"),
    ("encoding.toml", b"# \xff\xfe\nseed = 1\n"),
    ("run.json", b"{\"seed\": 1}\n"),
    ("empty.toml", b""),
    ("file.txt", b"a file, and not a folder\n"),
    ("binary", b"\x00\x01\x02\xff\xfe\x80\n\x00"),
    ("graph-bad.txt", b"0 1\n1 two\n"),
    ("graph-loop.txt", b"0 1\n1 1\n"),
    ("graph-empty.txt", b"\n"),
    ("net-bad.toml", b"layers = [{ type = 'dense', outputs = 4 }]\n"),
    ("net-small.toml", b"layers = [{ type = 'conv', outputs = 4, size = 99, padding = 0 }, { type = 'linear' }]\n"),
    ("net-empty.toml", b"layers = []\n"),
    ("torn/events.jsonl", b"\x80\x81\x82"),
    ("mine/config.toml", b"# my notes\n"),
    ("pictures/cat/one.png", b"no picture"),
    ("pictures/dog/one.png", b"\x89PNG\r\n\x1a\n"),
    ("bad.npz", b"PK\x03\x04 and then nothing"),
    ("bad.safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "),
];

/// Configurations of peers with a valid key, with too few keys, and with a key that is none.
fn write_peers(folder: &Path, fingerprint: &str) {
    let peer = |key: &str| format!("[[network.peers]]\naddress = \"127.0.0.1:9\"\nkey = \"{key}\"\n");
    let head = "[graph]\ntopology = \"complete:2\"\n";
    let other = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    for (name, peers) in [
        ("peers.toml", vec![peer(other), peer(other)]),
        ("peers-short.toml", vec![peer(fingerprint)]),
        ("peers-key.toml", vec![peer("sha256:short"), peer(fingerprint)]),
    ] {
        std::fs::write(folder.join(name), format!("{head}{}", peers.concat())).unwrap();
    }
}

/// A folder with everything that the requests name.
fn fixture() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for inner in ["empty", "torn", "mine", "pictures/cat", "pictures/dog", "flat"] {
        std::fs::create_dir_all(here.join(inner)).unwrap();
    }
    for (name, content) in FILES {
        std::fs::write(here.join(name), content).unwrap();
    }
    said(here, &["train", "ok.toml", "--out", "done"]);
    said(here, &["compare", "ok.toml", "--out", "compared"]);
    let fingerprint = said(here, &["keys", "new", "taken.key"]);
    write_peers(here, fingerprint.trim());
    folder
}

/// The path, the length and the content of all files.
fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        match path.is_dir() {
            true => {
                found.insert(name, vec![]);
                found.extend(content(&path));
            }
            false => drop(found.insert(name, std::fs::read(&path).unwrap())),
        }
    }
    found
}

/// Splits a request at spaces. Single quotes keep spaces, and an empty argument.
fn arguments(request: &str) -> Vec<String> {
    let (mut arguments, mut current, mut is_quoted) = (Vec::new(), None::<String>, false);
    for character in request.chars() {
        match character {
            '\'' => {
                is_quoted = !is_quoted;
                current.get_or_insert_default();
            }
            ' ' if !is_quoted => arguments.extend(current.take()),
            _ => current.get_or_insert_default().push(character),
        }
    }
    arguments.extend(current);
    arguments
}

/// The requests with their messages.
fn requests(text: &str) -> Vec<(String, String)> {
    let entries = text.split("$ upwash").skip(1).map(|entry| entry.split_once('\n').unwrap());
    entries.map(|(request, message)| (request.trim().to_owned(), message.trim_end().to_owned())).collect()
}

/// A message without the memory of this machine, and what a run needs, which depends on the number of cores.
fn without_memory(text: &str) -> String {
    let parts = text.split_once(" need ").and_then(|(before, rest)| {
        let (_, after) = rest.split_once(" of memory, but only ")?;
        Some((before, after.split_once(" are available")?.1))
    });
    match parts {
        Some((before, after)) => format!("{before} need MEMORY, but only MEMORY are available{after}"),
        None => text.to_owned(),
    }
}

/// What a request printed, without what differs between machines.
fn refusal(folder: &Path, request: &str) -> (Option<i32>, String) {
    let arguments = arguments(request);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = upwash(folder, &arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    let text = without_memory(&text.replace(&folder.display().to_string(), "FOLDER"));
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    (output.status.code(), lines.join("\n").trim_end().to_owned())
}

#[test]
fn bad_input_is_refused_with_a_message_and_leaves_nothing_behind() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad-input.txt");
    let recorded = requests(&std::fs::read_to_string(&path).unwrap());
    assert!(recorded.len() >= 300, "{}", recorded.len());
    let folder = fixture();
    let mut before = content(folder.path());
    let key = said(folder.path(), &["keys", "show", "taken.key"]);
    let (mut wrong, mut text) = (Vec::new(), String::new());
    for (request, expected) in &recorded {
        let (code, message) = refusal(folder.path(), request);
        let message = message.replace(key.trim(), "FINGERPRINT");
        let internal = INTERNALS.iter().find(|internal| message.contains(**internal));
        let problem = match (code, internal) {
            (code, _) if code != Some(2) => Some(format!("exit code {code:?}")),
            (_, Some(internal)) => Some(format!("says `{internal}`")),
            _ if message.is_empty() => Some("says nothing".into()),
            _ if content(folder.path()) != before => {
                before = content(folder.path());
                Some("leaves files behind".into())
            }
            _ if message != *expected && std::env::var_os("UPWASH_RECORD").is_none() => {
                Some(format!("says\n{message}\ninstead of\n{expected}"))
            }
            _ => None,
        };
        wrong.extend(problem.map(|problem| format!("upwash {request}: {problem}\n{message}")));
        text += &format!("{}\n{message}\n", format!("$ upwash {request}").trim_end());
    }
    if std::env::var_os("UPWASH_RECORD").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), recorded.len(), wrong.join("\n\n"));
}
