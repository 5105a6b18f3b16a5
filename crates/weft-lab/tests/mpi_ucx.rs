//! MPI over UCX, as Debian builds it: Open MPI and MPICH with up to four ranks on one host send
//! messages around a ring, and run the tests of `mpi4py`.

use std::time::Duration;

use anyhow::{Result, ensure};
use weft_lab::mpi4py::{Library, Mpi4py};
use weft_lab::{Finished, Program};

const TIMEOUT: Duration = Duration::from_secs(180);
const RANKS: u32 = 4;

/// UCX's name of the device. Without this choice UCX uses several devices for a large message.
const DEVICE: &str = "weft_lo:1";

/// The transports that connect ranks.
#[derive(Clone, Copy)]
struct Way {
    /// UCX's transports, for `UCX_TLS`. Each rank reaches itself by `self`.
    tls: &'static str,
    /// The transport of Weft's device, as UCX reports it.
    reported: &'static str,
    /// Weft's transport, for `WEFT_TRANSPORT`.
    transport: &'static str,
}

const BY_SHARED_MEMORY: Way = Way { tls: "rc_v,self", reported: "rc_verbs", transport: "shm" };
const BY_TCP: Way = Way { transport: "tcp", ..BY_SHARED_MEMORY };
/// UCX's own shared memory and Weft's device: UCX divides the work between both.
const BESIDE_UCX_MEMORY: Way = Way { tls: "rc_v,sm,self", ..BY_SHARED_MEMORY };
const BY_DATAGRAMS: Way = Way { tls: "ud_v,self", reported: "ud_verbs", transport: "auto" };

/// Point-to-point messages: blocking, non-blocking and persistent, of buffers and objects.
const MESSAGES: &str = "test_p2p_(buf|obj)";
/// Collective operations, also with different lengths for the ranks.
const COLLECTIVES: &str = "test_cco_(buf|vec)";
/// Windows, and one-sided operations with each kind of synchronisation.
const WINDOWS: &str = "test_win";
const ONE_SIDED: &str = "test_rma";

/// Modules, and the number of ranks that run them. Polling ranks compete for the cores, so a module
/// to which more ranks add little runs with two.
const EVERYTHING: [(&str, u32); 4] =
    [(MESSAGES, 2), (COLLECTIVES, RANKS), (WINDOWS, RANKS), (ONE_SIDED, 2)];
const SOME: [(&str, u32); 1] = [(MESSAGES, 2)];

/// Patterns of tests that crash Open MPI with UCX on any transport, also on TCP without Weft: Open
/// MPI frees a window that was made without memory.
const OPEN_MPI_CRASHES: [&str; 1] = ["WinCreateDynamic"];

/// Returns the launcher of Debian's `library` for all ranks. The caller adds the program and its
/// arguments.
fn launcher(library: Library, way: Way, ranks: u32) -> Result<Program> {
    let program = match library {
        Library::OpenMpi => Program::weft("mpirun.openmpi")
            // The default store uses shared memory in a directory that containers may lack.
            .env("PMIX_MCA_gds", "hash")
            .line("--oversubscribe --allow-run-as-root --mca pml ucx --mca osc ucx")
            // Without this Open MPI does not use UCX on devices that it does not know.
            .line("--mca pml_ucx_tls any --mca pml_ucx_devices any")
            // No other transport between ranks, also for one-sided operations.
            .line("--mca btl ^vader,tcp,openib"),
        // Without this, ranks on one host use MPICH's own shared memory.
        _ => Program::weft("mpiexec.mpich").env("MPIR_CVAR_NOLOCAL", "1"),
    };
    let program = program
        .env("UCX_TLS", way.tls)
        .env("UCX_NET_DEVICES", DEVICE)
        .env("UCX_LOG_LEVEL", "info")
        .env("WEFT_TRANSPORT", way.transport);
    Ok(library.choose(program)?.args(["-n", &ranks.to_string()]))
}

