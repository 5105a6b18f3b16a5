//! Epoll instances against the fake kernel. Tests that hold for every carrier run on connections in
//! memory and on connections on TCP.

use libc::{
    EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP,
};
use rustix::io::Errno;

use crate::kernel::fake;
use crate::program::{self, Instance, Program, Socket, start, wait};

const DONTWAIT: libc::c_int = libc::MSG_DONTWAIT;

/// Runs a test with an instance and a connection, once in memory and once on TCP.
fn for_both_carriers(test: fn(&Program, &Instance, [Socket; 2])) {
    for in_memory in [true, false] {
        let program = start();
        let ends = program.connect_in_memory();
        if !in_memory {
            ends.iter().for_each(Socket::fall_back_to_tcp);
        }
        test(&program, &program.epoll(), ends);
    }
}

fn in_memory() -> (Program, Instance, [Socket; 2]) {
    let program = start();
    let (instance, ends) = (program.epoll(), program.connect_in_memory());
    (program, instance, ends)
}

fn events(bits: libc::c_int) -> u32 {
    bits.cast_unsigned()
}

#[test]
fn level_triggered_event_repeats_until_all_is_read() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLIN, 7 << 40).expect("added");
        assert!(instance.now().is_empty());
        other.send(b"ab").expect("sent");
        for _ in 0..3 {
            assert_eq!(instance.now(), [(7 << 40, events(EPOLLIN))]);
        }
        one.recv(1).expect("a byte");
        assert_eq!(instance.now(), [(7 << 40, events(EPOLLIN))]);
        one.recv(1).expect("a byte");
        assert!(instance.now().is_empty());
    });
}

#[test]
fn edge_is_reported_once_for_each_arrival() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLIN | EPOLLET, 1).expect("added");
        assert!(instance.now().is_empty());
        for _ in 0..2 {
            other.send(b"ab").expect("sent");
            assert_eq!(instance.now(), [(1, events(EPOLLIN))]);
            assert!(instance.now().is_empty(), "unread bytes must not raise an edge");
        }
    });
}

#[test]
fn oneshot_is_reported_once_until_it_is_modified() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLIN | EPOLLONESHOT, 1).expect("added");
        other.send(b"a").expect("sent");
        assert_eq!(instance.now(), [(1, events(EPOLLIN))]);
        other.send(b"b").expect("sent");
        assert!(instance.now().is_empty());
        instance.modify(&one, EPOLLIN | EPOLLONESHOT, 2).expect("modified");
        assert_eq!(instance.now(), [(2, events(EPOLLIN))]);
        assert!(instance.now().is_empty());
    });
}

/// A thread takes the event of a one-shot from the kernel. Before it comes back, another thread
/// does `between` and returns the number of events that it has got. Returns how often the program
/// gets the event.
fn reports_of_taken_oneshot(by_tcp: bool, between: fn(libc::c_int) -> usize) -> usize {
    let (_program, instance, [one, other]) = in_memory();
    instance.add(&one, EPOLLIN | EPOLLONESHOT, 1).expect("added");
    assert!(instance.now().is_empty());
    let (epoll, from) = (instance.fd, other.fd);
    fake::while_asleep(move || {
        if by_tcp {
            program::with_stream(from, |it| {
                it.fall_back_to_tcp(from, crate::reason::Reason::Option)
            });
        }
        assert_eq!(program::send(from, b"x", 0), Ok(1));
    });
    let (sender, receiver) = std::sync::mpsc::channel();
    fake::before_return(move || sender.send(between(epoll)).expect("received"));
    let own = wait(epoll, Some(1_000_000_000)).expect("perhaps an event").len();
    let others = receiver.try_recv().expect("an event was taken from the kernel");
    let reported = own + others + instance.now().len() + instance.now().len();
    instance.modify(&one, EPOLLIN | EPOLLONESHOT, 2).expect("modified");
    assert_eq!(instance.now(), [(2, events(EPOLLIN))], "it fires again");
    assert!(instance.now().is_empty());
    reported
}

