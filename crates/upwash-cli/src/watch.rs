//! `upwash watch` and `upwash train --watch`: the live view of a run.

use crate::runs::{end_cleanly_when_interrupted, interrupted};
use anyhow::{Context, Result};
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;
use upwash_watch::{Listener, Server, Token};

/// The address of the live page, unless another one is given.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:8230";

/// The environment variable with the token. Command-line arguments would be visible to all users of the machine.
const TOKEN_VARIABLE: &str = "UPWASH_TOKEN";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of a run, in progress or ended
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS, value_parser = address)]
    listen: SocketAddr,
    #[command(flatten)]
    access: Access,
}

/// Who may open the page.
#[derive(clap::Args)]
pub(crate) struct Access {
    /// Let every user of this machine open the live page. Without this, the page needs a token: UPWASH_TOKEN, or a
    /// new one that is part of the printed address
    #[arg(long)]
    pub(crate) no_token: bool,
}

/// Parses an address such as `127.0.0.1:8230` or `localhost:8230`.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = || "write ADDRESS:PORT, for example 127.0.0.1:8230; port 0 selects a free port".to_owned();
    let found = text.to_socket_addrs().ok();
    found.and_then(|mut found| found.next()).ok_or_else(wrong)
}

/// Serves until Ctrl-C.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let _server = show(take(args.listen, &args.access)?, &args.run, out)?;
    end_cleanly_when_interrupted()?;
    while !interrupted() {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Binds the address of the live page. Uses the token from the environment, or generates one: on a loopback address,
/// too, since other users of this machine can reach it.
pub(crate) fn take(address: SocketAddr, access: &Access) -> Result<Listener> {
    let given = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    let token = match given {
        _ if access.no_token => None,
        Some(token) => Some(token.parse::<Token>().context(TOKEN_VARIABLE)?),
        None => Some(Token::generate()),
    };
    Ok(Listener::bind(address, token)?)
}

/// Starts serving a run and prints the URL.
pub(crate) fn show(listener: Listener, run: &Path, out: &mut impl Write) -> Result<Server> {
    let server = listener.serve(run)?;
    writeln!(out, "watch it at {}", server.url())?;
    if !server.is_local() {
        writeln!(
            out,
            "note: the connection is not encrypted, so others on the network can read the page and the token; on a \
             network you do not trust, listen on 127.0.0.1 and connect through `ssh -L`"
        )?;
    }
    out.flush()?;
    Ok(server)
}
