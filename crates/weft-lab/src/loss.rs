//! A link that loses datagrams, made with traffic control that every kernel has.
//!
//! A BPF classifier puts a random share of the UDP packets into a class whose queue is too short
//! for any packet. Many kernels lack `netem`, which is made for this purpose.

use anyhow::{Context as _, Result};

use crate::namespace::{Namespace, NamespacePair};
use crate::program::Program;

/// Class 1:2, in the form that a classifier returns.
const LOST: u32 = 0x1_0002;
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

impl NamespacePair {
    /// Makes both ends drop this percentage of the IPv4 UDP packets that they send.
    ///
    /// # Errors
    ///
    /// If `tc` fails.
    pub fn lose_datagrams(&self, percent: u32) -> Result<()> {
        [&self.left, &self.right].into_iter().try_for_each(|side| side.lose_datagrams(percent))
    }

    /// Returns how many packets have been dropped since, in both directions.
    ///
    /// # Errors
    ///
    /// If `tc` fails.
    pub fn datagrams_lost(&self) -> Result<u64> {
        Ok(self.left.datagrams_lost()? + self.right.datagrams_lost()?)
    }
}

impl Namespace {
    fn lose_datagrams(&self, percent: u32) -> Result<()> {
        let pick = u32::MAX / 100 * percent;
        // Classic BPF: drop if the frame is IPv4 (offset 12), the protocol UDP (offset 23), and a
        // random number at most `pick`.
        let program = format!(
            "8,40 0 0 12,21 0 5 2048,48 0 0 23,21 0 3 17,32 0 0 4294963256,37 1 0 {pick},\
             6 0 0 {LOST},6 0 0 0"
        );
        self.tc("qdisc add", "root handle 1: htb default 1")?;
        for class in ["1:1", "1:2"] {
            let rate = "htb rate 100gbit quantum 60000";
            self.tc("class add", &format!("parent 1: classid {class} {rate}"))?;
        }
        self.tc("qdisc add", "parent 1:2 handle 2: bfifo limit 1")?;
        let filter = Program::plain("tc").line("filter add dev").arg(self.interface());
        let filter = filter.line("parent 1: bpf bytecode").arg(program);
        filter.within(Some(self)).run(TIMEOUT)?.success().map(drop)
    }

    fn datagrams_lost(&self) -> Result<u64> {
        let shown = self.tc("-s qdisc show", "parent 1:2")?;
        let dropped = shown.split("(dropped ").nth(1).and_then(|rest| rest.split(',').next());
        dropped.and_then(|count| count.parse().ok()).context("tc shows no count of lost packets")
    }

    fn tc(&self, command: &str, rest: &str) -> Result<String> {
        let tc = Program::plain("tc").line(command).args(["dev", self.interface()]).line(rest);
        Ok(tc.within(Some(self)).run(TIMEOUT)?.success()?.stdout)
    }
}