#[test]
fn oneshot_taken_before_the_instance_becomes_the_kernels_is_reported_once() {
    let between: [fn(libc::c_int) -> usize; 4] = [
        |epoll| {
            crate::epoll::hand_on(epoll);
            0
        },
        |epoll| {
            crate::epoll::hand_on(epoll);
            wait(epoll, Some(0)).expect("perhaps an event").len()
        },
        |epoll| {
            crate::epoll::nest(epoll);
            0
        },
        |epoll| {
            crate::epoll::nest(epoll);
            wait(epoll, Some(0)).expect("perhaps an event").len()
        },
    ];
    for (number, between) in between.into_iter().enumerate() {
        for by_tcp in [false, true] {
            let reported = reports_of_taken_oneshot(by_tcp, between);
            assert_eq!(reported, 1, "case {number}, by TCP: {by_tcp}");
        }
    }
}

#[test]
fn modifying_an_edge_watch_reports_unread_bytes_once_more() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLIN | EPOLLET, 1).expect("added");
        other.send(b"a").expect("sent");
        assert_eq!(instance.now(), [(1, events(EPOLLIN))]);
        assert!(instance.now().is_empty());
        instance.modify(&one, EPOLLIN | EPOLLET, 1).expect("modified");
        assert_eq!(instance.now(), [(1, events(EPOLLIN))]);
        assert!(instance.now().is_empty());
    });
}

#[test]
fn events_are_reported_in_order_of_arrival() {
    for in_memory in [true, false] {
        let program = start();
        let instance = program.epoll();
        let pairs: Vec<[Socket; 2]> = (0..5).map(|_| program.connect_in_memory()).collect();
        for (data, [one, other]) in pairs.iter().enumerate() {
            if !in_memory {
                [one, other].into_iter().for_each(Socket::fall_back_to_tcp);
            }
            instance.add(one, EPOLLIN, data as u64).expect("added");
        }
        for order in [[3, 0, 4, 1, 2], [2, 1, 4, 3, 0]] {
            assert!(instance.now().is_empty());
            for at in order {
                pairs[at][1].send(b"x").expect("sent");
            }
            let found: Vec<usize> = instance.now().iter().map(|&(data, _)| data as usize).collect();
            assert_eq!(found, order, "in memory: {in_memory}");
            pairs.iter().for_each(|[one, _]| drop(one.recv(1).expect("a byte")));
        }
    }
}

#[test]
fn short_list_rotates_through_all_ready_sockets() {
    for in_memory in [true, false] {
        let program = start();
        let instance = program.epoll();
        let pairs: Vec<[Socket; 2]> = (0..4).map(|_| program.connect_in_memory()).collect();
        for (data, [one, other]) in pairs.iter().enumerate() {
            if !in_memory {
                [one, other].into_iter().for_each(Socket::fall_back_to_tcp);
            }
            instance.add(one, EPOLLIN, data as u64).expect("added");
            other.send(b"x").expect("sent");
        }
        let mut found = Vec::new();
        for _ in 0..8 {
            let [event] = program::wait_for::<1>(instance.fd, Some(0)).expect("events")[..] else {
                panic!("one event at a time");
            };
            found.push(event.0);
        }
        assert_eq!(found, [0, 1, 2, 3, 0, 1, 2, 3], "in memory: {in_memory}");
    }
}

#[test]
fn sleeper_wakes_when_the_peer_sends() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLIN, 1).expect("added");
        for _ in 0..3 {
            let from = other.fd;
            fake::while_asleep(move || assert_eq!(program::send(from, b"x", 0), Ok(1)));
            assert_eq!(wait(instance.fd, None), Ok(vec![(1, events(EPOLLIN))]));
            assert_eq!(one.recv(8), Ok(b"x".to_vec()));
            assert_eq!(fake::acts_left(), 0);
        }
        assert_eq!(
            one.recv_with(8, DONTWAIT),
            Err(Errno::AGAIN),
            "a wakeup must not be read as a byte"
        );
    });
}

