//! Payloads of the largest size, apart from the other cases: for as long as they are written the server answers nobody.

#[allow(dead_code)]
mod place;

use flowline_store::conformance::payloads_of_the_largest_size_are_kept;

#[tokio::test]
async fn a_server_keeps_payloads_of_the_largest_size() {
    payloads_of_the_largest_size_are_kept(place::open("FLOWLINE_TEST_REDIS_URL").await).await;
}

#[tokio::test]
async fn a_cluster_keeps_payloads_of_the_largest_size() {
    payloads_of_the_largest_size_are_kept(place::open("FLOWLINE_TEST_REDIS_CLUSTER_URL").await).await;
}
