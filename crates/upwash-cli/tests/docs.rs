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

/// The commands of a page that run, and what is wrong with its marks.
fn commands(name: &str, text: &str) -> (String, Vec<String>) {
    let (mut script, mut wrong, mut inside) = (String::new(), Vec::new(), None::<String>);
    for (number, line) in (1..).zip(text.lines()) {
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