#[test]
fn sleeper_wakes_when_another_thread_adds_a_ready_socket() {
    for_both_carriers(|_, instance, [one, other]| {
        other.send(b"x").expect("sent");
        let (epoll, fd) = (instance.fd, one.fd);
        fake::while_asleep(move || {
            program::control(epoll, libc::EPOLL_CTL_ADD, fd, EPOLLIN, 1).expect("added");
        });
        assert_eq!(wait(instance.fd, None), Ok(vec![(1, events(EPOLLIN))]));
    });
}

#[test]
fn sleeper_wakes_when_another_thread_modifies_a_watch() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLRDHUP, 1).expect("added");
        other.send(b"x").expect("sent");
        assert!(instance.now().is_empty());
        let (epoll, fd) = (instance.fd, one.fd);
        fake::while_asleep(move || {
            program::control(epoll, libc::EPOLL_CTL_MOD, fd, EPOLLIN, 2).expect("modified");
        });
        assert_eq!(wait(instance.fd, None), Ok(vec![(2, events(EPOLLIN))]));
    });
}

#[test]
fn sleeper_is_woken_for_bytes_that_another_thread_leaves_unread() {
    let (_program, instance, [one, other]) = in_memory();
    instance.add(&one, EPOLLIN, 1).expect("added");
    let (from, to) = (other.fd, one.fd);
    fake::while_asleep(move || {
        assert_eq!(program::send(from, b"ab", 0), Ok(2));
        // The receive takes the wakeup with the byte.
        assert_eq!(program::recv(to, 1, 0), Ok(b"a".to_vec()));
    });
    assert_eq!(wait(instance.fd, None), Ok(vec![(1, events(EPOLLIN))]));
}

#[test]
fn wait_ends_at_its_time_limit() {
    for_both_carriers(|_, instance, [one, _other]| {
        instance.add(&one, EPOLLIN, 1).expect("added");
        let before = fake::time();
        assert_eq!(wait(instance.fd, Some(2_000_000_000)), Ok(Vec::new()));
        assert!(fake::time() - before >= 2_000_000_000);
    });
}

#[test]
fn handled_signal_ends_a_wait() {
    for_both_carriers(|_, instance, [one, _other]| {
        instance.add(&one, EPOLLIN, 1).expect("added");
        fake::interrupt_sleep();
        assert_eq!(wait(instance.fd, None), Err(Errno::INTR));
    });
}

#[test]
fn room_is_reported_when_the_peer_has_read() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLOUT | EPOLLET, 1).expect("added");
        assert_eq!(instance.now(), [(1, events(EPOLLOUT))]);
        while program::send(one.fd, &[0; 50_000], DONTWAIT).is_ok() {}
        assert!(instance.now().is_empty());
        let reader = other.fd;
        fake::while_asleep(move || while program::recv(reader, 1 << 20, DONTWAIT).is_ok() {});
        assert_eq!(wait(instance.fd, None), Ok(vec![(1, events(EPOLLOUT))]));
    });
}

#[test]
fn room_of_tcp_is_reported_while_bytes_are_unread_in_memory() {
    for mode in [0, EPOLLET, EPOLLONESHOT] {
        let (_program, instance, [one, other]) = in_memory();
        instance.add(&one, EPOLLOUT | mode, 1).expect("added");
        assert_eq!(instance.now(), [(1, events(EPOLLOUT))]);
        while program::send(one.fd, &[0; 50_000], DONTWAIT).is_ok() {}
        other.send(b"unread").expect("sent");
        instance.modify(&one, EPOLLOUT | mode, 1).expect("modified");
        assert!(instance.now().is_empty());
        let peer = other.fd;
        fake::while_asleep(move || {
            program::with_stream(peer, |it| it.fall_back_to_tcp(peer, crate::reason::Reason::Shut));
        });
        let found = wait(instance.fd, Some(5_000_000_000));
        assert_eq!(found, Ok(vec![(1, events(EPOLLOUT))]), "mode {mode:x}");
    }
}

