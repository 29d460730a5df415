//! The program of docs/redis.md.

use flowline::{Engine, Flow, Step};
use flowline_redis::{IfMissing, RedisStore};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let flow = Flow::new("echo").step("echo", |_: Step, input: Value| async move { Ok(input) }).build()?;
    let url = std::env::var("FLOWLINE_STORE")?; // redis://HOST:6379, redis+cluster://HOST:7000,HOST:7001
    let store = RedisStore::open(&url, IfMissing::Make).await?;
    let engine = Engine::on(store).flow(&flow).start().await?;
    let run = engine.run(&flow, json!({ "n": 1 })).await?;
    println!("{}", run.wait().await?.status);
    engine.stop().await;
    Ok(())
}
