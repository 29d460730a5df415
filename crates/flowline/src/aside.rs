//! Threads for work that would hold up others: definitions to compile, decisions and templates that aren't quick.
//!
//! They have a lower priority than the threads that serve everyone, and tenants take turns, so that one with much of such
//! work waits for itself. Work whose caller has gone is not begun.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use flowline_core::Tenant;
use tokio::sync::oneshot;

/// What these threads give up to all others, as `nice` counts it.
#[cfg(target_os = "linux")]
const NICE: i32 = 15;

/// The stack of each. The parser of expressions goes deep where a text makes no sense to it, and must not end the process.
const STACK: usize = 64 << 20;

type Task = Box<dyn FnOnce() + Send>;

/// The threads. They are started when they are first needed, and end when this is dropped.
#[derive(Default)]
pub struct Aside(Arc<Bench>);

/// What the threads share.
#[derive(Default)]
struct Bench {
    turns: Mutex<Turns>,
    more: Condvar,
}

#[derive(Default)]
struct Turns {
    /// Tenants with work, the one whose turn it is first.
    next: VecDeque<Tenant>,
    work: HashMap<Tenant, VecDeque<Task>>,
    threads: usize,
    closed: bool,
}

impl Aside {
    /// Does some work of a tenant, and waits for it.
    ///
    /// # Panics
    ///
    /// Where the work does.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.try_run(tenant, work).await.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The same, with a panic as an error.
    pub async fn try_run<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::Result<T> {
        let (done, result) = oneshot::channel();
        self.add(
            tenant,
            Box::new(move || {
                if !done.is_closed() {
                    let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
                }
            }),
        );
        match result.await {
            Ok(result) => result,
            // The threads have ended, and the engine with them: nothing will read the result.
            Err(_) => std::future::pending().await,
        }
    }

    fn add(&self, tenant: &Tenant, task: Task) {
        let mut turns = self.0.lock();
        let of_tenant = turns.work.entry(tenant.clone()).or_default();
        of_tenant.push_back(task);
        if of_tenant.len() == 1 {
            turns.next.push_back(tenant.clone());
        }
        if turns.threads < threads() {
            let bench = self.0.clone();
            let started = thread::Builder::new()
                .name("flowline-aside".to_owned())
                .stack_size(STACK)
                .spawn(move || bench.serve());
            turns.threads += usize::from(started.is_ok());
        }
        if turns.threads == 0 {
            let task = turns.take();
            drop(turns);
            return task.into_iter().for_each(|task| task());
        }
        self.0.more.notify_one();
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let mut turns = self.0.lock();
        turns.closed = true;
        turns.work.clear();
        turns.next.clear();
        self.0.more.notify_all();
    }
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aside")
    }
}

impl Bench {
    fn serve(&self) {
        // Without a lower priority they still leave half of the processors to others. Only Linux lowers that of the calling
        // thread: elsewhere it would be the whole process.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, NICE);
        let mut turns = self.lock();
        while !turns.closed {
            match turns.take() {
                Some(task) => {
                    drop(turns);
                    task();
                    turns = self.lock();
                }
                None => turns = self.more.wait(turns).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    fn take(&mut self) -> Option<Task> {
        let tenant = self.next.pop_front()?;
        let of_tenant = self.work.get_mut(&tenant)?;
        let task = of_tenant.pop_front();
        if of_tenant.is_empty() {
            self.work.remove(&tenant);
        } else {
            self.next.push_back(tenant);
        }
        task
    }
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).expect("a name")
    }

    #[test]
    fn tenants_take_turns_however_much_one_has() {
        let mut turns = Turns::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        for (name, count) in [("noisy", 5), ("quiet", 2)] {
            for at in 0..count {
                let order = order.clone();
                let of_tenant = turns.work.entry(tenant(name)).or_default();
                of_tenant.push_back(Box::new(move || order.lock().unwrap().push(format!("{name}{at}"))));
                if of_tenant.len() == 1 {
                    turns.next.push_back(tenant(name));
                }
            }
        }
        while let Some(task) = turns.take() {
            task();
        }
        let order = order.lock().unwrap().join(" ");
        assert_eq!(order, "noisy0 quiet0 noisy1 quiet1 noisy2 noisy3 noisy4");
        assert!(turns.work.is_empty());
    }

    #[tokio::test]
    async fn work_is_done_elsewhere_and_a_panic_comes_back() {
        let aside = Aside::default();
        let here = thread::current().id();
        assert_ne!(aside.run(&tenant("a"), move || thread::current().id()).await, here);
        let panicked = tokio::spawn(async move { aside.run(&tenant("a"), || panic!("as told")).await }).await;
        assert!(panicked.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_not_begun() {
        let aside = Arc::new(Aside::default());
        // As many as there are threads, so that nothing else is begun.
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let mut held = Vec::new();
        for _ in 0..threads() {
            let (aside, gate) = (aside.clone(), gate.clone());
            held.push(tokio::spawn(async move {
                aside.run(&tenant("a"), move || gate.lock().unwrap().recv().unwrap_or_default()).await
            }));
        }
        let begun = Arc::new(Mutex::new(false));
        let other = tenant("b");
        let mut left = Box::pin(aside.run(&other, {
            let begun = begun.clone();
            move || *begun.lock().unwrap() = true
        }));
        assert!(is_pending(&mut left).await);
        drop(left);
        drop(go);
        for task in held {
            task.await.unwrap();
        }
        aside.run(&tenant("b"), || ()).await;
        assert!(!*begun.lock().unwrap());
    }

    /// Polls once; whether it's still pending.
    async fn is_pending<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
        use std::task::Poll;
        std::future::poll_fn(|context| {
            Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
        })
        .await
    }
}
