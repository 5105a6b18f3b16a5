//! MPI: Debian's Open MPI and the `mpich` wheel, both by way of libfabric's verbs provider.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use weft_lab::{
    Finished, NamespacePair, Program, kept, locate, note_skip, skip_without_namespaces,
};

const TIMEOUT: Duration = Duration::from_secs(180);
/// Installing from a package index, by way of the network.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);

/// `mpi4py`'s own tests: blocking, non-blocking and matched point-to-point, and collectives, of
/// buffers and of Python objects. Its test runner takes regular expressions of module names.
const MPI4PY_TESTS: [&str; 2] = ["test_p2p_(buf|obj)", "test_cco_(buf|vec|obj|nb_buf|nb_vec)"];

/// Names, as patterns, of tests that Open MPI's use of libfabric fails with any provider, plain
/// TCP included (cancelling, synchronous sends, `MPI_BOTTOM`), and of one that takes a send for
/// complete as soon as its message has been received.
const OPEN_MPI_FAILS: [&str; 6] =
    ["testCancel", "SSend", "*P2PObj*.testProbe", "SomeSend", "ManyISend", "Bottom"];

/// What the package index is asked for.
const PACKAGES: [&str; 2] = ["mpich==5.0.2", "mpi4py==4.1.2"];
const TESTS_RELEASE: &str = "mpi4py-4.1.2";

/// A Python environment with the `mpich` wheel, `mpi4py`, and the sources of its tests.
struct Python {
    bin: PathBuf,
    tests: PathBuf,
}

impl Python {
    /// The environment for the test `name`. The first test that needs it makes it, and it is kept
    /// for later runs. `None`, with a note, where the package index is out of reach.
    fn for_test(name: &str) -> Result<Option<Self>> {
        static OUTCOME: OnceLock<std::result::Result<Option<String>, String>> = OnceLock::new();
        let directory = kept("python")?;
        let (bin, sources) = (directory.join("bin"), directory.join("src"));
        let outcome = OUTCOME.get_or_init(|| {
            Self::install(&directory, &bin, &sources).map_err(|error| format!("{error:#}"))
        });
        match outcome {
            Ok(None) => {
                Ok(Some(Self { bin, tests: sources.join(TESTS_RELEASE).join("test/main.py") }))
            }
            Ok(Some(out_of_reach)) => {
                note_skip(name, out_of_reach);
                Ok(None)
            }
            Err(error) => bail!("{error}"),
        }
    }

    /// Returns why the package index does not give what is wanted, if it does not.
    fn install(directory: &Path, bin: &Path, sources: &Path) -> Result<Option<String>> {
        let complete = directory.join(format!("complete {}", PACKAGES.join(" ")));
        if complete.exists() {
            return Ok(None);
        }
        let run = |program: Program| program.run(INSTALL_TIMEOUT)?.success().map(drop);
        // Debian's own, whatever else PATH offers: python3-venv belongs to it.
        run(Program::plain("/usr/bin/python3").args(["-m", "venv", "--clear"]).arg(directory))
            .context("sudo apt-get install -y python3-venv")?;
        let pip = Program::plain(bin.join("python")).line("-m pip --disable-pip-version-check");
        let [_, mpi4py] = PACKAGES;
        let no_binary = pip.clone().line("download --quiet --no-deps --no-binary mpi4py -d");
        for step in [pip.line("install --quiet").args(PACKAGES), no_binary.arg(sources).arg(mpi4py)]
        {
            let ended = step.run(INSTALL_TIMEOUT)?;
            if !ended.status.success() {
                let last = ended.stderr.lines().rfind(|line| line.starts_with("ERROR"));
                return Ok(Some(format!("pip: {}", last.unwrap_or("no reason given"))));
            }
        }
        let archive = sources.join(format!("{TESTS_RELEASE}.tar.gz"));
        run(Program::plain("tar").arg("xzf").arg(archive).arg("-C").arg(sources))?;
        fs::write(complete, "")?;
        Ok(None)
    }
}

/// An MPI, with all that makes it use the verbs provider and nothing else between ranks.
#[derive(Clone, Copy, PartialEq)]
enum Mpi {
    Open,
    Mpich,
}

/// Where ranks run.
enum Hosts<'a> {
    /// All here.
    Local,
    /// Half of them in each namespace.
    Split(&'a NamespacePair),
}

