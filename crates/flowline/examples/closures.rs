//! A flow in Rust with closures over JSON: the builder names the events. Shows emits, key-value state, an event from
//! outside and the feed of all events. Run it with `cargo run -p flowline --example closures`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use flowline::core::event::EventType;
use flowline::core::{Json, Status};
use flowline::store::memory::MemoryStore;
use flowline::store::{Clock, FeedFilter};
use flowline::{Engine, Flow, Level, StateScope, Step};
use serde_json::{Value, json};

fn review() -> Result<Flow, flowline::EngineError> {
    Flow::new("review")
        .accepts_named("review.approved")
        .step("split", |step: Step, input: Value| async move {
            let pages = input["pages"].as_u64().unwrap_or(0);
            step.log(Level::Info, format!("{pages} pages"));
            // Kept at once, whatever becomes of this attempt.
            step.set(StateScope::Run, "pages", pages).await?;
            // Published with the completion of this attempt.
            step.emit("first.half", json!({ "pages": pages / 2 }))?;
            // Published now: `spell` starts while this step goes on.
            step.emit_now("second.half", json!({ "pages": pages - pages / 2 })).await?;
            Ok(Value::Null)
        })
        .emits(["first.half", "second.half"])
        .step("grammar", |_: Step, input: Value| async move { Ok(input["first.half"]["pages"].clone()) })
        .subscribes(["first.half"])
        .returns("grammar.checked")
        .step("spell", |_: Step, input: Value| async move { Ok(input["second.half"]["pages"].clone()) })
        .subscribes(["second.half"])
        .returns("spelling.checked")
        .step("publish", |step: Step, input: Value| async move {
            let pages: Option<u64> = step.get(StateScope::Run, "pages").await?;
            let checked = input["grammar.checked"].as_u64().zip(input["spelling.checked"].as_u64());
            Ok(json!({
                "pages": pages,
                "checked": checked.map(|(a, b)| a + b),
                "by": input["review.approved"]["by"],
            }))
        })
        .subscribes(["grammar.checked", "spelling.checked", "review.approved"])
        .build()
}

#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let review = review()?;
    let store = Arc::new(MemoryStore::new(Clock::system()));
    let engine = Engine::on(store).flow(&review).start().await?;
    let emits = FeedFilter { kinds: vec![EventType::Emit], ..FeedFilter::default() };
    let mut feed = engine.subscribe(emits, "");

    let run = engine.run(&review, json!({ "pages": 7 })).await?;
    engine.until_idle(Duration::ZERO).await;
    assert_eq!(engine.row(run.key()).await?.status, Status::Waiting);

    engine.send(run.key(), "review.approved", Json::of(&json!({ "by": "ada" }))?).await?;
    let outcome = run.wait().await?;
    assert_eq!(outcome.status, Status::Completed);
    let result = outcome.result.unwrap_or_else(Json::null).value();
    assert_eq!(result, json!({ "publish": { "pages": 7, "checked": 7, "by": "ada" } }));
    println!("{result}");

    for _ in 0..5 {
        let event = feed.next().await?;
        println!("{} {}", event.id, event.data.unwrap_or_else(Json::null));
    }
    engine.stop().await;
    Ok(())
}
