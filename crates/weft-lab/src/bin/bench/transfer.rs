//! `make bench BENCH=--transfer`: copies of `weft cp` beside those of other programs, from files in
//! memory to files in memory.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use comfy_table::{Table, presets};
use rustix::process::geteuid;
use serde::Serialize;
use weft_lab::endpoint::Port;
use weft_lab::usage::children_cpu;
use weft_lab::{Finished, Folder, Program, Running, machine, ports, weft};

use crate::median;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of the one file.
const LARGE_LEN: usize = 1 << 30;
/// The many files: folders, files in each, and bytes in each of these.
const FOLDERS: usize = 20;
const FILES: usize = 1_000;
const SMALL_LEN: usize = 4 << 10;

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Load {
    Large,
    Small,
}

impl Load {
    fn folder(self) -> &'static str {
        match self {
            Self::Large => "large",
            Self::Small => "small",
        }
    }

    /// A rate of this load, as people read it.
    fn show(self, seconds: f64) -> String {
        match self {
            Self::Large => format!("{:.2} GB/s", LARGE_LEN as f64 / seconds / 1e9),
            Self::Small => format!("{:.1} k files/s", (FOLDERS * FILES) as f64 / seconds / 1e3),
        }
    }

    /// Processor time, for each GiB or each file.
    fn show_cpu(self, seconds: f64) -> String {
        match self {
            Self::Large => format!("{:.2} s/GiB", seconds * (1 << 30) as f64 / LARGE_LEN as f64),
            Self::Small => format!("{:.1} us/file", seconds * 1e6 / (FOLDERS * FILES) as f64),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Large => f.write_str("one file of 1 GiB"),
            Self::Small => f.write_str("20,000 files of 4 KiB"),
        }
    }
}

/// What copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Weft,
    Cp,
    WeftToServer,
    RsyncToDaemon,
    /// It copies no files: it says how fast one TCP connection is.
    Iperf3,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weft => "`weft cp`",
            Self::Cp => "`cp -a`",
            Self::WeftToServer => "`weft cp` to `weft serve`, encrypted",
            Self::RsyncToDaemon => "`rsync -a` to its daemon, in clear",
            Self::Iperf3 => "`iperf3`, in clear, no files",
        })
    }
}

/// What is compared with what.
const GROUPS: [(Load, Tool, &[Tool]); 4] = [
    (Load::Large, Tool::Weft, &[Tool::Cp]),
    (Load::Small, Tool::Weft, &[Tool::Cp]),
    (Load::Large, Tool::WeftToServer, &[Tool::RsyncToDaemon, Tool::Iperf3]),
    (Load::Small, Tool::WeftToServer, &[Tool::RsyncToDaemon]),
];

/// One copy.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sample {
    seconds: f64,
    /// Of both ends, start and end included.
    cpu_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Comparison {
    load: Load,
    weft: Series,
    rival: Series,
    /// How many times as fast as the rival, as the median over the runs of that within each run.
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Series {
    tool: String,
    samples: Vec<Sample>,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    runs: u32,
    comparisons: Vec<Comparison>,
}

/// Measures all, and prints it.
pub(crate) fn run(runs: u32, is_json: bool) -> Result<()> {
    let place = Place::new()?;
    let mut comparisons = Vec::new();
    for (load, weft, rivals) in GROUPS {
        let tools = [&[weft], rivals].concat();
        let mut samples = vec![Vec::new(); tools.len()];
        // The first round fills caches and finds memory: it does not count.
        for run in 0..=runs {
            for (tool, samples) in tools.iter().zip(&mut samples) {
                eprintln!("run {run} of {runs}: {load}: {tool}");
                let sample = place.measure(load, *tool)?;
                if run > 0 {
                    samples.push(sample);
                }
            }
        }
        let series = |index: usize| Series {
            tool: tools[index].to_string(),
            samples: samples[index].clone(),
        };
        comparisons.extend((1..tools.len()).map(|rival| {
            let pairs = samples[0].iter().zip(&samples[rival]);
            let ratio = median(pairs.map(|(weft, rival)| rival.seconds / weft.seconds));
            Comparison { load, weft: series(0), rival: series(rival), ratio }
        }));
    }
    let report = Report { machine: machine::describe(), runs, comparisons };
    if is_json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

impl Report {
    fn print(&self) {
        println!("Machine:   {}", self.machine);
        println!("Path:      files in memory; servers over loopback, free to move between cores");
        println!("Figures:   medians of {} interleaved runs\n", self.runs);
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "load",
            "on Weft",
            "result",
            "CPU",
            "rival",
            "result",
            "CPU",
            "Weft / rival",
        ]);
        for Comparison { load, weft, rival, ratio } in &self.comparisons {
            table.add_row([
                load.to_string(),
                weft.tool.clone(),
                load.show(weft.median(|it| it.seconds)),
                load.show_cpu(weft.median(|it| it.cpu_seconds)),
                rival.tool.clone(),
                load.show(rival.median(|it| it.seconds)),
                load.show_cpu(rival.median(|it| it.cpu_seconds)),
                format!("{ratio:.2}"),
            ]);
        }
        println!("{table}");
        println!("\nCPU: processor time of both ends, start and end included.");
    }
}

