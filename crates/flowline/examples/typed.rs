//! A flow in Rust with typed steps: what a function takes is what its step waits for, what it returns is what it
//! publishes. Run it with `cargo run -p flowline --example typed`.

use std::error::Error;
use std::time::Duration;

use flowline::core::{Json, Status};
use flowline::{All, Engine, Flow, OnFailure, Retry, Step, StepError, event};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order: String,
    cents: u32,
}

#[derive(Serialize, Deserialize)]
struct Charged {
    receipt: String,
}

#[derive(Serialize, Deserialize)]
struct Reserved {
    shelf: String,
}

#[derive(Serialize, Deserialize)]
struct Shipped {
    tracking: String,
}

event!(
    OrderPlaced = "order.placed",
    Charged = "order.charged",
    Reserved = "stock.reserved",
    Shipped = "order.shipped",
);

/// Starts with the run, because it takes the run's input. An error that comes by `?` is retried as the policy says.
async fn charge(step: Step, order: OrderPlaced) -> Result<Charged, StepError> {
    if order.cents == 0 {
        return Err(StepError::fatal("there is nothing to charge").code("empty_order"));
    }
    if step.attempt() == 1 {
        return Err(StepError::new("the bank did not answer").code("unreachable"));
    }
    // The key is the same in every attempt: the bank charges once.
    Ok(Charged { receipt: format!("{} cents, key {}", order.cents, step.idempotency_key()) })
}

/// Starts with the run too, beside `charge`.
async fn reserve(_: Step, order: OrderPlaced) -> Result<Reserved, StepError> {
    Ok(Reserved { shelf: format!("B-17 for {}", order.order) })
}

/// Waits for both.
async fn ship(_: Step, All((charged, reserved)): All<(Charged, Reserved)>) -> Result<Shipped, StepError> {
    Ok(Shipped { tracking: format!("{} / {}", reserved.shelf, charged.receipt) })
}

/// Publishes nothing.
async fn notify(_: Step, shipped: Shipped) -> Result<(), StepError> {
    println!("shipped: {}", shipped.tracking);
    Ok(())
}

fn fulfil() -> Result<Flow, flowline::EngineError> {
    Flow::new("fulfil-order")
        .input::<OrderPlaced>()
        .output("results.ship.tracking")
        .step("charge", charge)
        .retry(Retry { attempts: 3, delay: Duration::from_millis(20), ..Retry::default() })
        .timeout(Duration::from_secs(10))
        .step("reserve", reserve)
        .step("ship", ship)
        .step("notify", notify)
        .on_failure(OnFailure::Continue)
        .build()
}

#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let fulfil = fulfil()?;
    let engine = Engine::open(folder.path().join("flowline.db")).flow(&fulfil).start().await?;

    let order = OrderPlaced { order: "A-1001".to_owned(), cents: 1900 };
    let run = engine.run(&fulfil, &order).idempotency_key("order-A-1001").label("team", "sales").await?;
    let outcome = run.wait().await?;
    println!("{}: {}", outcome.status, outcome.result.unwrap_or_else(Json::null));
    assert_eq!(outcome.status, Status::Completed);
    assert_eq!(engine.row(run.key()).await?.retries, 1);

    // The same key and input is the same run, also after it ended.
    let again = engine.run(&fulfil, &order).idempotency_key("order-A-1001").await?;
    assert_eq!((again.id(), again.existed()), (run.id(), true));

    // An error that no retry can help ends the run at once.
    let empty = OrderPlaced { order: "A-1002".to_owned(), cents: 0 };
    let outcome = engine.run(&fulfil, &empty).await?.wait().await?;
    println!("{}: {}", outcome.status, outcome.error.unwrap_or_default());
    assert_eq!(outcome.status, Status::Failed);

    engine.stop().await;
    Ok(())
}
