//! The store on a Redis Cluster keeps the contract.

mod place;

use flowline_store::conformance::Fixture;

async fn open() -> Fixture {
    place::open("FLOWLINE_TEST_REDIS_CLUSTER_URL").await
}

flowline_store::conformance!(open);
