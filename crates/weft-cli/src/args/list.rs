//! The command line of `weft ls`.

use std::ffi::OsString;

use clap::{Args, ValueHint};

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 all is listed, 1 the listing failed, 2 the arguments are \
    wrong, 3 some of it could not be read.")]
pub(crate) struct LsArgs {
    /// What to list: HOST: for the shares of a server, HOST:SHARE/PATH, or HOST:PORT//SHARE/PATH
    ///
    /// With --rsh it is `[USER@]HOST:PATH`, and HOST: is the home directory. Of a directory, what
    /// is in it is listed.
    #[arg(value_name = "PLACE", value_hint = ValueHint::Other)]
    pub(crate) place: OsString,

    /// Print mode, size in bytes and time (UTC), too, and where links lead
    #[arg(short, long)]
    pub(crate) long: bool,

    /// Print each entry as a JSON object, one a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Reach the other host by this remote shell, such as ssh, which starts weft there
    #[arg(short = 'e', long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) rsh: Option<String>,

    /// The program that the remote shell starts
    #[arg(long, value_name = "PROGRAM", default_value = "weft", requires = "rsh")]
    pub(crate) remote_weft: String,

    /// Trust a server whose key is not known yet, and remember its key
    #[arg(long)]
    pub(crate) accept_new: bool,
}
