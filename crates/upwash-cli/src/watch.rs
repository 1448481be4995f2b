//! `upwash watch`, and `upwash train --watch`

use crate::runs::{end_cleanly_when_interrupted, interrupted};
use anyhow::{Context, Result};
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;
use upwash_watch::{Place, Server, Token};

/// Where runs are shown.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:8230";

/// The token, if it is not to be made up: an argument would be seen by everyone on the machine.
const TOKEN: &str = "UPWASH_TOKEN";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of a run, which may be over
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Where browsers find it; an address that other machines can reach needs a token, which is made and
    /// printed unless UPWASH_TOKEN has one
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS, value_parser = address)]
    listen: SocketAddr,
}

/// `127.0.0.1:8230`, or with a name that stands for such an address.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = || "write ADDRESS:PORT, as 127.0.0.1:8230; port 0 is any that is free".to_owned();
    let found = text.to_socket_addrs().ok();
    found.and_then(|mut found| found.next()).ok_or_else(wrong)
}

/// Serves until Ctrl-C.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let _server = show(take(args.listen)?, &args.run, out)?;
    end_cleanly_when_interrupted()?;
    while !interrupted() {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// An address for browsers.
pub(crate) fn take(address: SocketAddr) -> Result<Place> {
    let given = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
    let token = match given {
        Some(token) => Some(token.parse::<Token>().context(TOKEN)?),
        None if address.ip().is_loopback() => None,
        None => Some(Token::generate()),
    };
    Ok(Place::take(address, token)?)
}

/// Shows a run there, and says where that is.
pub(crate) fn show(place: Place, run: &Path, out: &mut impl Write) -> Result<Server> {
    let server = place.show(run)?;
    writeln!(out, "watch it at {}", server.url())?;
    if !server.is_local() {
        writeln!(
            out,
            "note: others on the way can read what is sent, the token too; over a network that is not yours, \
             watch on 127.0.0.1 through `ssh -L`"
        )?;
    }
    out.flush()?;
    Ok(server)
}
