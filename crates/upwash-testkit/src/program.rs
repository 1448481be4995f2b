//! Runs a built program as its user does.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The path of a program: `env!("CARGO_BIN_EXE_...")`.
#[derive(Clone, Copy, Debug)]
pub struct Program(&'static str);

impl Program {
    /// The program at `path`.
    pub const fn new(path: &'static str) -> Self {
        Self(path)
    }

    /// A command that runs in `folder` with its own data and state directories, so that tests do not touch the user's.
    pub fn command(self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.0);
        command.env("UPWASH_DATA", folder.join("data")).env("XDG_STATE_HOME", folder.join("state"));
        command.args(arguments).current_dir(folder);
        command
    }

    /// Runs the program to completion.
    pub fn output(self, folder: &Path, arguments: &[&str]) -> Output {
        self.command(folder, arguments).output().unwrap()
    }

    /// The standard output of a run, which must succeed.
    pub fn said(self, folder: &Path, arguments: &[&str]) -> String {
        let output = self.output(folder, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The standard error of a run, which must fail with exit code 2.
    pub fn error(self, folder: &Path, arguments: &[&str]) -> String {
        let output = self.output(folder, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Starts the program, interrupts it once `ready` returns true, and returns its output.
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
        wait_with_timeout(child)
    }
}

/// Waits for a process to exit.
///
/// # Panics
/// If it does not exit within two minutes. The process is killed first.
pub fn wait_with_timeout(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("the process did not exit within two minutes");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}
