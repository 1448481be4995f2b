//! A built program as its user runs it.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The path of a program: `env!("CARGO_BIN_EXE_...")`.
#[derive(Clone, Copy, Debug)]
pub struct Program(&'static str);

impl Program {
    /// Of a path.
    pub const fn new(path: &'static str) -> Self {
        Self(path)
    }

    /// In a folder, with a store of data of its own: tests leave no trace in the user's.
    fn command(self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.0);
        command.env("UPWASH_DATA", folder.join("data")).args(arguments).current_dir(folder);
        command
    }

    /// Runs it to its end.
    pub fn output(self, folder: &Path, arguments: &[&str]) -> Output {
        self.command(folder, arguments).output().unwrap()
    }

    /// What it prints, where all goes well.
    pub fn said(self, folder: &Path, arguments: &[&str]) -> String {
        let output = self.output(folder, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says of a mistake.
    pub fn error(self, folder: &Path, arguments: &[&str]) -> String {
        let output = self.output(folder, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Begins it, interrupts it once it has `ready`, and gives what it says at its end.
    pub fn interrupted(self, folder: &Path, arguments: &[&str], ready: impl Fn() -> bool) -> Output {
        let mut command = self.command(folder, arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !ready() {
            assert!(Instant::now() < deadline, "{arguments:?} did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut kill = Command::new("kill");
        kill.args(["-INT", &child.id().to_string()]);
        assert!(kill.status().unwrap().success());
        ended(child)
    }
}

/// Waits for its end, but not for ever.
pub fn ended(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}