/// Checks that UCX reports that it reaches other ranks through the device.
fn used(way: Way, end: &Finished) -> Result<()> {
    let lane = format!("{}/{DEVICE}", way.reported);
    let text = format!("{}{}", end.stdout, end.stderr);
    let is_lane = |line: &str| line.contains(" ep_cfg[") && line.contains(&lane);
    ensure!(text.lines().any(is_lane), end.error(format!("no word of {lane}")));
    Ok(())
}

/// Sends messages around a ring of two ranks, so that each has a core.
fn ring(name: &str, library: Library, way: Way) -> Result<()> {
    let Some(python) = Mpi4py::for_test(name)? else { return Ok(()) };
    used(way, &python.ring(launcher(library, way, 2)?, 2, TIMEOUT)?)
}

/// Runs a ring of all ranks, and then tests of `mpi4py`.
fn tests(name: &str, library: Library, way: Way, modules: &[(&str, u32)]) -> Result<()> {
    let Some(python) = Mpi4py::for_test(name)? else { return Ok(()) };
    used(way, &python.ring(launcher(library, way, RANKS)?, RANKS, TIMEOUT)?)?;
    let left_out: &[&str] = if library == Library::OpenMpi { &OPEN_MPI_CRASHES } else { &[] };
    for &(modules, ranks) in modules {
        let launcher = launcher(library, way, ranks)?;
        used(way, &python.own_tests(launcher, modules, left_out, TIMEOUT)?)?;
    }
    Ok(())
}

#[test]
fn open_mpi_sends_messages_around_a_ring() -> Result<()> {
    ring("open_mpi_sends_messages_around_a_ring", Library::OpenMpi, BY_SHARED_MEMORY)
}

#[test]
fn mpich_sends_messages_around_a_ring() -> Result<()> {
    ring("mpich_sends_messages_around_a_ring", Library::Mpich, BY_SHARED_MEMORY)
}

#[test]
#[ignore = "soak: a long suite of another project"]
fn open_mpi_over_shared_memory() -> Result<()> {
    tests("open_mpi_over_shared_memory", Library::OpenMpi, BY_SHARED_MEMORY, &EVERYTHING)
}

#[test]
#[ignore = "soak: a long suite of another project"]
fn open_mpi_over_tcp() -> Result<()> {
    tests("open_mpi_over_tcp", Library::OpenMpi, BY_TCP, &SOME)
}

#[test]
#[ignore = "soak: a long suite of another project"]
fn open_mpi_beside_memory_of_ucx() -> Result<()> {
    tests("open_mpi_beside_memory_of_ucx", Library::OpenMpi, BESIDE_UCX_MEMORY, &SOME)
}

#[test]
#[ignore = "soak: a long suite of another project"]
fn open_mpi_by_datagrams() -> Result<()> {
    tests("open_mpi_by_datagrams", Library::OpenMpi, BY_DATAGRAMS, &SOME)
}

#[test]
#[ignore = "soak: a long suite of another project"]
fn mpich_over_shared_memory() -> Result<()> {
    tests("mpich_over_shared_memory", Library::Mpich, BY_SHARED_MEMORY, &EVERYTHING)
}

#[test]
#[ignore = "soak: a long suite of another project"]
fn mpich_over_tcp() -> Result<()> {
    tests("mpich_over_tcp", Library::Mpich, BY_TCP, &SOME)
}

#[test]
#[ignore = "soak: a long suite of another project"]
fn mpich_beside_memory_of_ucx() -> Result<()> {
    tests("mpich_beside_memory_of_ucx", Library::Mpich, BESIDE_UCX_MEMORY, &SOME)
}

#[test]
#[ignore = "soak: a long suite of another project"]
fn mpich_by_datagrams() -> Result<()> {
    tests("mpich_by_datagrams", Library::Mpich, BY_DATAGRAMS, &SOME)
}
