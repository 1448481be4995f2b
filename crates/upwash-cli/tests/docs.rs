//! Every command of the README and of docs/ runs: the blocks marked `sh run`, in order, in an empty folder for each
//! page. A block that cannot run here is marked `sh skip: REASON`.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// In place of a build: a cargo that runs the program that has been built.
const CARGO: &str = "#!/bin/sh
case \"$*\" in
  'run --release -- '*) shift 3; exec upwash \"$@\" ;;
  *) echo \"the documentation calls cargo $*: mark the block as skip\" >&2; exit 1 ;;
esac
";

/// How long the commands of all pages may take together.
const ALL_PAGES: Duration = Duration::from_secs(480);
static STARTED: OnceLock<Instant> = OnceLock::new();

/// The README and all pages.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap();
    let mut pages: Vec<PathBuf> = docs.map(|entry| entry.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|kind| kind == "md"));
    pages.sort();
    pages.insert(0, root.join("README.md"));
    pages
}

/// Pages whose commands do not run here; each has to say why.
fn other_pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = ["CONTRIBUTING.md", "python/README.md", "results/README.md"].map(|name| root.join(name));
    let readmes = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path().join("README.md"));
    pages.into_iter().chain(readmes).filter(|path| path.exists()).collect()
}

/// Finds blocks of code that are marked by their indentation.
struct IndentedBlocks {
    /// Where the text of the current list item begins; 0 outside of lists.
    content: usize,
    follows_blank: bool,
}

impl Default for IndentedBlocks {
    fn default() -> Self {
        Self { content: 0, follows_blank: true }
    }
}

impl IndentedBlocks {
    /// Whether an indented block begins with this line, which is outside of other blocks.
    fn begin_at(&mut self, line: &str) -> bool {
        let text = line.trim_start();
        let indent = line[..line.len() - text.len()].chars().map(|c| if c == '\t' { 4 } else { 1 }).sum::<usize>();
        let follows_blank = std::mem::replace(&mut self.follows_blank, text.is_empty());
        if text.is_empty() {
            return false;
        }
        if follows_blank && indent < self.content {
            self.content = 0;
        }
        if follows_blank && indent >= self.content + 4 {
            return true;
        }
        let marker = text.split(' ').next().unwrap_or("");
        let is_number = marker.strip_suffix('.').is_some_and(|digits| digits.parse::<u32>().is_ok());
        if ["-", "*", "+"].contains(&marker) || is_number {
            self.content = indent + marker.len() + 1;
        }
        false
    }
}

/// The commands of a page that run, and what is wrong with its marks.
fn commands(name: &str, text: &str) -> (String, Vec<String>) {
    let (mut script, mut wrong, mut inside) = (String::new(), Vec::new(), None::<String>);
    let mut indented = IndentedBlocks::default();
    for (number, line) in (1..).zip(text.lines()) {
        if inside.is_none() && line.trim_start_matches(['>', ' ', '\t']).starts_with("~~~") {
            wrong.push(format!("{name}:{number}: begin this block with ```"));
        }
        if inside.is_none() && line.starts_with('>') && line.contains("```") {
            wrong.push(format!("{name}:{number}: this block is in a quotation: take it out"));
        }
        if inside.is_none() && indented.begin_at(line) {
            wrong.push(format!("{name}:{number}: this block is indented: put it between ```"));
        }
        let fence = line.trim_start().strip_prefix("```");
        match (&inside, fence) {
            (None, Some(info)) => {
                let (language, mark) = info.trim().split_once([' ', ',']).unwrap_or((info.trim(), ""));
                let is_shell = ["sh", "bash", "shell", "console", "zsh"].contains(&language);
                let is_marked = language == "sh" && (mark == "run" || mark.len() > 6 && mark.starts_with("skip: "));
                if language.is_empty() {
                    wrong.push(format!("{name}:{number}: this block names no language; output is `text`"));
                } else if is_shell && !is_marked {
                    wrong.push(format!("{name}:{number}: mark this block as `sh run` or `sh skip: REASON`"));
                }
                inside = Some(if is_shell { mark.to_owned() } else { String::new() });
            }
            (Some(_), Some(_)) => inside = None,
            (Some(mark), None) if mark == "run" => script += &format!("{line}\n"),
            _ => {}
        }
    }
    (script, wrong)
}