impl Mpi {
    /// The launcher for `ranks` ranks. The program and its arguments follow.
    fn launcher(self, python: &Python, hosts: &Hosts<'_>, ranks: u32) -> Result<Program> {
        let on_host = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/on-host");
        let launcher = match self {
            // By name: given a path, it would have other hosts look below that path, too.
            Self::Open => locate("mpirun.openmpi").map(|_| "mpirun.openmpi".into())?,
            Self::Mpich => python.bin.join("mpiexec"),
        };
        let program = match hosts {
            Hosts::Local => Program::weft(launcher),
            Hosts::Split(pair) => {
                let prefix = pair.left.name.strip_suffix("left").context("not a left side")?;
                // Launchers tell hosts apart by their names, so each namespace gets its own.
                Program::weft("unshare")
                    .within(Some(&pair.left))
                    .env("WEFT_LAB_HOSTS", prefix)
                    .args(["--uts", "sh", "-c", r#"hostname left && exec "$@""#, "sh"])
                    .arg(launcher)
            }
        };
        let (ranks, half) = (ranks.to_string(), (ranks / 2).to_string());
        let program = match (self, hosts) {
            (Self::Open, Hosts::Local) => program.arg("--oversubscribe"),
            (Self::Open, Hosts::Split(_)) => program
                .arg("--host")
                .arg(format!("left:{half},right:{half}"))
                .line("--mca plm_rsh_agent")
                .arg(&on_host),
            (Self::Mpich, Hosts::Local) => program,
            (Self::Mpich, Hosts::Split(_)) => program
                .line("-launcher rsh -launcher-exec")
                .arg(&on_host)
                .line("-iface weft0 -hosts left,right -ppn")
                .arg(&half),
        };
        Ok(self.configure(program).args(["-n", &ranks]).arg(python.bin.join("python")))
    }

    fn configure(self, program: Program) -> Program {
        match self {
            Self::Open => program
                .env("MPI4PY_MPIABI", "openmpi")
                .env("MPI4PY_LIBMPI", "libmpi.so.40")
                // Its shared-memory store wants a directory that containers may lack.
                .env("PMIX_MCA_gds", "hash")
                .line("--allow-run-as-root --mca pml cm --mca mtl ofi")
                .args(["--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"])
                .line("--mca opal_common_ofi_verbose 1 --mca mtl_base_verbose 20"),
            Self::Mpich => program
                .env("FI_PROVIDER", "verbs")
                .env("MPIR_CVAR_CH4_NETMOD", "ofi")
                // Ranks on one host would use shared memory.
                .env("MPIR_CVAR_NOLOCAL", "1")
                .env("MPIR_CVAR_DEBUG_SUMMARY", "1"),
        }
    }

    /// Checks that the library says it uses the verbs provider.
    fn used_verbs(self, end: &Finished) -> Result<()> {
        let text = format!("{}{}", end.stdout, end.stderr);
        let said = match self {
            Self::Open => text.lines().any(|line| line.contains("mtl:ofi:prov: verbs")),
            Self::Mpich => text.lines().any(|line| line.starts_with("libfabric provider: verbs")),
        };
        ensure!(said, end.complaint("no word of the verbs provider"));
        Ok(())
    }
}

fn ring(name: &str, mpi: Mpi, hosts: &Hosts<'_>, ranks: u32) -> Result<()> {
    let Some(python) = Python::for_test(name)? else { return Ok(()) };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/ring.py");
    let program = mpi.launcher(&python, hosts, ranks)?.arg(script);
    let ended = program.run(TIMEOUT)?.success()?.said(&format!("ring: {ranks} ranks"))?;
    mpi.used_verbs(&ended)
}

fn mpi4py_tests(name: &str, mpi: Mpi) -> Result<()> {
    let Some(python) = Python::for_test(name)? else { return Ok(()) };
    for modules in MPI4PY_TESTS {
        let program = mpi.launcher(&python, &Hosts::Local, 2)?;
        let program = program.arg(&python.tests).args(["-q", "-i", modules]);
        let left_out: &[&str] = if mpi == Mpi::Open { &OPEN_MPI_FAILS } else { &[] };
        let program = left_out.iter().fold(program, |program, name| program.args(["-x", name]));
        let ended = program.run(TIMEOUT)?.success().context(modules)?;
        let text = format!("{}{}", ended.stdout, ended.stderr);
        let ran = text.lines().any(|line| line.starts_with("Ran ") && !line.starts_with("Ran 0 "));
        ensure!(ran && text.contains("\nOK"), ended.complaint(modules));
        mpi.used_verbs(&ended)?;
    }
    Ok(())
}

fn across_namespaces(name: &str, mpi: Mpi) -> Result<()> {
    let pair = NamespacePair::new()?;
    ring(name, mpi, &Hosts::Split(&pair), 4)
}

#[test]
fn open_mpi_ring() -> Result<()> {
    ring("open_mpi_ring", Mpi::Open, &Hosts::Local, 2)
}

#[test]
fn open_mpi_runs_the_tests_of_mpi4py() -> Result<()> {
    mpi4py_tests("open_mpi_runs_the_tests_of_mpi4py", Mpi::Open)
}

#[test]
fn open_mpi_four_ranks_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    across_namespaces("open_mpi_four_ranks_across_namespaces", Mpi::Open)
}

#[test]
fn mpich_ring() -> Result<()> {
    ring("mpich_ring", Mpi::Mpich, &Hosts::Local, 2)
}

#[test]
fn mpich_runs_the_tests_of_mpi4py() -> Result<()> {
    mpi4py_tests("mpich_runs_the_tests_of_mpi4py", Mpi::Mpich)
}

#[test]
fn mpich_four_ranks_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    across_namespaces("mpich_four_ranks_across_namespaces", Mpi::Mpich)
}