#[test]
fn eof_is_reported_together_with_the_bytes_before_it() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLIN | EPOLLRDHUP, 1).expect("added");
        other.send(b"x").expect("sent");
        other.shutdown(libc::SHUT_WR);
        assert_eq!(instance.now(), [(1, events(EPOLLIN | EPOLLRDHUP))]);
        assert_eq!(one.recv(8), Ok(b"x".to_vec()));
        assert_eq!(
            instance.now(),
            [(1, events(EPOLLIN | EPOLLRDHUP))],
            "the end has not been read"
        );
        one.shutdown(libc::SHUT_WR);
        assert_eq!(instance.now(), [(1, events(EPOLLIN | EPOLLRDHUP | EPOLLHUP))]);
    });
}

/// A peer that falls back to TCP wakes a thread that waits for room. The thread takes that event of
/// the kernel, which is no news to the program. Before it judges the event the peer ends its
/// stream, and another thread does `between`. Returns which events the program gets.
fn edges_of_an_end_behind_a_wakeup(between: fn(libc::c_int)) -> u32 {
    let (_program, instance, [one, other]) = in_memory();
    instance.add(&one, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1).expect("added");
    assert_eq!(instance.now(), [(1, events(EPOLLOUT))]);
    let (reader, peer) = (one.fd, other.fd);
    fake::while_asleep(move || {
        program::with_stream(peer, |it| it.fall_back_to_tcp(peer, crate::reason::Reason::Shut));
    });
    fake::before_return(move || {
        program::shutdown(peer, libc::SHUT_WR);
        between(reader);
    });
    let sleep = || wait(instance.fd, Some(1_000_000_000)).expect("perhaps an event");
    let found = [sleep(), sleep(), sleep()].concat();
    found.iter().fold(0, |all, (_, events)| all | events)
}

#[test]
fn end_is_reported_that_comes_while_a_wakeup_is_judged() {
    let found = edges_of_an_end_behind_a_wakeup(|_| {});
    assert_eq!(found & events(EPOLLRDHUP), events(EPOLLRDHUP), "{found:x}");
}

#[test]
fn end_is_reported_that_another_thread_has_found_while_a_wakeup_is_judged() {
    let found = edges_of_an_end_behind_a_wakeup(|reader| {
        program::with_stream(reader, |it| it.settle(reader, events(EPOLLIN)));
    });
    assert_eq!(found & events(EPOLLRDHUP), events(EPOLLRDHUP), "{found:x}");
}

/// A peer that falls back to TCP wakes a thread, and ends its stream at each moment of what
/// follows. The end raises an edge, also for programs that learn of it only by reading.
#[test]
fn end_is_reported_whenever_it_comes_while_a_wakeup_is_judged() {
    const MOMENTS: u32 = 80;
    for asked in [EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLOUT | EPOLLRDHUP] {
        for moments in 0..MOMENTS {
            let (_program, instance, [one, other]) = in_memory();
            instance.add(&one, asked | EPOLLET, 1).expect("added");
            instance.now();
            let peer = other.fd;
            fake::while_asleep(move || {
                program::with_stream(peer, |it| {
                    it.fall_back_to_tcp(peer, crate::reason::Reason::Shut)
                });
            });
            fake::before_return(move || {
                fake::disturb_after(moments, 1, move || program::shutdown(peer, libc::SHUT_WR));
            });
            let sleep = || wait(instance.fd, Some(1_000_000_000)).expect("perhaps an event");
            let found = [sleep(), sleep(), sleep()].concat();
            let all = found.iter().fold(0, |all, (_, events)| all | events);
            let end = events(if asked & EPOLLRDHUP != 0 { EPOLLRDHUP } else { EPOLLIN });
            assert_eq!(all & end, end, "asked {asked:x}, after {moments} moments: {found:x?}");
        }
    }
}