#[test]
fn every_block_of_commands_is_marked() {
    let mut wrong = Vec::new();
    for page in pages() {
        let name = page.file_name().unwrap().to_string_lossy();
        wrong.extend(commands(&name, &std::fs::read_to_string(&page).unwrap()).1);
    }
    for page in other_pages() {
        let (script, problems) = commands(&page.display().to_string(), &std::fs::read_to_string(&page).unwrap());
        wrong.extend(problems);
        assert!(script.is_empty(), "{}: the commands of this page are not run: mark them as skip", page.display());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unmarked_blocks_are_found() {
    for (text, is_right) in [
        ("```sh run\nupwash demo\n```\n", true),
        ("```sh skip: needs a GPU\nupwash demo\n```\n", true),
        ("```toml\nseed = 1\n```\n", true),
        ("```sh\nupwash demo\n```\n", false),
        ("```sh skip:\nupwash demo\n```\n", false),
        ("```bash run\nupwash demo\n```\n", false),
        ("```console\n$ upwash demo\n```\n", false),
        ("```\nupwash demo\n```\n", false),
        ("~~~sh\nupwash demo\n~~~\n", false),
        ("> ```sh\n> upwash demo\n> ```\n", false),
        ("Text:\n\n    upwash demo\n", false),
        ("\tupwash demo\n", false),
        ("- item\n\n      upwash demo\n", false),
        ("- item\n\nText:\n\n    upwash demo\n", false),
        ("1. item\n   goes on\n\n   and on\n   - inner\n\n     text\n", true),
        ("Text goes on\n    after a break.\n", true),
        ("```text\n~~~\n\n    upwash demo\n```\n", true),
    ] {
        let (script, wrong) = commands("page.md", text);
        assert_eq!(wrong.is_empty(), is_right, "{text}");
        assert_eq!(script == "upwash demo\n", text.contains("sh run"), "{text}");
    }
}

/// Pages run side by side, as many as there are tests at a time.
macro_rules! run_pages {
    ($($test:ident: $page:literal,)*) => {
        const LISTED: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                run($page);
            }
        )*
    };
}

run_pages! {
    readme: "README.md",
    algorithms: "algorithms.md",
    clusters: "clusters.md",
    gpu: "gpu.md",
    graphs: "graphs.md",
    looking_at_runs: "looking-at-runs.md",
    peers: "peers.md",
    training: "training.md",
}

#[test]
fn every_page_with_commands_is_run() {
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap();
        let (script, _) = commands(name, &std::fs::read_to_string(&page).unwrap());
        assert!(script.is_empty() || LISTED.contains(&name), "add {name} to `run_pages`");
    }
}

/// Runs the commands of a page in an empty folder. The first that fails is an error.
fn run(name: &str) {
    let page = pages().into_iter().find(|page| page.ends_with(name)).unwrap();
    let (script, _) = commands(name, &std::fs::read_to_string(&page).unwrap());
    assert!(!script.is_empty(), "{name} has no commands that run: remove it from `run_pages`");
    let (folder, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_upwash"), tools.path().join("upwash")).unwrap();
    let cargo = tools.path().join("cargo");
    std::fs::write(&cargo, CARGO).unwrap();
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap());
    let log = tools.path().join("log");
    let output = std::fs::File::create(&log).unwrap();
    // `timeout` ends the whole group of processes: no page may hang.
    let seconds = ALL_PAGES.saturating_sub(STARTED.get_or_init(Instant::now).elapsed()).as_secs().max(1).to_string();
    let status = Command::new("timeout")
        .args([seconds.as_str(), "bash", "-euxo", "pipefail", "-c", &script])
        .current_dir(folder.path())
        .env("PATH", path)
        .env("UPWASH_DATA", tools.path().join("data"))
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .status()
        .unwrap();
    let said = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
    let last: Vec<&str> = said.lines().rev().take(30).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    assert!(status.success(), "{name}: {status}\n{}", last.join("\n"));
}
