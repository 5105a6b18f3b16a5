//! The command line of `weft pipeline`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

#[derive(Debug, Args)]
pub(crate) struct PipelineArgs {
    #[command(subcommand)]
    pub(crate) command: PipelineCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PipelineCommand {
    /// Run the pipeline that a file describes
    Run(PipelineRunArgs),
    /// Check a file, and draw its filters and streams
    Check(PipelineCheckArgs),
    /// Run one copy of a filter, for `weft pipeline run`, which starts this
    #[command(hide = true)]
    Worker {
        /// Standard input is a socket, which has the messages of both sides
        #[arg(long)]
        socket: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Standard output has what filters write that no other filter reads. \
    Everything else goes to standard error.\n\
    Exit status: 0 if all units of work are done, 1 if a filter failed or a process died.")]
pub(crate) struct PipelineRunArgs {
    #[command(flatten)]
    pub(crate) file: PipelineFile,

    /// Reach other hosts by this remote shell, such as ssh, which starts weft there
    #[arg(short = 'e', long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) rsh: Option<String>,

    /// The program that the remote shell starts
    #[arg(long, value_name = "PROGRAM", default_value = "weft", requires = "rsh")]
    pub(crate) remote_weft: String,

    /// Print events as JSON, one a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Print problems only
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PipelineCheckArgs {
    #[command(flatten)]
    pub(crate) file: PipelineFile,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A description of a pipeline, and settings in place of its own.
#[derive(Debug, Args)]
pub(crate) struct PipelineFile {
    /// The description, in TOML
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) path: PathBuf,

    /// Length of buffers: 4096, 64K, 1M
    #[arg(long, value_name = "SIZE")]
    pub(crate) buffer: Option<weft_pipeline::Size>,

    /// Buffers that a copy has unacknowledged at each copy that it sends to
    #[arg(long, value_name = "COUNT")]
    pub(crate) window: Option<u32>,

    /// How copies of a filter share a stream
    #[arg(long, value_enum)]
    pub(crate) schedule: Option<Schedule>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Schedule {
    /// A buffer goes to the copy with the fewest unacknowledged ones
    Demand,
    /// One copy after the other
    RoundRobin,
}
