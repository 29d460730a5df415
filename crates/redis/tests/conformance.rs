//! The store on one Redis server keeps the contract.

mod place;

use flowline_store::conformance::Fixture;

async fn open() -> Fixture {
    place::open("FLOWLINE_TEST_REDIS_URL").await
}

flowline_store::conformance!(open);