/// A thread sleeps while the kernel watches for changes alone. Another thread has the connection
/// fall back, and finds no room in TCP.
#[test]
fn room_of_tcp_wakes_a_thread_that_slept_through_the_fallback() {
    let (_program, instance, [one, other]) = in_memory();
    instance.add(&one, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1).expect("added");
    assert_eq!(instance.now(), [(1, events(EPOLLOUT))]);
    assert!(wait(instance.fd, Some(1_000)).expect("no event").is_empty());
    let (writer, reader) = (one.fd, other.fd);
    fake::while_asleep(move || {
        program::with_stream(writer, |it| {
            it.fall_back_to_tcp(writer, crate::reason::Reason::Option)
        });
    });
    fake::while_asleep(move || while program::send(writer, &[0; 50_000], DONTWAIT).is_ok() {});
    fake::while_asleep(move || while program::recv(reader, 1 << 20, DONTWAIT).is_ok() {});
    let found = wait(instance.fd, Some(5_000_000_000));
    assert_eq!(found, Ok(vec![(1, events(EPOLLOUT))]));
}

#[test]
fn eof_wakes_a_sleeper() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLIN, 1).expect("added");
        let peer = other.fd;
        fake::while_asleep(move || program::close(peer));
        assert_eq!(wait(instance.fd, None), Ok(vec![(1, events(EPOLLIN))]));
        assert_eq!(one.recv(1), Ok(Vec::new()));
    });
}

#[test]
fn reset_is_reported_without_being_requested() {
    for_both_carriers(|_, instance, [one, _other]| {
        instance.add(&one, EPOLLIN, 1).expect("added");
        fake::reset(one.fd);
        assert_eq!(instance.now(), [(1, events(EPOLLIN | EPOLLERR | EPOLLHUP))]);
    });
}

#[test]
fn deleted_socket_is_not_reported() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLIN, 1).expect("added");
        assert!(instance.now().is_empty());
        instance.delete(&one).expect("deleted");
        other.send(b"x").expect("sent");
        assert!(instance.now().is_empty());
        assert_eq!(instance.delete(&one), Err(Errno::NOENT));
        assert_eq!(instance.modify(&one, EPOLLIN, 1), Err(Errno::NOENT));
        instance.add(&one, EPOLLIN, 2).expect("added once more");
        assert_eq!(instance.add(&one, EPOLLIN, 3), Err(Errno::EXIST));
        assert_eq!(instance.now(), [(2, events(EPOLLIN))]);
    });
}

#[test]
fn socket_in_memory_is_deleted_and_added_without_the_kernel() {
    let (_program, instance, [one, other]) = in_memory();
    instance.add(&one, EPOLLIN, 1).expect("added");
    assert!(instance.now().is_empty());
    let before = fake::calls("epoll_ctl");
    for _ in 0..5 {
        instance.delete(&one).expect("deleted");
        instance.add(&one, EPOLLIN, 1).expect("added");
        instance.modify(&one, EPOLLIN | EPOLLOUT, 1).expect("modified");
    }
    assert_eq!(fake::calls("epoll_ctl"), before);
    other.send(b"x").expect("sent");
    assert_eq!(instance.now(), [(1, events(EPOLLIN | EPOLLOUT))]);
}

#[test]
fn closed_socket_is_not_reported() {
    for_both_carriers(|_, instance, [one, other]| {
        instance.add(&one, EPOLLIN, 1).expect("added");
        other.send(b"x").expect("sent");
        drop(one);
        assert!(instance.now().is_empty());
    });
}

