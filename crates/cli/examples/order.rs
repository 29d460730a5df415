//! The program of the README.

use flowline::{All, Engine, Flow, Retry, Step, StepError, event};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
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
event!(Order = "order.placed", Charged = "order.charged", Reserved = "stock.reserved");

async fn charge(step: Step, order: Order) -> Result<Charged, StepError> {
    // The same key in every attempt, so the bank charges only once.
    Ok(Charged { receipt: format!("{} for {} cents", step.idempotency_key(), order.cents) })
}
async fn reserve(_: Step, _: Order) -> Result<Reserved, StepError> {
    Ok(Reserved { shelf: "B-17".to_owned() })
}
async fn ship(_: Step, All((charged, reserved)): All<(Charged, Reserved)>) -> Result<(), StepError> {
    println!("{} from {}", charged.receipt, reserved.shelf);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fulfil = Flow::new("order")
        .input::<Order>()
        .step("charge", charge)
        .retry(Retry { attempts: 5, ..Retry::default() })
        .step("reserve", reserve)
        .step("ship", ship)
        .build()?; // the whole graph is checked here
    let engine = Engine::open("flowline.db").flow(&fulfil).start().await?;
    let run = engine.run(&fulfil, Order { cents: 1900 }).idempotency_key("order-42").await?;
    println!("{:?}", run.wait().await?.status);
    engine.stop().await;
    Ok(())
}
