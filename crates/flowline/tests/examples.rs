//! The examples in Rust run to their end; each asserts what it shows.

#[path = "../examples/closures.rs"]
mod closures;
#[path = "../examples/typed.rs"]
mod typed;

#[test]
fn typed_steps_fulfil_an_order() {
    typed::main().unwrap();
}

#[test]
fn closures_over_json_review_a_text() {
    closures::main().unwrap();
}
