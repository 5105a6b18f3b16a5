//! Multicast groups: each is an IP multicast group, received on the same UDP port of all hosts.
//!
//! A datagram to a group is addressed to queue pair 0xFFFFFF and therefore, like any number, to a
//! port: 65535. Every process with members binds it, and the kernel gives each of them a copy. A
//! group belongs to an interface; its members are the queue pairs that were attached to it. Each
//! member with the right Q_Key receives the datagram, except the sender (IBTA 10.5.2.1).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use weft_sys::{Arrival, Forkable, Lock};
use weft_wire::datagram::{Header, MULTICAST_QP};

use super::Port;
use super::owner::{DatagramTarget, Routes};
use crate::limits::{MULTICAST_GROUPS_MAX, MULTICAST_QPS_MAX};
use crate::reactor::Handle;
use crate::{Errno, Result, numbers};

/// A group address and an interface index.
pub(crate) type Group = (IpAddr, u32);

#[derive(Debug, Default)]
struct Groups {
    port: Option<Arc<Port>>,
    members: HashMap<Group, Vec<Weak<dyn DatagramTarget>>>,
}

static GROUPS: Forkable<Lock<Groups>> = Forkable::new(|| Lock::new(Groups::default()));

/// Attaches a queue pair to a group. Attaching again has no effect.
///
/// # Errors
/// `ENOMEM` for too many groups or members; the system's errors, such as `ENOBUFS`.
pub(crate) fn attach(
    reactor: Handle,
    qp: &Arc<dyn DatagramTarget>,
    group: Group,
    routes: Routes,
) -> Result<()> {
    let mut groups = GROUPS.get().lock();
    let count = groups.members.len();
    let port = match &groups.port {
        Some(port) => Arc::clone(port),
        None => {
            let port = Port::open_shared(reactor, numbers::port_of(MULTICAST_QP), routes)?;
            Arc::clone(groups.port.insert(port))
        }
    };
    if let Some(members) = groups.members.get_mut(&group) {
        if members.iter().any(|member| std::ptr::addr_eq(member.as_ptr(), Arc::as_ptr(qp))) {
            return Ok(());
        }
        if members.len() >= MULTICAST_QPS_MAX as usize {
            return Err(Errno::NOMEM);
        }
        members.push(Arc::downgrade(qp));
        return Ok(());
    }
    if count >= MULTICAST_GROUPS_MAX as usize {
        return Err(Errno::NOMEM);
    }
    port.socket().join(group.0, group.1)?;
    groups.members.insert(group, vec![Arc::downgrade(qp)]);
    Ok(())
}

/// Detaches a queue pair from a group.
///
/// # Errors
/// `EINVAL` if it is not attached.
pub(crate) fn detach(qp: &impl DatagramTarget, group: Group) -> Result<()> {
    if GROUPS.get().lock().remove(group, qp) { Ok(()) } else { Err(Errno::INVAL) }
}

/// Detaches a queue pair that is being destroyed from all groups.
pub(crate) fn forget(qp: &impl DatagramTarget) {
    let mut groups = GROUPS.get().lock();
    let all: Vec<Group> = groups.members.keys().copied().collect();
    for group in all {
        groups.remove(group, qp);
    }
}

/// Delivers a datagram to the members of its group. Returns whether there were any.
pub(crate) fn deliver(header: &Header, arrival: &Arrival, payload: &[u8]) -> bool {
    let members: SmallVec<[Arc<dyn DatagramTarget>; 8]> = {
        let groups = GROUPS.get().lock();
        let members = groups.members.get(&(arrival.to, arrival.interface));
        members.into_iter().flatten().filter_map(Weak::upgrade).collect()
    };
    for qp in &members {
        if !qp.is_sender(header.from, arrival.from.ip()) {
            qp.receive(header, arrival, payload);
        }
    }
    !members.is_empty()
}

impl Groups {
    /// Removes a member, and leaves the IP group after the last. Returns whether it was a member.
    fn remove(&mut self, group: Group, qp: &impl DatagramTarget) -> bool {
        let Some(members) = self.members.get_mut(&group) else { return false };
        let before = members.len();
        members.retain(|member| !std::ptr::addr_eq(member.as_ptr(), qp));
        let was_member = members.len() < before;
        if members.is_empty() {
            self.members.remove(&group);
            if let Some(port) = &self.port {
                // The interface may be gone, and the membership with it.
                let _ = port.socket().leave(group.0, group.1);
            }
        }
        was_member
    }
}
