//! The machine of a measurement.

use std::fs;

use rustix::system::uname;
use serde::Serialize;

/// The machine on which the clients ran.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// TCP's congestion control for sockets that choose none.
    pub(crate) congestion: String,
}

impl Machine {
    /// Describes this machine. Unknown properties are `unknown`.
    pub(crate) fn here() -> Self {
        let unknown = || "unknown".to_owned();
        let congestion = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
        let cpu = fs::read_to_string("/proc/cpuinfo").ok();
        Self {
            cpu: cpu.as_deref().and_then(model_name).unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: uname().release().to_string_lossy().into_owned(),
            congestion: congestion.map_or_else(|_| unknown(), |name| name.trim().to_owned()),
        }
    }
}

fn model_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_model_is_found() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(model_name(text).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(model_name("Features : fp asimd"), None);
    }
}