#[test]
fn nested_instance_is_ready_when_a_socket_in_it_is() {
    for_both_carriers(|program, inner, [one, other]| {
        let outer = program.epoll();
        inner.add(&one, EPOLLIN, 1).expect("added");
        program::control(outer.fd, libc::EPOLL_CTL_ADD, inner.fd, EPOLLIN, 2).expect("added");
        assert!(!one.is_in_memory(), "the kernel wakes the waiters of the outer instance");
        assert!(outer.now().is_empty());
        let from = other.fd;
        fake::while_asleep(move || assert_eq!(program::send(from, b"x", 0), Ok(1)));
        assert_eq!(wait(outer.fd, None), Ok(vec![(2, events(EPOLLIN))]));
        assert_eq!(inner.now(), [(1, events(EPOLLIN))]);
        assert_eq!(one.recv(8), Ok(b"x".to_vec()));
        assert!(outer.now().is_empty() && inner.now().is_empty());
    });
}

#[test]
fn nested_instance_announces_what_is_unread_in_memory() {
    let (program, inner, [one, other]) = in_memory();
    inner.add(&one, EPOLLIN, 1).expect("added");
    other.send(b"abc").expect("sent");
    let outer = program.epoll();
    program::control(outer.fd, libc::EPOLL_CTL_ADD, inner.fd, EPOLLIN, 2).expect("added");
    assert_eq!(outer.now(), [(2, events(EPOLLIN))]);
    assert_eq!(inner.now(), [(1, events(EPOLLIN))]);
    assert_eq!(one.recv(8), Ok(b"abc".to_vec()));
    assert!(inner.now().is_empty());
    assert!(outer.now().is_empty());
}

#[test]
fn exclusive_watch_makes_a_connection_fall_back_to_tcp() {
    let (_program, instance, [one, other]) = in_memory();
    instance.add(&one, EPOLLIN | EPOLLEXCLUSIVE, 1).expect("added");
    assert!(!one.is_in_memory());
    other.send(b"x").expect("sent");
    assert_eq!(instance.now(), [(1, events(EPOLLIN))]);
}

#[test]
fn second_instance_makes_a_connection_fall_back_to_tcp() {
    let (program, instance, [one, other]) = in_memory();
    let second = program.epoll();
    instance.add(&one, EPOLLIN, 1).expect("added");
    assert!(one.is_in_memory());
    second.add(&one, EPOLLIN, 2).expect("added");
    assert!(!one.is_in_memory());
    other.send(b"x").expect("sent");
    assert_eq!(instance.now(), [(1, events(EPOLLIN))]);
    assert_eq!(second.now(), [(2, events(EPOLLIN))]);
}

#[test]
fn kernel_watches_changes_only_while_memory_carries_a_connection() {
    let (_program, instance, [one, other]) = in_memory();
    instance.add(&one, EPOLLIN | EPOLLOUT, 1).expect("added");
    assert_eq!(instance.now(), [(1, events(EPOLLOUT))]);
    let mask = fake::registered(instance.fd, one.fd).expect("watched");
    assert_eq!(mask & events(EPOLLET | EPOLLOUT), events(EPOLLET), "{mask:x}");
    one.fall_back_to_tcp();
    assert_eq!(other.send(b"x"), Ok(1));
    assert_eq!(instance.now(), [(1, events(EPOLLIN | EPOLLOUT))]);
    assert_eq!(fake::registered(instance.fd, one.fd), Some(events(EPOLLIN | EPOLLOUT)));
}

#[test]
fn watched_connection_that_moves_to_memory_loses_no_event() {
    let program = start();
    let instance = program.epoll();
    let [one, other] = program.connect();
    instance.add(&one, EPOLLIN, 1).expect("added");
    for _ in 0..6 {
        let from = other.fd;
        fake::while_asleep(move || assert_eq!(program::send(from, b"x", 0), Ok(1)));
        assert_eq!(wait(instance.fd, None), Ok(vec![(1, events(EPOLLIN))]));
        assert_eq!(one.recv(8), Ok(b"x".to_vec()));
        assert_eq!(one.send(b"y"), Ok(1));
        assert_eq!(other.recv(8), Ok(b"y".to_vec()));
    }
    assert!(one.is_in_memory() && other.is_in_memory());
}
