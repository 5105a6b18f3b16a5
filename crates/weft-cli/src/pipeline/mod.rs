//! `weft pipeline`: runs filters that are connected by streams.

mod show;

use anyhow::Result;
use weft_pipeline::worker::{Channel, serve};
use weft_pipeline::{Changes, Launch, Pipeline, Policy};

use crate::args::{PipelineCommand, PipelineFile, PipelineRunArgs, Schedule};
use crate::transfer::shell::words;
use crate::{layout, output};

/// Runs a subcommand.
pub(crate) fn run(command: &PipelineCommand) -> Result<()> {
    match command {
        PipelineCommand::Run(args) => run_file(args),
        PipelineCommand::Check(args) => {
            let pipeline = load(&args.file)?;
            let text = if args.json { show::json(&pipeline) } else { show::drawing(&pipeline) };
            output::print(&text)
        }
        PipelineCommand::Worker { socket } => {
            Ok(serve(if *socket { Channel::Socket } else { Channel::Streams })?)
        }
    }
}

fn run_file(args: &PipelineRunArgs) -> Result<()> {
    let pipeline = load(&args.file)?;
    let program = layout::executable()?;
    let worker = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let launch = Launch {
        local: (program, worker(&["pipeline", "worker", "--socket"])),
        rsh: args.rsh.as_deref().map(words).transpose()?,
        remote: worker(&[&args.remote_weft, "pipeline", "worker"]),
    };
    let mut progress = show::Progress::new(&pipeline, args.json, args.quiet)?;
    let result = weft_pipeline::run(&pipeline, &launch, &mut |copies| progress.update(copies));
    progress.end();
    let report = result?;
    if !args.quiet || args.json {
        show::summary(&report, args.json);
    }
    Ok(())
}

fn load(file: &PipelineFile) -> Result<Pipeline> {
    let policy = file.schedule.map(|schedule| match schedule {
        Schedule::Demand => Policy::Demand,
        Schedule::RoundRobin => Policy::RoundRobin,
    });
    let changes = Changes { buffer: file.buffer, window: file.window, policy };
    Ok(Pipeline::load(&file.path, changes)?)
}
