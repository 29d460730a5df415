//! The worker of docs/workers.md.

use flowline_client::{Client, Job, Worker};
use serde_json::{Value, json};

async fn pack(key: &str, input: Value) -> Result<String, std::io::Error> {
    println!("packing {input} under {key}");
    Ok("r-1".to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("FLOWLINE_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".to_owned());
    let client = Client::new(&server)?; // with a token: .token("fl_…")?
    let work = |job: Job| async move {
        job.log("packing").await;
        let seen: u32 = job.get("parcels", "seen").await?.unwrap_or(0); // key-value state of any scope
        job.set("parcels", "seen", &(seen + 1)).await?; // written at once
        let receipt = pack(job.idempotency_key(), job.input().value()).await?; // `?` fails the attempt, which is then retried
        Ok(json!({ "receipt": receipt }))
    };
    let stop = async { drop(tokio::signal::ctrl_c().await) }; // takes no more work, finishes what it has begun
    Worker::new(client).queue("depot").slots(8).handler(work).until(stop).run().await?;
    Ok(())
}