impl Series {
    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(of))
    }
}

/// Waits until a process has no children any more: their processor time is its own then.
fn end_of_children(pid: u32) -> Result<()> {
    let start = Instant::now();
    while !fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?.trim().is_empty() {
        ensure!(start.elapsed() < TIMEOUT, "a server has children for {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Folders in memory, with what is copied, and keys of a user.
struct Place {
    folder: Folder,
    /// The user's public key.
    key: String,
}

impl Place {
    fn new() -> Result<Self> {
        let folder = Folder::in_memory(0o700)?;
        let key = String::new();
        let mut place = Self { folder, key };
        let said = place.weft()?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
        said.trim().clone_into(&mut place.key);
        let mut random = fastrand::Rng::with_seed(1);
        let mut noise = vec![0; 16 << 20];
        random.fill(&mut noise);
        let large = place.path(Load::Large.folder());
        fs::create_dir(&large)?;
        let mut file = fs::File::create(large.join("file"))?;
        for _ in 0..LARGE_LEN / noise.len() {
            file.write_all(&noise)?;
        }
        for folder in 0..FOLDERS {
            let path = place.path(Load::Small.folder()).join(folder.to_string());
            fs::create_dir_all(&path)?;
            for file in 0..FILES {
                fs::write(path.join(file.to_string()), &noise[file * SMALL_LEN..][..SMALL_LEN])?;
            }
        }
        Ok(place)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// The command, with this user's keys.
    fn weft(&self) -> Result<Program> {
        Ok(Program::plain(weft()?).env("XDG_CONFIG_HOME", self.path("config")))
    }

    /// Copies once, into a folder that is new.
    fn measure(&self, load: Load, tool: Tool) -> Result<Sample> {
        let to = self.path("to");
        if to.exists() {
            fs::remove_dir_all(&to)?;
        }
        fs::create_dir(&to)?;
        let (before, port) = (children_cpu()?, ports::next());
        let server = self.server(tool, port)?;
        let start = Instant::now();
        let copy = self.client(load, tool, port)?.run(TIMEOUT);
        let seconds = start.elapsed().as_secs_f64();
        copy.and_then(Finished::success).with_context(|| tool.to_string())?;
        if let Some(server) = server {
            end_of_children(server.pid())?;
            server.kill()?;
        }
        let cpu_seconds = (children_cpu()? - before).as_secs_f64();
        Ok(Sample { seconds, cpu_seconds })
    }

    fn server(&self, tool: Tool, port: u16) -> Result<Option<Running>> {
        let port_text = port.to_string();
        let server = match tool {
            Tool::Weft | Tool::Cp => return Ok(None),
            Tool::WeftToServer => self
                .weft()?
                .args(["serve", "--bind", "127.0.0.1", "--port", &port_text])
                .args(["--allow", &self.key])
                .arg(format!("share={}", self.folder.path().display())),
            Tool::RsyncToDaemon => {
                let config = self.path("rsyncd.conf");
                // Without a change of the root directory and of the user: anybody can run it.
                let share = self.folder.path().display();
                // Root's daemon would be somebody else.
                let user = if geteuid().is_root() { "uid = 0\ngid = 0\n" } else { "" };
                let options = "use chroot = no\nread only = no\n";
                fs::write(&config, format!("{options}{user}[share]\npath = {share}\n"))?;
                Program::plain("rsync")
                    .args(["--daemon", "--no-detach", "--address", "127.0.0.1"])
                    .args(["--port", &port_text])
                    .arg(format!("--config={}", config.display()))
            }
            Tool::Iperf3 => {
                Program::plain("iperf3").args(["-s", "-B", "127.0.0.1", "-p", &port_text])
            }
        };
        Ok(Some(server.start()?.listening(Port::Tcp(port))?))
    }

    fn client(&self, load: Load, tool: Tool, port: u16) -> Result<Program> {
        let (from, to) = (self.path(load.folder()).join(""), self.path("to"));
        Ok(match tool {
            Tool::Weft => self.weft()?.args(["cp", "-q"]).arg(from).arg(to),
            Tool::Cp => Program::plain("cp").arg("-a").arg(from.join(".")).arg(to),
            Tool::WeftToServer => {
                let copy = self.weft()?.args(["cp", "-q", "--accept-new"]).arg(from);
                copy.arg(format!("127.0.0.1:{port}//share/to"))
            }
            Tool::RsyncToDaemon => {
                let copy = Program::plain("rsync").args(["-a", "--whole-file"]).arg(from);
                copy.arg(format!("rsync://127.0.0.1:{port}/share/to/"))
            }
            Tool::Iperf3 => Program::plain("iperf3")
                .args(["-c", "127.0.0.1", "-p", &port.to_string()])
                .args(["-n", &LARGE_LEN.to_string()]),
        })
    }
}
