//! Operations as futures, on an executor and in a loop of one's own, and what becomes of those that
//! are dropped.

mod common;

use std::future::poll_fn;
use std::task::Poll;

use anyhow::{Context as _, Result, ensure};
use common::{Side, between, pattern, small};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::runtime::Builder;
use weft_fabric::{Error, RemoteKey, Rights};

/// Operations that are under way at a time.
const MANY: usize = 10_000;

#[test]
fn many_futures_are_under_way() -> Result<()> {
    between(
        "many_futures_are_under_way",
        &small(),
        |Side { fabric, endpoint, .. }| {
            let counter = fabric.alloc(8)?.share(Rights::ALL, ..)?;
            endpoint.send(&counter.key().to_bytes())?.wait()?;
            ensure!(*endpoint.receive().wait()? == *b"done");
            ensure!(counter.update(0, |value| value)? == MANY as u64);
            Ok(endpoint.close().wait()?)
        },
        |Side { endpoint, .. }| {
            Builder::new_current_thread().build()?.block_on(async {
                let message = endpoint.receive().await?;
                let key = RemoteKey::from_bytes(&message).context("no key")?;
                let mut seen = vec![false; MANY];
                let all: Vec<_> = (0..MANY)
                    .map(|_| {
                        let endpoint = endpoint.clone();
                        async move { endpoint.fetch_add(&key, 0, 1)?.await }
                    })
                    .map(Box::pin)
                    .collect();
                for before in join(all).await {
                    seen[before? as usize] = true;
                }
                ensure!(seen.iter().all(|&seen| seen), "a number came twice");
                endpoint.send(b"done")?.await?;
                ensure!(matches!(endpoint.receive().await, Err(Error::Closed { .. })));
                Ok(())
            })
        },
    )
}

/// Waits for all of these futures at once.
async fn join<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = std::pin::Pin::new(future).poll(cx)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

#[test]
fn tasks_answer_each_other() -> Result<()> {
    let both = |is_first: bool| {
        move |Side { endpoint, .. }: Side| {
            Builder::new_current_thread().build()?.block_on(async {
                let sender = endpoint.clone();
                let sending = tokio::spawn(async move {
                    for number in 0..1_000 {
                        sender.send(&pattern(number, 32))?.await?;
                    }
                    anyhow::Ok(())
                });
                for number in 0..1_000 {
                    ensure!(*endpoint.receive().await? == *pattern(number, 32), "{number}");
                    if is_first && number % 100 == 0 {
                        // So that the peer's futures sleep, and are woken.
                        std::thread::sleep(std::time::Duration::from_millis(5));
                    }
                }
                sending.await??;
                endpoint.close().await?;
                Ok(())
            })
        }
    };
    between("tasks_answer_each_other", &small(), both(true), both(false))
}

#[test]
fn dropped_futures_neither_leak_nor_race() -> Result<()> {
    between(
        "dropped_futures_neither_leak_nor_race",
        &small(),
        |Side { fabric, endpoint, .. }| {
            let shared = fabric.alloc(100_000)?.share(Rights::ALL, ..)?;
            endpoint.send(&shared.key().to_bytes())?.wait()?;
            ensure!(*endpoint.receive().wait()? == *b"done");
            let mut bytes = vec![0; 100_000];
            shared.read(0, &mut bytes)?;
            ensure!(bytes.iter().all(|&byte| byte == 200), "not what was written last");
            Ok(endpoint.close().wait()?)
        },
        |Side { fabric, endpoint, .. }| {
            let key = RemoteKey::from_bytes(&endpoint.receive().wait()?).context("no key")?;
            let before = maps()?;
            for round in 1..=200 {
                let mut buffer = fabric.alloc(100_000)?;
                buffer.fill(round);
                // The buffer is in use still when this returns; the write takes place.
                drop(endpoint.write(buffer, .., &key, 0)?);
                drop(endpoint.receive());
                let mut read = endpoint.read(fabric.alloc(100_000)?, .., &key, 0)?;
                match round {
                    // The peer shares the memory until the message comes, before which a Read need
                    // not have been carried out.
                    200 => drop(read.wait()?),
                    _ if round % 2 == 0 => drop(read.try_wait()),
                    _ => {}
                }
            }
            endpoint.send(b"done")?.wait()?;
            let end = endpoint.receive().wait();
            ensure!(matches!(end, Err(Error::Closed { .. })), "{end:?}");
            drop(endpoint);
            ensure!(maps()? <= before + 8, "{before} mappings before, {} after", maps()?);
            Ok(())
        },
    )
}

/// The number of mappings of this process, each buffer being one at least.
fn maps() -> Result<usize> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count())
}

#[test]
fn a_loop_of_ones_own_waits_for_the_descriptor() -> Result<()> {
    between(
        "a_loop_of_ones_own_waits_for_the_descriptor",
        &small(),
        |Side { endpoint, .. }| {
            let mut count = 0;
            'all: loop {
                while let Some(message) = endpoint.receive().try_wait() {
                    match message {
                        Ok(message) => ensure!(*message == *pattern(count, 10), "{count}"),
                        Err(Error::Closed { .. }) => break 'all,
                        Err(error) => return Err(error.into()),
                    }
                    count += 1;
                }
                if endpoint.arm() {
                    continue;
                }
                poll(&mut [PollFd::new(&endpoint, PollFlags::IN)], None)?;
                endpoint.turn();
            }
            ensure!(count == 500);
            Ok(())
        },
        |Side { endpoint, .. }| {
            for number in 0..500 {
                endpoint.send(&pattern(number, 10))?.wait()?;
            }
            Ok(endpoint.close().wait()?)
        },
    )
}

#[test]
fn threads_share_an_endpoint() -> Result<()> {
    const EACH: usize = 300;
    between(
        "threads_share_an_endpoint",
        &small(),
        |Side { endpoint, .. }| {
            while let Ok(message) = endpoint.receive().wait() {
                endpoint.send(&message)?.wait()?;
            }
            Ok(())
        },
        |Side { endpoint, .. }| {
            let received = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            let mut sum = 0;
                            for number in 0..EACH as u64 {
                                endpoint.send(&number.to_be_bytes())?.wait()?;
                                let answer = endpoint.receive().wait()?;
                                let bytes = answer.first_chunk().context("a short answer")?;
                                sum += u64::from_be_bytes(*bytes);
                            }
                            anyhow::Ok(sum)
                        })
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"))
                    .sum::<Result<u64>>()
            })?;
            ensure!(received == 4 * (0..EACH as u64).sum::<u64>(), "{received}");
            Ok(endpoint.close().wait()?)
        },
    )
}
