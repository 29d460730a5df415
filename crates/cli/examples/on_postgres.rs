//! The program of docs/postgres.md.

use flowline::{Engine, Flow, Step};
use flowline_postgres::{IfMissing, PostgresStore};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let flow = Flow::new("echo").step("echo", |_: Step, input: Value| async move { Ok(input) }).build()?;
    let url = std::env::var("FLOWLINE_STORE")?; // postgres://USER:PASSWORD@HOST:5432/flows
    let store = PostgresStore::open(&url, IfMissing::Make).await?; // the schema and its tables
    let engine = Engine::on(store).flow(&flow).start().await?;
    let run = engine.run(&flow, json!({ "n": 1 })).await?;
    println!("{}", run.wait().await?.status);
    engine.stop().await;
    Ok(())
}
