//! The client of docs/live.md.

use flowline_client::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let run = std::env::args().nth(1).ok_or("which run?")?;
    let server = std::env::var("FLOWLINE_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".to_owned());
    let client = Client::new(&server)?.token(&std::env::var("FLOWLINE_TOKEN")?)?;
    let mut events = client.follow(&run, &[]);
    while let Some(event) = events.next().await? {
        println!("{} {}", event.ts, event.kind);
    }
    println!("{:?}", events.status());
    Ok(())
}
