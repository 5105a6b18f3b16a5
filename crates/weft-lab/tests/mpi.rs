//! MPI: Debian's Open MPI and the `mpich` wheel, both by way of libfabric's verbs provider.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use weft_lab::{Finished, NamespacePair, Program, kept, locate, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(180);
/// Installing from a package index, by way of the network.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);

/// `mpi4py`'s own tests: blocking, non-blocking and matched point-to-point, and collectives, of
/// buffers and of Python objects. Its test runner takes regular expressions of module names.
const MPI4PY_TESTS: [&str; 2] = ["test_p2p_(buf|obj)", "test_cco_(buf|vec|obj|nb_buf|nb_vec)"];

/// A Python environment with the `mpich` wheel, `mpi4py`, and the sources of its tests.
struct Python {
    bin: PathBuf,
    tests: PathBuf,
}

impl Python {
    /// The environment, made by the first test that needs it and kept for later runs.
    fn prepare() -> Result<Self> {
        static LOCK: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);
        let _lock = LOCK.lock().map_err(|_| anyhow!("another test failed to make it"))?;
        let directory = kept("python")?;
        let bin = directory.join("bin");
        let sources = directory.join("src");
        if !directory.join("complete").exists() {
            Self::install(&directory, &bin, &sources)?;
            fs::write(directory.join("complete"), "")?;
        }
        let mut releases = fs::read_dir(&sources)?.flatten().map(|entry| entry.path());
        let release = releases.find(|path| path.join("test/main.py").is_file());
        let tests = release.context("no tests in the sources of mpi4py")?.join("test/main.py");
        Ok(Self { bin, tests })
    }

    fn install(directory: &Path, bin: &Path, sources: &Path) -> Result<()> {
        let run = |program: Program| program.run(INSTALL_TIMEOUT)?.success().map(drop);
        // Debian's own, whatever else PATH offers: python3-venv belongs to it.
        run(Program::plain("/usr/bin/python3").args(["-m", "venv", "--clear"]).arg(directory))
            .context("sudo apt-get install -y python3-venv")?;
        let pip = || Program::plain(bin.join("python")).line("-m pip --disable-pip-version-check");
        run(pip().line("install --quiet mpich mpi4py"))?;
        run(pip().line("download --quiet --no-deps --no-binary mpi4py mpi4py -d").arg(sources))?;
        let archive = fs::read_dir(sources)?.flatten().map(|entry| entry.path()).next();
        let archive = archive.context("pip downloaded nothing")?;
        run(Program::plain("tar").arg("xzf").arg(archive).arg("-C").arg(sources))
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

fn ring(mpi: Mpi, hosts: &Hosts<'_>, ranks: u32) -> Result<()> {
    let python = Python::prepare()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/ring.py");
    let program = mpi.launcher(&python, hosts, ranks)?.arg(script);
    let ended = program.run(TIMEOUT)?.success()?.said(&format!("ring: {ranks} ranks"))?;
    mpi.used_verbs(&ended)
}

fn mpi4py_tests(mpi: Mpi) -> Result<()> {
    let python = Python::prepare()?;
    for modules in MPI4PY_TESTS {
        let program = mpi.launcher(&python, &Hosts::Local, 2)?;
        let program = program.arg(&python.tests).args(["-q", "-i", modules]);
        let ended = program.run(TIMEOUT)?.success().context(modules)?;
        let text = format!("{}{}", ended.stdout, ended.stderr);
        let ran = text.lines().any(|line| line.starts_with("Ran ") && !line.starts_with("Ran 0 "));
        ensure!(ran && text.contains("\nOK"), ended.complaint(modules));
        mpi.used_verbs(&ended)?;
    }
    Ok(())
}

fn across_namespaces(mpi: Mpi) -> Result<()> {
    let pair = NamespacePair::new()?;
    ring(mpi, &Hosts::Split(&pair), 4)
}

#[test]
fn open_mpi_ring() -> Result<()> {
    ring(Mpi::Open, &Hosts::Local, 2)
}

#[test]
fn open_mpi_runs_the_tests_of_mpi4py() -> Result<()> {
    mpi4py_tests(Mpi::Open)
}

#[test]
fn open_mpi_four_ranks_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    across_namespaces(Mpi::Open)
}

#[test]
fn mpich_ring() -> Result<()> {
    ring(Mpi::Mpich, &Hosts::Local, 2)
}

#[test]
fn mpich_runs_the_tests_of_mpi4py() -> Result<()> {
    mpi4py_tests(Mpi::Mpich)
}

#[test]
fn mpich_four_ranks_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    across_namespaces(Mpi::Mpich)
}
