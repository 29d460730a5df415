//! Wake-ups from other processes: a message per write on the channel `<prefix>:wake`, heard on a connection of its own.
//!
//! A hint and no more. While the connection is away, and beside it, a wake-up comes every second anyway.

use std::sync::Arc;
use std::time::Duration;

use flowline_store::others::OtherProcesses;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::address::Address;

/// How late a change is seen where its message is lost.
const POLL: Duration = Duration::from_secs(1);
/// Messages within this time are one wake-up.
const GATHER: Duration = Duration::from_millis(2);

/// Listens until aborted. Messages of `who` are our own: their writer has told already.
pub(crate) fn listen(
    address: &Address,
    who: String,
    changed: watch::Sender<u64>,
    others: Arc<OtherProcesses>,
) -> AbortHandle {
    let (nodes, channel) = (address.nodes.clone(), format!("{}:wake", address.prefix));
    let task = tokio::spawn(async move {
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A message published on any node of a cluster reaches the subscribers of all.
        for node in nodes.iter().cycle() {
            if let Ok(mut heard) = subscribe(node, &channel).await {
                loop {
                    tokio::select! {
                        message = heard.next() => match message {
                            Some(message) if message.get_payload_bytes() == who.as_bytes() => continue,
                            Some(_) => others.hear(),
                            None => break,
                        },
                        _ = poll.tick() => {}
                    }
                    changed.send_modify(|count| *count += 1);
                    sleep(GATHER).await;
                }
            }
            poll.tick().await;
            changed.send_modify(|count| *count += 1);
        }
    });
    task.abort_handle()
}

async fn subscribe(node: &str, channel: &str) -> Result<redis::aio::PubSubStream, redis::RedisError> {
    let mut heard = redis::Client::open(node)?.get_async_pubsub().await?;
    heard.subscribe(channel).await?;
    Ok(heard.into_on_message())
}
