//! The PostgreSQL store keeps the contract.

#[allow(dead_code)]
mod place;

use place::fixture;

flowline_store::conformance!(fixture);
