//! The PostgreSQL store keeps the contract.

#[allow(dead_code)]
mod place;

use place::fixture;

flowline_store::conformance!(fixture);

#[tokio::test]
async fn payloads_of_the_largest_size_are_kept() {
    flowline_store::conformance::payloads_of_the_largest_size_are_kept(fixture().await).await;
}
