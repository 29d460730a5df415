//! The simulator, its model and what it shows: `cargo test -p flowline-sim --test all seeds::`.

mod model;
mod player;
mod seeds;
mod shown;
