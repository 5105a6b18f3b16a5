//! MPI: Debian's Open MPI and the `mpich` wheel, both over libfabric's verbs provider.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::mpi4py::{Library, Mpi4py};
use weft_lab::{Finished, NamespacePair, Program, locate, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(180);

/// `mpi4py`'s own tests: blocking, non-blocking and matched point-to-point, and collectives, of
/// buffers and of Python objects. Its test runner takes regular expressions of module names.
const MPI4PY_TESTS: [&str; 2] = ["test_p2p_(buf|obj)", "test_cco_(buf|vec|obj|nb_buf|nb_vec)"];

/// Names, as patterns, of tests that Open MPI's use of libfabric fails with any provider, plain
/// TCP included (cancelling, synchronous sends, `MPI_BOTTOM`), and of one that takes a send for
/// complete as soon as its message has been received.
const OPEN_MPI_FAILS: [&str; 6] =
    ["testCancel", "SSend", "*P2PObj*.testProbe", "SomeSend", "ManyISend", "Bottom"];

/// An MPI library, with the settings that make it use only the verbs provider between ranks.
#[derive(Clone, Copy, PartialEq)]
enum Mpi {
    Open,
    Mpich,
}

/// Where ranks run.
enum Hosts<'a> {
    /// All ranks in the lab's own namespace.
    Local,
    /// Half of the ranks in each of two namespaces.
    Split(&'a NamespacePair),
}

impl Mpi {
    /// Returns the launcher for `ranks` ranks. The program and its arguments follow.
    fn launcher(self, python: &Mpi4py, hosts: &Hosts<'_>, ranks: u32) -> Result<Program> {
        let on_host = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/on-host");
        let launcher = match self {
            // By name: with a path, the launcher uses the same path on the other hosts.
            Self::Open => locate("mpirun.openmpi").map(|_| "mpirun.openmpi".into())?,
            Self::Mpich => python.program("mpiexec"),
        };
        let program = match hosts {
            Hosts::Local => Program::weft(launcher),
            Hosts::Split(pair) => {
                let prefix = pair.left.name.strip_suffix("left").context("not a left side")?;
                // Launchers distinguish hosts by name, so each namespace gets its own host name.
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
        Ok(self.configure(program)?.args(["-n", &ranks]))
    }

    fn configure(self, program: Program) -> Result<Program> {
        Ok(match self {
            Self::Open => Library::OpenMpi
                .choose(program)?
                // PMIx's shared-memory store needs a directory that containers may lack.
                .env("PMIX_MCA_gds", "hash")
                .line("--allow-run-as-root --mca pml cm --mca mtl ofi")
                .args(["--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"])
                .line("--mca opal_common_ofi_verbose 1 --mca mtl_base_verbose 20"),
            Self::Mpich => Library::MpichWheel
                .choose(program)?
                .env("FI_PROVIDER", "verbs")
                .env("MPIR_CVAR_CH4_NETMOD", "ofi")
                // Without this, ranks on one host would use shared memory.
                .env("MPIR_CVAR_NOLOCAL", "1")
                .env("MPIR_CVAR_DEBUG_SUMMARY", "1"),
        })
    }

    /// Checks that the library reports that it uses the verbs provider.
    fn used_verbs(self, end: &Finished) -> Result<()> {
        let text = format!("{}{}", end.stdout, end.stderr);
        let names_verbs = match self {
            Self::Open => text.lines().any(|line| line.contains("mtl:ofi:prov: verbs")),
            Self::Mpich => text.lines().any(|line| line.starts_with("libfabric provider: verbs")),
        };
        ensure!(names_verbs, end.error("no word of the verbs provider"));
        Ok(())
    }
}

fn ring(name: &str, mpi: Mpi, hosts: &Hosts<'_>, ranks: u32) -> Result<()> {
    let Some(python) = Mpi4py::for_test(name)? else { return Ok(()) };
    mpi.used_verbs(&python.ring(mpi.launcher(&python, hosts, ranks)?, ranks, TIMEOUT)?)
}

/// Each rank acts as a host of its own, and libfabric caches registrations. Its own hooks notify
/// the cache when memory is unmapped.
fn buffers_that_come_and_go(name: &str, mpi: Mpi) -> Result<()> {
    const RANKS: u32 = 3;
    let Some(python) = Mpi4py::for_test(name)? else { return Ok(()) };
    let launcher = mpi.launcher(&python, &Hosts::Local, RANKS)?;
    let launcher = launcher.env("FI_MR_CACHE_MONITOR", "memhooks");
    mpi.used_verbs(&python.buffers(launcher, RANKS, TIMEOUT)?)
}

fn mpi4py_tests(name: &str, mpi: Mpi) -> Result<()> {
    let Some(python) = Mpi4py::for_test(name)? else { return Ok(()) };
    let left_out: &[&str] = if mpi == Mpi::Open { &OPEN_MPI_FAILS } else { &[] };
    for modules in MPI4PY_TESTS {
        let launcher = mpi.launcher(&python, &Hosts::Local, 2)?;
        mpi.used_verbs(&python.own_tests(launcher, modules, left_out, TIMEOUT)?)?;
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
#[ignore = "soak: a long suite of another project"]
fn open_mpi_runs_the_tests_of_mpi4py() -> Result<()> {
    mpi4py_tests("open_mpi_runs_the_tests_of_mpi4py", Mpi::Open)
}

#[test]
fn open_mpi_four_ranks_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    across_namespaces("open_mpi_four_ranks_across_namespaces", Mpi::Open)
}

#[test]
fn open_mpi_buffers_that_come_and_go() -> Result<()> {
    buffers_that_come_and_go("open_mpi_buffers_that_come_and_go", Mpi::Open)
}

#[test]
fn mpich_buffers_that_come_and_go() -> Result<()> {
    buffers_that_come_and_go("mpich_buffers_that_come_and_go", Mpi::Mpich)
}

#[test]
fn mpich_ring() -> Result<()> {
    ring("mpich_ring", Mpi::Mpich, &Hosts::Local, 2)
}

#[test]
#[ignore = "soak: a long suite of another project"]
fn mpich_runs_the_tests_of_mpi4py() -> Result<()> {
    mpi4py_tests("mpich_runs_the_tests_of_mpi4py", Mpi::Mpich)
}

#[test]
fn mpich_four_ranks_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    across_namespaces("mpich_four_ranks_across_namespaces", Mpi::Mpich)
}
